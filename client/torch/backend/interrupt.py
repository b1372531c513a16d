# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while torch waits in C++.

DDP waits for its buckets in C++, where Python cannot raise KeyboardInterrupt: with a peer that will not come, a process
would hang until the timeout of its group. So a thread listens for the signal on the file descriptor that Python writes
to at once, and if Python's own handler has not run shortly after, the thread has the groups aborted. Their ops fail,
torch returns, and KeyboardInterrupt is raised where it would have been.

Only where Ctrl-C means KeyboardInterrupt: a program with a handler of its own knows what it wants.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

PATIENCE_S = 0.3


class InterruptWatch:
    """Calls |abort| when the main thread is deaf to Ctrl-C. Does nothing where it cannot; `stop` puts all back."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._heard = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self._reading, True)
        others = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
            os.close(self._reading)
            os.close(self._writing)
            return
        thread = threading.Thread(target=self._listen, name="ultima-torch-interrupt", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # the system has no further thread
            signal.set_wakeup_fd(-1)
            os.close(self._reading)
            os.close(self._writing)
            return
        self._thread = thread
        signal.signal(signal.SIGINT, self._handle)

    def stop(self) -> None:
        """Ends the thread. From another thread than the main one the signal handler stays, and is the usual one."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._let_go()
        os.write(self._writing, b"\0")
        if thread is not threading.current_thread():
            thread.join(1.0)

    def _let_go(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.set_wakeup_fd(-1)
        if current != self._writing:
            signal.set_wakeup_fd(current)
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def after_fork(self) -> None:
        """In a child (a worker of a data loader): its signals are not the parent's."""
        self._let_go()
        self._thread = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._heard.set()
        signal.default_int_handler(number, frame)

    def _listen(self) -> None:
        while True:
            for number in os.read(self._reading, 64):
                if number == 0:
                    os.close(self._reading)
                    return
                if number == signal.SIGINT and not self._heard.wait(PATIENCE_S):
                    with contextlib.suppress(Exception):
                        self._abort()
                self._heard.clear()
