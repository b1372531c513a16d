# SPDX-License-Identifier: Apache-2.0
"""Time, trouble and threads. The only clock that is asserted is "returns by its deadline", with generous grace."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import ultima
from tests.client.conftest import Pair
from ultima import (
    ClosedHandle,
    DaemonLost,
    DaemonUnavailable,
    InvalidArgument,
    Job,
    RanksGone,
    ResourceExhausted,
    Status,
)
from ultima.session import silence
from ultima.testing import FakeDaemon

MakeJob = Callable[..., Job]
# A test machine is busy; a wait that does not end would take the 20 s and more of these tests' deadlines.
SLACK_S = 5.0


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + SLACK_S


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_wait__peers_that_do_not_come_cost_the_deadline(pair: Pair) -> None:
    _, left, _ = pair
    mine = np.arange(4.0)
    with ends_within(0.1):
        receipt = left.allreduce(mine, deadline="100ms")
    assert (receipt.status, receipt.contributors, receipt.culprit) == (Status.INSUFFICIENT, (0,), (1,))
    assert mine.tolist() == [0, 1, 2, 3]


def test_wait__late_completion_is_thrown_away(alone: MakeJob) -> None:
    with FakeDaemon(2, peer=lambda rank, op_seq, mine: mine) as daemon, daemon.connect(0, arena=4096) as job:
        daemon.freeze()
        mine = np.ones(512)
        with pytest.warns(ultima.UltimaWarning, match="did not answer"):
            job.allreduce(mine, "sum", deadline="10ms")
        # Its staging memory is quarantined: the daemon may still write there.
        assert job._connection.session.arena.free_bytes() == (0, 0)
        daemon.thaw()
        assert job.allreduce(np.ones(512), "sum").op_seq == 1
        assert mine.tolist() == [1.0] * 512
        gc.collect()
        assert job._connection.session.arena.free_bytes() == (4096, 4096)


def test_wait__array_in_quarantine_is_copied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena array whose op was given up may still be written by the daemon; a new op on it must not share that."""
    monkeypatch.setattr(silence, "SILENCE_NS", 0)
    daemon, left, _ = pair
    data = left.empty(64)
    data[:] = 3
    daemon.freeze()
    with pytest.raises(DaemonLost):
        left.allreduce(data, deadline="10ms")
    handle = left.allreduce_async(data, deadline="20s")
    assert handle._op.block is not None, "it was not staged"
    assert handle._op.src != data.ctypes.data - left._connection.session.arena.address
    daemon.thaw()


def test_start__memory_of_an_unfinished_op_is_refused(pair: Pair) -> None:
    _, left, right = pair
    data = left.empty((2, 64))
    handle = left.allreduce_async(data[0])
    with pytest.raises(InvalidArgument) as caught:
        left.allreduce_async(data)
    assert "op 0" in str(caught.value)
    other = left.allreduce_async(data[1])
    for _ in range(2):
        right.allreduce(np.zeros(64, dtype=np.float32))
    assert (handle.wait().op_seq, other.wait().op_seq) == (0, 1)
    right_handle = right.allreduce_async(np.zeros(128, dtype=np.float32))
    assert left.allreduce(data).complete and right_handle.wait().complete


def test_hangup__ends_all_waits_at_once(pair: Pair) -> None:
    daemon, left, _ = pair
    arrays = [np.full(4, float(number)) for number in range(5)]
    handles = [left.allreduce_async(each) for each in arrays]
    caught: list[DaemonLost] = []

    def wait(handle: ultima.Handle) -> None:
        try:
            handle.wait()
        except DaemonLost as error:
            caught.append(error)

    threads = [threading.Thread(target=wait, args=(handle,)) for handle in handles]
    with ends_within(0.0):
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        daemon.kill()
        for thread in threads:
            thread.join()
    assert [error.reason for error in caught] == ["hangup"] * 5
    assert not left.connected
    assert [each.tolist() for each in arrays] == [[float(number)] * 4 for number in range(5)]


def test_hangup__what_was_completed_before_counts(pair: Pair) -> None:
    daemon, left, right = pair
    mine = np.ones(4)
    handle = left.allreduce_async(mine, "sum")
    right.allreduce(np.ones(4), "sum")
    time.sleep(0.05)
    daemon.kill()
    assert handle.wait().complete
    assert mine.tolist() == [2] * 4


def test_reconnect__by_the_op_after_the_loss(pair: Pair) -> None:
    daemon, left, right = pair
    kept = left.empty(8)
    kept[:] = 4
    daemon.kill()
    for job in (left, right):
        with ends_within(0.0), pytest.raises(DaemonLost):
            job.allreduce(np.ones(4), deadline=30)
    with ends_within(0.05), pytest.raises(DaemonUnavailable):
        left.allreduce(np.ones(4), deadline="50ms")
    daemon.restart()
    mine = np.full(8, 2.0, dtype=np.float32)
    first = left.allreduce(np.ones(1)).op_seq
    # Whoever joins a job under way takes the number that comes next there.
    handles = right.allreduce_async(mine), left.allreduce_async(kept)
    assert [handle.wait().status for handle in handles] == [Status.COMPLETE] * 2
    # An array of the lost session is still good memory: it is copied through the new one.
    assert kept.tolist() == mine.tolist() == [3.0] * 8
    assert (left.reconnects, right.reconnects) == (1, 1)
    assert [handle.op_seq for handle in handles] == [first + 1] * 2


def test_reconnect__unnoticed_keeps_the_calls_level(pair: Pair) -> None:
    """The other rank has gone on: what this one calls next is an older op, and must not be added to a newer one."""
    daemon, left, right = pair
    first = [job.allreduce_async(np.ones(4), "sum") for job in pair[1:]]
    assert [handle.wait().status for handle in first] == [Status.COMPLETE] * 2
    daemon.kill()
    daemon.restart()
    assert not left.connected and not right.connected
    for _ in range(3):
        assert left.allreduce(np.ones(4), "sum", deadline="50ms").status is not Status.COMPLETE
    late, out = np.full(4, 7.0), np.zeros(4)
    receipt = right.allreduce(late, "sum")
    assert (receipt.status, receipt.op_seq, receipt.contributors) == (Status.INSUFFICIENT, 1, (1,))
    assert late.tolist() == [7.0] * 4
    assert receipt.bytes_missing == receipt.bytes_expected == late.nbytes
    assert right.allreduce(late, "sum", out=out).op_seq == 2 and out.tolist() == [7.0] * 4
    with pytest.raises(RanksGone, match="op 3: the other ranks did it"):
        right.allreduce(late, "sum", mode="reliable")
    mine, its = np.full(4, 1.0), np.full(4, 4.0)
    receipts = [handle.wait() for handle in (left.allreduce_async(mine, "sum"), right.allreduce_async(its, "sum"))]
    assert [(each.status, each.op_seq) for each in receipts] == [(Status.COMPLETE, 4)] * 2
    assert mine.tolist() == its.tolist() == [5.0] * 4


def test_reconnect__waits_for_the_daemon_within_the_deadline(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.kill()
    with pytest.raises(DaemonLost):
        left.allreduce(np.ones(4))
    timer = threading.Timer(0.2, daemon.restart)
    timer.start()
    assert left.allreduce(np.ones(4), deadline="1s").op_seq == 0, "no daemon has heard of the call that was lost"
    timer.join()


def test_reconnect__not_if_told(alone: MakeJob) -> None:
    with FakeDaemon() as daemon, daemon.connect(arena="64K", reconnect=False) as job:
        daemon.kill()
        daemon.restart()
        for _ in range(2):
            with pytest.raises(DaemonLost):
                job.allreduce(np.ones(4))


def test_connect__no_daemon() -> None:
    with FakeDaemon() as daemon:
        daemon.kill()
        with ends_within(0.1), pytest.raises(DaemonUnavailable):
            daemon.connect(timeout="100ms")
        daemon.restart()
        daemon.freeze()
        with ends_within(0.1), pytest.raises(DaemonUnavailable):
            daemon.connect(timeout="100ms")


@pytest.mark.parametrize("count", [65, 300])
def test_start__any_number_under_way(pair: Pair, count: int) -> None:
    _, left, right = pair
    data = [np.full(3, float(number)) for number in range(count)]

    def other_rank() -> None:
        for number in range(count):
            right.allreduce(np.full(3, float(number)), "sum")

    thread = threading.Thread(target=other_rank)
    thread.start()
    handles = [left.allreduce_async(each, "sum") for each in data]
    for number, handle in enumerate(handles):
        assert handle.wait().op_seq == number
    thread.join()
    assert [each[0] for each in data] == [2.0 * number for number in range(count)]


def test_start__ring_full_until_the_deadline(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.freeze()
    handles = [left.allreduce_async(np.ones(1), deadline=60) for _ in range(64)]
    with ends_within(0.1), pytest.raises(DaemonLost) as caught:
        left.allreduce(np.ones(1), deadline="100ms")
    # The number of that op cannot be skipped, so the session is given up: all others are told.
    assert caught.value.reason == "overrun"
    for handle in handles:
        with pytest.raises(DaemonLost):
            handle.wait()
    daemon.thaw()
    assert left.allreduce(np.ones(1), deadline="200ms").op_seq >= 1, "the engine had opened some before it heard"
    assert left.reconnects == 1


def test_start__arena_full_waits_for_room(alone: MakeJob) -> None:
    job = alone(2, arena=4096 * 4)
    data = [np.full(1024, float(number)) for number in range(20)]
    handles = [job.allreduce_async(each, "sum") for each in data]
    for handle in handles:
        handle.wait()
    assert [each[0] for each in data] == [2.0 * number for number in range(20)]


def test_start__arena_taken_by_the_caller(alone: MakeJob) -> None:
    job = alone(2, arena=4096)
    keep = job.empty(512)
    with ends_within(0.0), pytest.raises(ResourceExhausted, match="2048 are free"):
        job.allreduce(np.ones(512), deadline=60)
    del keep
    assert job.allreduce(np.ones(512)).op_seq == 0


def test_close__ops_under_way_end_with_closed_handle(pair: Pair) -> None:
    _, left, right = pair
    handle = left.allreduce_async(np.ones(4), deadline=60)
    told: list[ultima.UltimaError] = []

    def wait() -> None:
        try:
            handle.wait()
        except ClosedHandle as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    with ends_within(1.0):
        left.close()
        waiting.join()
    assert len(told) == 1
    with pytest.raises(ClosedHandle):
        handle.wait()
    with pytest.raises(ClosedHandle):
        left.allreduce(np.ones(4))
    left.close()
    receipt = right.allreduce(np.ones(4), deadline=20)
    assert receipt.culprit == (0,), "it had called, but nobody adds up the shard of its host any more"
    assert right.allreduce(np.ones(4), deadline=20).peers[0].gone == (0,)


def test_close__results_that_were_there_can_still_be_fetched(alone: MakeJob) -> None:
    job = alone()
    mine, inside = np.ones(4), job.empty(4)
    inside[:] = 1
    handles = [job.allreduce_async(mine, "sum"), job.allreduce_async(inside, "sum")]
    time.sleep(0.05)
    job.close()
    assert [handle.wait().complete for handle in handles] == [True, True]
    assert mine.tolist() == inside.tolist() == [2] * 4


def test_close__of_a_frozen_daemon_is_bounded(pair: Pair) -> None:
    daemon, left, _ = pair
    daemon.freeze()
    with ends_within(1.0):
        left.close("100ms")
    daemon.thaw()


def test_descriptors__none_is_left() -> None:
    def once(*, kill: bool, drop: bool) -> None:
        with FakeDaemon(2) as daemon:
            job = daemon.connect(0, arena="64K")
            handle = job.allreduce_async(np.ones(4), deadline="1ms")
            handle.wait()
            if kill:
                daemon.kill()
                with pytest.raises(DaemonLost):
                    job.allreduce(np.ones(4))
            if not drop:
                job.close()

    once(kill=False, drop=False)
    gc.collect()
    before = open_descriptors()
    for kill in (False, True):
        for drop in (False, True):
            once(kill=kill, drop=drop)
    gc.collect()
    assert open_descriptors() == before


def test_threads__submit_and_wait_at_once(alone: MakeJob) -> None:
    """Each thread's values come back to it; a mix-up of staging memory or of receipts would show."""
    job = alone(3, arena="256K")
    failures: list[str] = []

    def work(number: int) -> None:
        mine = job.empty(50, "float64") if number % 2 else np.empty(50)
        for step in range(100):
            mine[:] = number * 1000 + step
            receipt = job.allreduce(mine, "sum")
            if not receipt.complete or (mine != 3 * (number * 1000 + step)).any():
                failures.append(f"thread {number} step {step}: {receipt} {mine[:3]}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert job.allreduce_async(np.ones(1)).op_seq == 600


def test_threads__waiting_costs_no_cpu(pair: Pair) -> None:
    """Nobody spins: six waiting threads together use a small part of the time that they wait."""
    _, left, _ = pair
    handles = [left.allreduce_async(np.ones(4), deadline="1s") for _ in range(6)]
    threads = [threading.Thread(target=handle.wait) for handle in handles]
    before = time.process_time()
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.process_time() - before < 0.3 * (time.monotonic() - start)


def test_interrupt__leaves_the_array_alone(pair: Pair) -> None:
    daemon, left, right = pair
    mine = np.ones(4)
    daemon.delay(1, 0.2)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        handle = right.allreduce_async(np.ones(4), "sum")
        with pytest.raises(KeyboardInterrupt):
            left.allreduce(mine, "sum", deadline=20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handle.wait().complete, "its contribution was on the way"
    handles = left.allreduce_async(np.ones(4)), right.allreduce_async(np.ones(4))
    assert [each.wait().op_seq for each in handles] == [1, 1]
    assert mine.tolist() == [1] * 4
