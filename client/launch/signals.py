# SPDX-License-Identifier: Apache-2.0
"""The one place where `ultima run` waits: for signals, for the end of a child, and for files that are ready.

Signals interrupt nothing. They are kept until somebody asks for the next one.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

INTERRUPT_GRACE_S = 0.8
TERMINATE_GRACE_S = 10.0
# A rank that was interrupted has this long to end; a rank that was told to end may want to write a checkpoint.
ENDING = {signal.SIGINT: INTERRUPT_GRACE_S, signal.SIGTERM: TERMINATE_GRACE_S, signal.SIGHUP: TERMINATE_GRACE_S}
PASSED_ON = {*ENDING, signal.SIGUSR1, signal.SIGUSR2}


class Ended(Exception):
    """A signal came that ends the run before the ranks had started."""

    def __init__(self, number: int) -> None:
        self.number = number


class Signals:
    """Keeps signals from their usual effect while the context lasts, and hands them out one at a time."""

    def __init__(self) -> None:
        self._came: list[int] = []

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # What a shell told us to ignore (nohup) stays ignored; a Ctrl-C is always heard.
        wanted = {number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
        wanted |= {signal.SIGINT, signal.SIGCHLD}
        self._before = {number: signal.signal(number, _nothing) for number in wanted}
        # Written by whichever thread the kernel picks: numpy has some that we know nothing of.
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # poll(2), which takes regular files too: standard input may be one.
        self._ready = selectors.PollSelector()
        self._ready.register(self._read, selectors.EVENT_READ)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._ready.close()
        os.close(self._read)
        os.close(self._write)

    def watch(self, fd: int, events: int, call: Callable[[], None]) -> None:
        """From now on `next` calls |call| whenever |fd| is ready for |events|, until `forget`."""
        self._ready.register(fd, events, call)

    def forget(self, fd: int) -> None:
        """Ends `watch`; nothing if |fd| is not watched."""
        if fd in self._ready.get_map():
            self._ready.unregister(fd)

    def next(self, seconds: float) -> int | None:
        """The next signal, or None after |seconds|. That a child ended or a watched file was ready is a reason to
        return, and no signal."""
        if not self._came:
            for key, _ in self._ready.select(max(0.0, seconds)):
                if key.data is None:
                    self._came += os.read(self._read, 4096)
                elif key.fd in self._ready.get_map():  # not forgotten by the call before
                    key.data()
        while self._came:
            number = self._came.pop(0)
            if number != signal.SIGCHLD:
                return number
        return None


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler: without one the wake-up descriptor is not written."""
