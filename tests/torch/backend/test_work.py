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
from ultima.torch.backend.elements import copier  # noqa: E402
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


def test_error__of_copying_the_result_out_is_itself_whoever_meets_it(finishers: Finishers) -> None:
    """And not an interrupt, which nobody made; the thread that met it goes on."""
    for how in (lambda work: work.wait(), lambda work: work.get_future().wait()):
        copies = [(torch.ones(3), torch.ones(2))]
        work = UltimaWork([], [ended(Slow())], copier(copies), ReceiptLog(), finishers)
        with pytest.raises(RuntimeError, match="size of tensor"):
            how(work)
        with pytest.raises(RuntimeError, match="size of tensor"):
            work.wait()
        assert isinstance(work.exception(), RuntimeError) and not isinstance(work.exception(), ultima.UltimaError)
    assert [thread.is_alive() for thread in finishers._threads] == [True]


class Alone(Slow):
    """A part whose op held own values alone."""

    def wait(self) -> Any:
        super().wait()
        known = dict.fromkeys(("elapsed_s", "bytes_expected", "bytes_missing", "bytes_repaired"), 0)
        known |= {"op_seq": 7, "status": ultima.Status.INSUFFICIENT, "culprit": (), "peers": ()}
        return ultima.Receipt.deferred(known, lambda: self)


@pytest.mark.filterwarnings("error")
def test_error__of_a_warning_that_is_one(finishers: Finishers) -> None:
    work = UltimaWork([], [ended(Alone())], None, ReceiptLog(), finishers)
    with pytest.raises(ultima.UltimaWarning, match="op 7 holds nothing"):
        work.wait()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_result__is_written_in_the_mode_of_the_caller(finishers: Finishers, mode: Any) -> None:
    """By another thread, which is in none; and by one that waits in another mode than the one that called."""
    for wait in (lambda work: work.get_future().wait(), lambda work: work.wait()):
        with mode():
            whole = torch.zeros(4, 2) if torch.is_inference_mode_enabled() else torch.zeros(4, 2, requires_grad=True)
            half = whole.detach()[:, 1]
            work = UltimaWork([half], [ended(Slow())], copier([(half, torch.ones(4))]), ReceiptLog(), finishers)
        wait(work)
        assert whole.tolist() == [[0.0, 1.0]] * 4


def test_thread__that_cannot_be_had_leaves_the_work_to_the_caller(
    finishers: Finishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under the limit of a container. Whoever asks then waits himself; the next one finds threads again."""

    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", none)
        asked, polled, waited = (work_of(ended(Slow()), finishers) for _ in range(3))
        assert float(asked.get_future().wait()[0]) == 1.0
        assert polled.is_completed() and waited.wait(timedelta(seconds=LONG_S)) and asked.wait()
        assert finishers._threads == []
    part = Slow()
    late = work_of(part, finishers)
    assert not late.is_completed() and len(finishers._threads) == 1
    part.go.set()
    assert late.wait()


def test_error__is_one_to_cpp_too(finishers: Finishers) -> None:
    """`wait_all` asks C++, as DDP does. An error that Python alone knows would come back as a value there."""
    work = work_of(ended(Slow(ultima.RanksGone("rank 1 is gone", (1,)))), finishers)
    with pytest.raises(RuntimeError, match="RanksGone: rank 1 is gone"):
        torch.futures.wait_all([work.get_future()])


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
