# SPDX-License-Identifier: Apache-2.0
"""The thread that listens for Ctrl-C; test_trouble.py has it at work."""

import os
import signal
import threading

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from ultima.torch.backend.interrupt import InterruptWatch


def test_watch__without_a_thread_to_be_had_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        pytest.skip("somebody else handles Ctrl-C here")
    monkeypatch.setattr(threading.Thread, "start", none)
    before = os.listdir("/proc/self/fd")
    watch = InterruptWatch(lambda: None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) == len(before)
    watch.stop()
