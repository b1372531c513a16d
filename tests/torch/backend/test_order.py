# SPDX-License-Identifier: Apache-2.0
"""Works of one group end in the order of their calls, whoever waits for which. Their parts are the test's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ultima  # noqa: E402
from tests.torch.backend.test_work import LONG_S, Slow, ended  # noqa: E402
from ultima.torch.backend.order import Order  # noqa: E402
from ultima.torch.backend.receipt_log import ReceiptLog  # noqa: E402
from ultima.torch.backend.work import Finishers, TorchPart, UltimaWork  # noqa: E402


class Group:
    """What a process group has for its works."""

    def __init__(self) -> None:
        self.finishers = Finishers()
        self.order = Order(self.finishers.offer)
        self.log: list[Any] = []

    def close(self) -> None:
        self.order.close()
        self.finishers.close()

    def call(self, name: str, *parts: Any, joins: bool = True) -> UltimaWork:
        """An op that writes its |name| where others see it, when it ends."""
        done = partial(self.log.append, name)
        work = UltimaWork([torch.ones(1)], parts, done, ReceiptLog(), self.finishers, self.order)
        if joins:
            self.order.join(work)
        return work


@pytest.fixture
def group() -> Iterator[Group]:
    running = Group()
    yield running
    running.close()


@pytest.mark.parametrize("joins", [True, False])
def test_wait__ends_all_that_was_called_earlier_in_the_callers_own_thread(group: Group, joins: bool) -> None:
    """Whether the one that is waited for was left to its caller or not."""
    works = [group.call(name, ended(Slow())) for name in "abc"]
    last, later = group.call("d", ended(Slow()), joins=joins), group.call("e", ended(Slow()))
    assert last.wait() and group.log == ["d", "a", "b", "c"]
    assert all(work._over for work in works) and not later._over
    assert later.wait() and group.log[-1] == "e"
    assert group.finishers._threads == [] and group.order._open == {}


def test_wait__is_over_no_earlier_than_what_another_thread_finishes(group: Group) -> None:
    slow = Slow()
    first = group.call("a", slow)
    first.start()
    assert slow.entered.wait(LONG_S)
    second = group.call("b", ended(Slow()))
    with pytest.raises(ultima.NotDone):
        second.wait(timedelta(milliseconds=20))
    future = second.get_future()
    assert not future.done() and not second.is_completed() and group.log == ["b"]
    slow.go.set()
    future.wait()
    assert group.log == ["b", "a"] and second.is_completed() and first.is_completed()


def test_error__of_an_earlier_one_is_its_own(group: Group) -> None:
    gone = group.call("a", ended(Slow(ultima.RanksGone("rank 1 is gone", (1,)))))
    assert group.call("b", ended(Slow())).wait()
    assert group.log == ["b"]
    with pytest.raises(ultima.RanksGone):
        gone.wait()


def test_error__is_told_to_the_future_when_what_was_called_later_writes_no_more(group: Group) -> None:
    """DDP then begins another step with the same memory. Whoever waits himself is told at once."""
    slow = Slow()
    failed = group.call("a", ended(Slow(ultima.RanksGone("rank 1 is gone", (1,)))))
    group.call("b", slow).get_future()
    later = group.call("c", ended(Slow()))
    threading.Timer(0.1, slow.go.set).start()
    with pytest.raises(Exception, match="rank 1 is gone"):
        failed.get_future().wait()
    assert sorted(group.log) == ["b", "c"] and later.wait()
    slow, failed = Slow(), group.call("a", ended(Slow(ultima.RanksGone("rank 1 is gone", (1,)))))
    held = group.call("d", slow)
    with pytest.raises(ultima.RanksGone):
        failed.wait()
    assert "d" not in group.log
    slow.go.set()
    held.wait()


def test_error__is_told_in_bounded_time(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultima.torch.backend.work.CLOSE_S", 0.05)
    slow = Slow()
    failed = group.call("a", ended(Slow(ultima.RanksGone("rank 1 is gone", (1,)))))
    held = group.call("b", slow)
    with pytest.raises(Exception, match="rank 1 is gone"):
        failed.get_future().wait()
    assert group.log == []
    slow.go.set()
    held.wait()


def test_error__of_many_at_once(group: Group) -> None:
    """As many buckets as a large model has, all of which fail: no thread waits in a chain of others."""
    gone = ultima.RanksGone("rank 1 is gone", (1,))
    works = [group.call("a", ended(Slow(gone))) for _ in range(300)]
    for future in [work.get_future() for work in works]:
        with pytest.raises(Exception, match="rank 1 is gone"):
            future.wait()
    assert group.order._open == {}


def test_callback__of_an_earlier_one_may_wait_for_a_later_one(group: Group) -> None:
    """It runs in the thread that waits for both, here for one whose part is a work itself: nothing may be locked."""
    slow = Slow()
    first = group.call("a", slow)
    whole = group.call("c", TorchPart(group.call("b", ended(Slow()))))
    waiting = threading.Thread(target=whole.wait, daemon=True)
    waiting.start()
    assert slow.entered.wait(LONG_S)
    found = first.get_future().then(lambda _: (threading.current_thread(), group.call("d", ended(Slow())).wait()))
    slow.go.set()
    waiting.join(LONG_S)
    assert not waiting.is_alive() and found.wait() == (waiting, True)
    assert sorted(group.log) == ["a", "b", "c", "d"]


def test_dropped__ends_all_the_same_and_one_thread_does_for_all(group: Group) -> None:
    group.order.watch()
    slow = Slow()
    for part in (slow, ended(Slow()), ended(Slow())):
        group.call("dropped", part)
    assert slow.entered.wait(LONG_S)
    assert group.log == [], "nothing ends before what was called earlier"
    kept = group.call("kept", ended(Slow()))
    slow.go.set()
    assert kept.wait() and group.log.count("dropped") == 3, "and others wait for it"
    group.call("later", ended(Slow()))
    limit = time.monotonic() + LONG_S
    while "later" not in group.log and time.monotonic() < limit:
        time.sleep(0.01)
    assert group.log[-1] == "later"
    assert len(group.finishers._threads) == 1


def test_dropped__of_a_closed_group_is_nobodys(group: Group) -> None:
    group.order.watch()
    work = group.call("a", Slow())
    threads = list(group.finishers._threads)
    group.close()
    assert not any(thread.is_alive() for thread in threads)
    del work
    assert group.order._dropped.empty() and group.log == []
