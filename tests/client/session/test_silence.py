# SPDX-License-Identifier: Apache-2.0
"""A daemon that lives and does not answer: what calls end with, and that nothing of a late answer reaches anybody."""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.conftest import Pair
from ultima import DaemonLost, Job, Receipt, Status, Trouble, UltimaWarning
from ultima.api import connection
from ultima.session import silence
from ultima.session.attachment import GRACE_NS
from ultima.testing import FakeDaemon

DEADLINE = "20ms"
MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The warning has a test of its own. Nor is a daemon waited for that is known to be silent."""
    monkeypatch.setattr(connection, "GRACE_NS", GRACE_NS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "op .*the daemon of this host", UltimaWarning)
        yield


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_NS", 300_000_000)


def both(left: Job, right: Job, values: tuple[float, float] = (1.0, 2.0)) -> list[tuple[int, Status, float]]:
    """One sum of both ranks: number, status and value on each."""
    data = [np.full(4, value) for value in values]
    handles = [job.allreduce_async(each, "sum") for job, each in zip((left, right), data, strict=True)]
    receipts = [handle.wait() for handle in handles]
    return [(receipt.op_seq, receipt.status, float(each[0])) for receipt, each in zip(receipts, data, strict=True)]


@pytest.mark.parametrize("how", [{}, {"mode": "best_effort"}, {"out": np.zeros(4)}])
def test_frozen__own_values_and_a_receipt_that_says_so(pair: Pair, how: dict[str, Any]) -> None:
    daemon, left, right = pair
    mine = np.arange(4.0)
    daemon.freeze()
    receipt = left.allreduce(mine, "sum", deadline="100ms", **how)
    assert (receipt.status, receipt.op_seq, receipt.contributors) == (Status.INSUFFICIENT, 0, (0,))
    assert (receipt.trouble, receipt.culprit) == (Trouble.DAEMON, (0,))
    assert receipt.bytes_missing == receipt.bytes_expected == mine.nbytes and receipt.bytes_used == 0
    assert 0.1 <= receipt.elapsed_s < 5
    assert "INSUFFICIENT" in str(receipt) and "rank 0 to blame: daemon short of CPU" in str(receipt)
    assert how.get("out", mine).tolist() == mine.tolist() == [0, 1, 2, 3]
    # The daemon finds the call when it goes on, and its deadline over: it sends what this rank gave, and adds up its
    # own shard without the other rank. Here its answer is thrown away.
    daemon.thaw()
    theirs = np.ones(4)
    receipt = right.allreduce(theirs, "sum", mode=how.get("mode"))
    assert (receipt.status, receipt.contributors, receipt.partly) == (Status.PARTIAL, (0,), (1,))
    assert theirs.tolist() == [0, 1, 3, 4]
    assert both(left, right) == [(1, Status.COMPLETE, 3.0)] * 2
    assert how.get("out", mine).tolist() == [0, 1, 2, 3]


def test_frozen__of_many_threads_each_has_its_own(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.freeze()
    data = [np.full(4, float(number)) for number in range(5)]
    handles = [left.allreduce_async(each, "sum", deadline=DEADLINE) for each in data]
    found: list[Receipt] = []
    threads = [threading.Thread(target=lambda handle=handle: found.append(handle.wait())) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [receipt.status for receipt in found] == [Status.INSUFFICIENT] * 5
    assert sorted(receipt.op_seq for receipt in found) == [0, 1, 2, 3, 4]
    assert [each.tolist() for each in data] == [[float(number)] * 4 for number in range(5)]


def test_frozen__done_without_a_wait(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.freeze()
    handle = left.allreduce_async(np.ones(4), deadline=DEADLINE)
    assert not handle.done()
    with pytest.raises(ultima.NotDone):
        handle.wait("1ms")
    time.sleep(0.2)
    assert handle.done() and handle.receipt.status is Status.INSUFFICIENT


def test_frozen__a_receipt_stays_what_it_was_when_the_daemon_dies(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.freeze()
    handle = left.allreduce_async(np.ones(4), deadline=DEADLINE)
    receipt = handle.wait()
    daemon.kill()
    with pytest.raises(DaemonLost) as caught:
        left.allreduce(np.ones(4))
    assert caught.value.reason == "hangup"
    assert handle.wait() is receipt


def test_frozen__is_told_once(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.freeze()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            left.allreduce(np.ones(4), deadline=DEADLINE)
    (warning,) = told
    assert warning.category is UltimaWarning
    text = str(warning.message)
    for part in ("op 0: the daemon of this host did not answer", "short of CPU time", "INSUFFICIENT", "drift apart"):
        assert part in text


@pytest.mark.parametrize("how", [{"mode": "reliable"}, {"agree": True}])
def test_frozen__where_nothing_may_be_missing_the_error_says_that_it_lives(pair: Pair, how: dict[str, Any]) -> None:
    daemon, left, _ = pair
    mine = np.ones(4)
    daemon.freeze()
    with pytest.raises(DaemonLost, match=r"op 0: .*did not hang up: its process \d+ is short of CPU time") as caught:
        left.allreduce(mine, "sum", deadline=DEADLINE, **how)
    assert caught.value.reason == "unresponsive" and mine.tolist() == [1] * 4
    with pytest.raises(DaemonLost, match="did not hang up"):
        left.barrier(deadline=DEADLINE)


def test_frozen__sparse_entries_stand_in_the_result(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.freeze()
    out, back = np.full(8, 9.0, np.float32), []
    indices, values = np.array([1, 5], np.uint32), np.array([3.0, 4.0], np.float32)
    receipt = left.allreduce_sparse(
        indices, values, out, deadline=DEADLINE, returns=lambda *entries: back.append(entries)
    )
    assert receipt.status is Status.INSUFFICIENT and receipt.trouble is Trouble.DAEMON
    assert out.tolist() == [0, 3, 0, 0, 0, 4, 0, 0] and back == []


# How long it may be silent


def test_calls_in_a_row__are_no_lost_daemon_while_it_is_short(pair: Pair) -> None:
    daemon, left, right = pair
    daemon.freeze()
    for _ in range(silence.CALLS_MOST + 2):
        assert left.allreduce(np.ones(4), deadline="1ms").status is Status.INSUFFICIENT
    daemon.thaw()
    for number in range(silence.CALLS_MOST + 2):
        assert right.allreduce(np.ones(4), "avg").op_seq == number
    assert both(left, right) == [(silence.CALLS_MOST + 2, Status.COMPLETE, 3.0)] * 2


def test_calls_in_a_row__are_a_lost_daemon_in_the_end(pair: Pair, short_silence: None) -> None:
    daemon, left, right = pair
    daemon.freeze()
    calls = 0
    with pytest.raises(DaemonLost, match="did not hang up") as caught:
        while calls < 100:
            calls += 1
            left.allreduce(np.ones(4), deadline="1ms")
    assert caught.value.reason == "silent"
    assert calls >= silence.CALLS_MOST
    with pytest.raises(DaemonLost):
        left.allreduce(np.ones(4), deadline="1ms")
    # It was not lost after all: the session goes on, and so do the numbers.
    daemon.thaw()
    for number in range(calls + 1):
        assert right.allreduce(np.ones(4), "avg").op_seq == number
    assert both(left, right) == [(calls + 1, Status.COMPLETE, 3.0)] * 2
    assert left.reconnects == 0


def test_calls_in_a_row__begin_anew_with_each_answer_however_late(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, left, _ = pair
    monkeypatch.setattr(silence, "SILENCE_NS", 0)
    monkeypatch.setattr(silence, "CALLS_MOST", 3)
    for number in range(5):
        daemon.freeze()
        receipt = left.allreduce(np.ones(4), deadline="1ms")
        assert (receipt.op_seq, receipt.status, receipt.trouble) == (number, Status.INSUFFICIENT, Trouble.DAEMON)
        daemon.thaw()  # which answers at once


# Memory that the daemon may still use


def test_arena__an_array_there_waits_for_the_daemon(pair: Pair) -> None:
    """The daemon may write to it at any time: neither own values nor an exception would be safe from that."""
    daemon, left, right = pair
    mine = left.empty(4)
    mine[:] = 1
    daemon.freeze()
    handle = left.allreduce_async(mine, "sum", deadline=DEADLINE)
    theirs = right.allreduce_async(np.full(4, 2.0, np.float32), "sum")
    time.sleep(0.1)
    assert not handle.done()
    thaw = threading.Timer(0.2, daemon.thaw)
    thaw.start()
    with pytest.warns(UltimaWarning, match="op 0: the daemon of this host answered .* too late"):
        receipt = handle.wait()
    thaw.join()
    assert receipt.status is Status.INSUFFICIENT and mine.tolist() == [1.0] * 4, "the deadline was over when it thawed"
    assert theirs.wait().status is not Status.COMPLETE


def test_arena__an_array_there_waits_no_longer_than_a_watchdog(pair: Pair, short_silence: None) -> None:
    daemon, left, _ = pair
    mine = left.empty(4)
    daemon.freeze()
    with pytest.raises(DaemonLost, match="did not hang up"):
        left.allreduce(mine, deadline=DEADLINE)


@pytest.mark.parametrize("silent_s", [0.2, None])
def test_arena__full_of_what_the_daemon_has_not_given_back(monkeypatch: pytest.MonkeyPatch, silent_s: float) -> None:
    """The next call waits for it beyond its deadline; for long enough it is an error."""
    monkeypatch.setattr(silence, "SILENCE_NS", 10_000_000_000 if silent_s else 200_000_000)
    with FakeDaemon(2, peer=lambda rank, op_seq, mine: mine) as daemon, daemon.connect(0, arena=4096) as job:
        daemon.freeze()
        assert job.allreduce(np.ones(512), deadline=DEADLINE).status is Status.INSUFFICIENT
        if silent_s:
            thaw = threading.Timer(silent_s, daemon.thaw)
            thaw.start()
            assert job.allreduce(np.ones(512), deadline=DEADLINE).op_seq == 1
            thaw.join()
            data = np.full(512, 3.0)
            receipt = job.allreduce(data, "sum")
            assert (receipt.op_seq, receipt.complete, data[0]) == (2, True, 6.0)
        else:
            with pytest.raises(DaemonLost, match="short of CPU time, or hangs") as caught:
                job.allreduce(np.ones(512), deadline=DEADLINE)
            assert caught.value.reason == "overrun"
