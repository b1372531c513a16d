# SPDX-License-Identifier: Apache-2.0
"""ProcessGroupUltima under a manager that calls it as torchft's does. Replicas are threads at one daemon; what depends
on several hosts is in `test_hosts.py`.
"""

import gc
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._C._distributed_c10d import ReduceScatterOptions  # noqa: E402

from tests.torch.ft.manager import Lighthouse, Manager, replicas  # noqa: E402
from ultima import ClosedHandle, InvalidArgument, JoinTimeout, RanksGone  # noqa: E402
from ultima.demo.cluster import Cluster  # noqa: E402
from ultima.torch.ft import ProcessGroupUltima  # noqa: E402

STEPS = 6
PATIENT = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def _daemon(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ULTIMA_SOCKET", str(cluster.sockets[0]))
    yield


def gradient(replica: int, step: int, count: int = 1000) -> Any:
    """Powers of two: a sum says who is in it."""
    return torch.full((count,), float(1 << replica) * (step + 1))


def test_steps__members_leave_and_come_back() -> None:
    """Replica 2 dies after step 1 and is back by step 4; every committed average is of the members of its quorum."""
    back = threading.Event()

    def run(replica: int, house: Lighthouse) -> list[Any]:
        manager = Manager(ProcessGroupUltima(PATIENT), house, replica)
        seen, step = [], 0
        while step < STEPS:
            if replica == 2 and step == 2 and not back.is_set():
                manager.pg.shutdown()
                house.leave(2)
                assert back.wait(30)
                manager, step = Manager(ProcessGroupUltima(PATIENT), house, replica), 4
            if replica == 0 and step == 4 and not back.is_set():
                house.join(2)
                back.set()
            manager.start_quorum()
            value = gradient(replica, step)
            manager.allreduce(value)
            assert manager.should_commit(), manager.error
            seen.append((step, manager.members, sorted(set(value.tolist()))))
            step += 1
        manager.pg.shutdown()
        return seen

    found = replicas(3, run)
    assert found[0] == found[1], found
    assert found[2] == [row for row in found[0] if 2 in row[1]]
    assert [row[1] for row in found[0]] == [[0, 1, 2]] * 2 + [[0, 1]] * 2 + [[0, 1, 2]] * 2
    for step, members, values in found[0]:
        assert values == pytest.approx([sum((1 << each) * (step + 1) for each in members) / len(members)])


def test_step__of_which_a_member_died_is_not_taken() -> None:
    """It dies inside the step: the others' sum lacks it, and their vote says no. The next quorum is without it."""

    def run(replica: int, house: Lighthouse) -> Any:
        manager = Manager(ProcessGroupUltima(PATIENT), house, replica)
        manager.start_quorum()
        if replica == 2:
            house.leave(2)
            manager.pg.abort()
            return type(manager.pg.errored())
        lacking = gradient(replica, 0)
        manager.allreduce(lacking)
        committed, error = manager.should_commit(), manager.error
        manager.start_quorum()
        value = gradient(replica, 0)
        manager.allreduce(value)
        after = manager.should_commit(), value[0].item()
        manager.pg.shutdown()
        return committed, error, after

    *stayed, left = replicas(3, run)
    assert left is ClosedHandle
    for committed, error, after in stayed:
        assert (committed, after) == (False, (True, 1.5)) and isinstance(error, RanksGone), (committed, error, after)


def test_step__of_which_nobody_awaits_the_work_is_not_taken_either() -> None:
    def run(replica: int, house: Lighthouse) -> Any:
        manager = Manager(ProcessGroupUltima(PATIENT), house, replica)
        manager.start_quorum()
        if replica == 1:
            manager.pg.shutdown()
            return manager.pg.errored()
        work = manager.pg.allreduce([gradient(0, 0, 400_000)], torch.distributed.ReduceOp.SUM)
        limit = time.monotonic() + 20
        while not work.is_completed() and time.monotonic() < limit:
            time.sleep(0.01)
        taken = manager.should_commit()
        manager.error = None
        again = manager.should_commit()
        manager.pg.shutdown()
        return taken, again

    assert replicas(2, run) == [(False, True), None], "an error is told once"


def test_step__with_a_late_member_is_taken() -> None:
    def run(replica: int, house: Lighthouse) -> Any:
        manager = Manager(ProcessGroupUltima(PATIENT), house, replica)
        manager.start_quorum()
        if replica == 1:
            time.sleep(0.3)
        value = gradient(replica, 0)
        manager.allreduce(value)
        taken = manager.should_commit(), value[0].item()
        manager.pg.shutdown()
        return taken

    assert replicas(2, run) == [(True, 1.5)] * 2


def test_configure__ends_what_is_under_way_with_an_error() -> None:
    def run(replica: int, house: Lighthouse) -> Any:
        pg = ProcessGroupUltima(PATIENT)
        where = f"127.0.0.1:{house.store.port}"
        pg.configure(f"{where}/one", "", replica, 2, 1)
        job = pg.job.name
        work = pg.allreduce([gradient(0, 0)], torch.distributed.ReduceOp.SUM) if replica == 0 else None
        pg.configure(f"{where}/two", "", replica, 2, 2)
        error = None
        if work is not None:
            with pytest.raises((ClosedHandle, RanksGone)) as raised:
                work.wait()
            error = raised.type
        value = gradient(replica, 0)
        pg.allreduce([value], torch.distributed.ReduceOp.SUM).wait()
        fine, other = pg.errored() is None, pg.job.name != job
        pg.shutdown()
        return error in (None, ClosedHandle, RanksGone), fine, other, value[0].item()

    assert replicas(2, run) == [(True, True, True, 3.0)] * 2


def test_configure__fails_within_its_time_and_may_be_called_again() -> None:
    house = Lighthouse(1)
    pg = ProcessGroupUltima(timedelta(seconds=0.2))
    with pytest.raises(JoinTimeout):
        pg.configure(f"127.0.0.1:{house.store.port}/alone", "", 0, 2, 1)
    with pytest.raises(ClosedHandle, match="process group not initialized"):
        pg.allreduce([torch.ones(1)])
    pg.set_timeout(PATIENT)
    pg.configure(f"127.0.0.1:{house.store.port}/again", "", 0, 1, 2)
    assert (pg.size(), pg.rank(), pg.job, pg.errored()) == (1, 0, None, None)
    value = torch.ones(1)
    pg.allreduce([value]).get_future().wait()
    assert value.item() == 1
    scattered = torch.zeros(1)
    pg.reduce_scatter([scattered], [[torch.ones(1)]], ReduceScatterOptions()).get_future().wait()
    assert scattered.item() == 1
    pg.shutdown()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (lambda: ProcessGroupUltima(lacking="ignore"), "lacking"),
        (lambda: ProcessGroupUltima(timedelta(0)), "timeout"),
        (lambda: ProcessGroupUltima(deadline="soon"), "deadline"),
        (lambda: ProcessGroupUltima().configure("localhost/x", "", 0, 1), "store_addr"),
        (lambda: ProcessGroupUltima().configure("localhost:1234", "", 0, 1), "store_addr"),
        (lambda: ProcessGroupUltima().configure("localhost:1234/x", "", 2, 2), "rank"),
    ],
)
def test_bad_input__is_named(given: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        given()
    assert raised.value.field == field


@pytest.mark.check
def test_configure__leaves_nothing_behind() -> None:
    """Descriptors, threads and memory after a hundred configures are what they were after ten.

    They are counted while both replicas stand in the same generation, and all threads of the one before have ended.
    """
    process = psutil.Process(os.getpid())
    both = threading.Barrier(2, timeout=60)
    counts = []
    early, late = range(5, 10), range(95, 100)

    def run(replica: int, house: Lighthouse) -> None:
        pg = ProcessGroupUltima(PATIENT)
        for number in range(100):
            pg.configure(f"127.0.0.1:{house.store.port}/{number}", "", replica, 2, number)
            value = gradient(replica, 0)
            pg.allreduce([value], torch.distributed.ReduceOp.SUM).wait()
            assert value[0].item() == 3.0
            if number in (*early, *late):
                both.wait()
                if replica == 0:
                    counts.append(_held(process))
                both.wait()
        pg.shutdown()

    assert replicas(2, run) == [None, None]
    descriptors, threads, memory = map(min, zip(*counts[: len(early)], strict=True))
    descriptors_after, threads_after, memory_after = map(min, zip(*counts[len(early) :], strict=True))
    assert descriptors_after <= descriptors + 16 and threads_after <= threads + 8, counts
    assert memory_after < memory + (24 << 20), counts


def _held(process: psutil.Process) -> tuple[int, int, int]:
    gc.collect()
    return process.num_fds(), process.num_threads(), process.memory_info().rss
