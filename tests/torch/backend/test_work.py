# SPDX-License-Identifier: Apache-2.0
"""The Work of a collective, whoever waits for it, and in whatever order. Its parts are the test's own, no daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ultima  # noqa: E402
from ultima.torch.backend.receipt_log import ReceiptLog  # noqa: E402
from ultima.torch.backend.work import Finishers, UltimaWork  # noqa: E402

LONG_S = 20.0


class Slow:
    """A part that ends when the test says so, and counts who waited."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.waits = 0
        self.entered, self.go = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.waits += 1
        self.entered.set()
        assert self.go.wait(LONG_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def finishers() -> Iterator[Finishers]:
    running = Finishers()
    yield running
    running.close()


def work_of(part: Slow, finishers: Finishers, log: list[Any] | None = None) -> UltimaWork:
    copied = None if log is None else lambda: log.append("copied")
    return UltimaWork([torch.ones(1)], [part], copied, ReceiptLog(), finishers)


def ended(part: Slow) -> Slow:
    part.go.set()
    return part


def test_wait__finishes_it_in_the_caller(finishers: Finishers) -> None:
    log: list[Any] = []
    part = ended(Slow())
    work = work_of(part, finishers, log)
    assert work.wait() and work.wait() and work.is_completed() and work.is_success()
    assert (part.waits, log, finishers._threads) == (1, ["copied"], [])


def test_wait__of_many_threads_finishes_it_once(finishers: Finishers) -> None:
    log: list[Any] = []
    part = Slow()
    work, found = work_of(part, finishers, log), []
    threads = [threading.Thread(target=lambda: found.append(work.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert part.entered.wait(LONG_S)
    part.go.set()
    for thread in threads:
        thread.join(LONG_S)
    assert (found, part.waits, log) == ([True] * 4, 1, ["copied"])


def test_wait__too_short_and_again(finishers: Finishers) -> None:
    part = Slow()
    work = work_of(part, finishers)
    with pytest.raises(ultima.NotDone):
        work.wait(timedelta(milliseconds=20))
    assert not work.is_completed() and not work.is_success()
    part.go.set()
    assert work.wait(timedelta(seconds=LONG_S)) and part.waits == 1


@pytest.mark.parametrize("when", ["before", "after", "while"])
def test_future__is_filled_whenever_it_is_asked_for(finishers: Finishers, when: str) -> None:
    part = Slow()
    work = work_of(part, finishers)
    if when == "before":
        future = work.get_future()
        part.go.set()
        work.wait()
    elif when == "after":
        ended(part)
        work.wait()
        future = work.get_future()
    else:
        waiter = threading.Thread(target=work.wait)
        waiter.start()
        assert part.entered.wait(LONG_S)
        future = work.get_future()
        assert not future.done()
        part.go.set()
        waiter.join(LONG_S)
    assert float(future.wait()[0]) == 1.0
    assert work.get_future() is future and part.waits == 1


def test_future__its_callback_may_wait_for_the_same_work(finishers: Finishers) -> None:
    part = Slow()
    work = work_of(part, finishers)
    again = work.get_future().then(lambda _: work.wait())
    part.go.set()
    assert again.wait()


def test_error__reaches_everybody(finishers: Finishers) -> None:
    log: list[Any] = []
    work = work_of(ended(Slow(ultima.RanksGone("rank 1 is gone", (1,)))), finishers, log)
    for _ in range(2):
        with pytest.raises(ultima.RanksGone):
            work.wait()
    with pytest.raises(Exception, match="rank 1 is gone"):
        work.get_future().wait()
    assert isinstance(work.exception(), ultima.RanksGone)
    assert not work.is_success() and log == [], "nothing is copied over the tensor"


def test_interrupt__of_the_one_who_finishes_it_frees_the_others(finishers: Finishers) -> None:
    work = work_of(ended(Slow(KeyboardInterrupt())), finishers)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    with pytest.raises(ultima.ClosedHandle, match="interrupted"):
        work.wait(timedelta(seconds=LONG_S))
    with pytest.raises(Exception, match="interrupted"):
        work.get_future().wait()


def test_finishers__after_close_the_caller_does_it_himself() -> None:
    closed = Finishers()
    closed.close()
    work = work_of(ended(Slow()), closed)
    assert float(work.get_future().wait()[0]) == 1.0
    assert closed._threads == []
