# SPDX-License-Identifier: Apache-2.0
"""Daemons stopped and killed, trainers killed at every step, ranks that disagree.

The only clock asserted is "returns by its deadline", with generous grace: the machine of a test is busy.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import ADDRESS, DaemonProcess, Hosts, complete_soon, connect_all, everywhere, new_job_name, ranks
from tests.e2e.trainer import LARGE, STEPS
from ultima import DaemonLost, Desync, Status, Trouble
from ultima.admin.calls import get_receipts
from ultima.admin.sentences import explain
from ultima.cli.explain import decoded

Daemons = Callable[[int], Hosts]
ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 3.0


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + GRACE_S


def until(what: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Waits for something to become true, and says whether it did."""
    limit = time.monotonic() + seconds
    while not what():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def join(name: str, rank: int, world: int, host: DaemonProcess, first: DaemonProcess) -> ultima.Job:
    """One rank, on `host`; the others join elsewhere."""
    return ultima.connect(name, rank, world, host.socket, first.rendezvous, timeout=30, deadline=20, arena="16M")


# Ranks of one host


def test_ranks_of_one_host__all_that_is_told_of_an_op_names_those_it_lacks(daemons: Daemons) -> None:
    """Of three one leaves, then another: receipts, the exception of a reliable op, and what the daemon remembers."""
    (host,) = daemons(1)
    with ranks([host] * 3) as jobs:
        assert complete_soon(jobs)
        jobs[1].close()
        data = [np.full(1000, 2.0**rank) for rank in range(3)]
        two = everywhere([jobs[0], jobs[2]], lambda at, job: job.allreduce(data[2 * at], "sum"))
        for receipt in two:
            assert (receipt.status, receipt.contributors, receipt.partly) == (Status.PARTIAL, (0, 2), ())
            assert (receipt.gone, receipt.culprit, receipt.trouble) == ((1,), (1,), Trouble.GONE)
            assert "ranks 0 2 in every element, rank 1 gone, rank 1 to blame: gone" in str(receipt)
        assert (data[0] == 5.0).all() and (data[2] == 5.0).all()
        jobs[2].close()
        own = jobs[0].allreduce(data[0], "sum")
        assert (own.status, own.contributors, own.partly) == (Status.INSUFFICIENT, (0,), ())
        assert own.gone == own.culprit == (1, 2) and (data[0] == 5.0).all()
        with pytest.raises(ultima.RanksGone, match=r"\(reliable\): ranks 1-2 cannot take part any more") as caught:
            jobs[0].allreduce(data[0], "sum", mode="reliable")
        assert caught.value.ranks == (1, 2)
        told = explain(*decoded(get_receipts(str(host.socket), jobs[0].name, caught.value.receipt.op_seq)))
        assert any(line.startswith("To blame: host 0 at 127.0.0.1 (ranks 1-2)") for line in told), told


# A daemon stopped


def test_stopped_daemon__costs_its_trainer_the_deadline_and_no_more(daemons: Daemons) -> None:
    """Its trainer goes on with own values; where those are no result the error says that the daemon lives."""
    hosts = daemons(3)
    with ranks(hosts) as jobs:
        assert complete_soon(jobs)
        hosts[2].suspend()
        data = [np.full(1000, 1.0 + rank) for rank in range(3)]
        stopped = rf"its process {hosts[2].pid} is stopped by a signal"
        with ends_within(0.5), pytest.warns(ultima.UltimaWarning, match=stopped):
            results = everywhere(jobs, lambda rank, job: job.allreduce(data[rank], "sum", deadline="500ms"))
        assert results[2].status is Status.INSUFFICIENT and results[2].trouble is Trouble.DAEMON, results[2]
        assert results[2].contributors == results[2].culprit == (2,)
        assert (data[2] == 3.0).all(), "untouched"
        for rank in (0, 1):
            assert results[rank].status is Status.PARTIAL, results[rank]
            assert 2 in results[rank].missing_ranks and results[rank].culprit == (2,)
        # Whatever its daemon got through before it was stopped, every element is a sum of ranks.
        assert set(np.concatenate(data[:2]).tolist()) <= {1.0, 2.0, 3.0, 6.0}
        with ends_within(0.3), pytest.raises(ultima.DaemonUnavailable):
            ultima.connect(new_job_name(), 0, 1, hosts[2].socket, timeout="300ms")
        with ends_within(0.3), pytest.raises(DaemonLost, match=f"did not hang up: {stopped}") as caught:
            jobs[2].allreduce(np.ones(10), mode="reliable", deadline="300ms")
        assert caught.value.reason == "unresponsive"
        for receipt in everywhere(jobs[:2], lambda _, job: job.allreduce(np.ones(10), mode="reliable", deadline=0.3)):
            assert isinstance(receipt, ultima.DeadlineExceeded | ultima.RanksGone)
        hosts[2].signal(signal.SIGCONT)
        assert complete_soon(jobs), "the session goes on where it was"
        assert (data[2] == 3.0).all(), "what came of it in the end was thrown away"
        assert jobs[2].reconnects == 0


def test_stopped_daemon__close_is_bounded(daemons: Daemons) -> None:
    (host,) = daemons(1)
    (job,) = connect_all([host])
    host.suspend()
    handle = job.allreduce_async(np.ones(10), deadline=20)
    with ends_within(0.2):
        job.close("200ms")
    with pytest.raises(ultima.ClosedHandle):
        handle.wait()
    host.signal(signal.SIGCONT)


# A daemon killed


@pytest.mark.parametrize("victim", [0, 2])
def test_killed_daemon__is_told_at_once_and_rejoined(daemons: Daemons, victim: int) -> None:
    """Rank 0's daemon is the coordinator of the job, so its death is a case of its own."""
    hosts = daemons(3)
    with ranks(hosts) as jobs:
        assert complete_soon(jobs)
        mine = np.full(30_000, 7.0)
        handle = jobs[victim].allreduce_async(mine, "sum", deadline=20)
        hosts[victim].kill()
        with ends_within(0.1), pytest.raises(DaemonLost) as caught:
            handle.wait()
        assert caught.value.reason == "hangup"
        assert (mine == 7.0).all()
        others = [rank for rank in range(3) if rank != victim]
        survivors = [jobs[rank] for rank in others]
        both, began = 2.0 + sum(others), time.monotonic()
        for sent in (7.0, 0.0):  # what the lost rank had sent of its op may be in that one's sums
            data = [np.full(30_000, 1.0 + rank) for rank in others]
            for receipt in everywhere(
                survivors, lambda at, job, data=data: job.allreduce(data[at], "sum", deadline=20)
            ):
                assert receipt.status is Status.PARTIAL and victim in receipt.missing_ranks, receipt
                assert receipt.culprit == (victim,)
            for rank, array in zip(others, data, strict=True):
                # The shard of the lost host has nobody to sum it up: each rank keeps its own there. Once the others
                # have agreed that the shard is one of theirs, all is summed up.
                assert set(array.tolist()) <= {1.0 + rank, both, both + sent}
                summed = np.mean(array != 1.0 + rank)
                assert 0.6 < summed < 0.7 or summed == 1.0
        assert time.monotonic() - began < 5.0, "nobody waits for the dead"

        def they_go_on() -> bool:
            receipts = everywhere(survivors, lambda _, job: job.allreduce(np.ones(1000), deadline="1s"))
            return all(receipt.peers[rank].missing_bytes == (0, 0) for receipt in receipts for rank in others)

        assert until(they_go_on), "the survivors do not find each other any more"
        with ends_within(0.3), pytest.raises(ultima.DaemonError):
            jobs[victim].allreduce(np.ones(1000), deadline="300ms")
        hosts[victim].launch()
        hosts[victim].wait_until_ready()
        assert complete_soon(jobs), hosts[victim].log()
        assert jobs[victim].reconnects >= 1
        assert [jobs[rank].reconnects for rank in others] == [0, 0]


def test_killed_daemon__arena_arrays_outlive_it(daemons: Daemons) -> None:
    (host,) = daemons(1)
    with ranks([host]) as jobs:
        data = jobs[0].empty(1000)
        data[:] = 5
        host.kill()
        with pytest.raises(DaemonLost):
            jobs[0].allreduce(data)
        data[:] = 6
        host.launch()
        assert jobs[0].allreduce(data, "sum", deadline=30).complete, "it waits for the daemon, within its deadline"
        assert (data == 6).all()


def test_told_to_stop__an_op_looks_for_the_next_daemon_within_its_deadline(daemons: Daemons) -> None:
    (host,) = daemons(1)
    with ranks([host]) as jobs:
        assert jobs[0].allreduce(np.ones(3)).complete
        assert host.stop() == 0
        with ends_within(0.3):
            assert jobs[0].allreduce(np.ones(3), deadline="300ms").status is Status.INSUFFICIENT
        with ends_within(0.3), pytest.raises(ultima.DaemonError):
            jobs[0].allreduce(np.ones(3), mode="reliable", deadline="300ms")


# A trainer killed


def start_trainer(step: str, name: str, rank: int, world: int, host: DaemonProcess, first: DaemonProcess) -> Any:
    command = [sys.executable, "-m", "tests.e2e.trainer", step, name, str(rank), str(world), str(host.socket)]
    return subprocess.Popen(
        [*command, first.rendezvous], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )


@pytest.mark.parametrize("step", [step for step in STEPS if step != "attached"])
def test_killed_trainer__others_go_on_and_its_place_is_free(four: Hosts, step: str) -> None:
    name, data = new_job_name(), [np.full(LARGE, 1.0 + rank, dtype=np.float32) for rank in range(2)]
    trainer = start_trainer(step, name, 2, 3, four[2], four[0])
    try:
        survivors = everywhere(four[:2], lambda rank, host: join(name, rank, 3, host, four[0]))
        assert trainer.stdout.readline() == "ready\n"
        handles = [job.allreduce_async(each, "sum", deadline="2s") for job, each in zip(survivors, data, strict=True)]
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        with ends_within(2.0):
            receipts = [handle.wait() for handle in handles]
        assert trainer.wait(10) == -signal.SIGKILL
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdin.close()
        trainer.stdout.close()
    for receipt, result in zip(receipts, data, strict=True):
        # With it or without it, and in part if it died half way; but nobody else is lost, and nothing is counted twice.
        assert receipt.status in (Status.COMPLETE, Status.PARTIAL), receipt
        assert set(np.unique(result)) <= {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
        if step in ("completed", "received"):
            assert receipt.complete, receipt
        if step == "joined":
            assert 2 in receipt.missing_ranks and receipt.culprit == (2,), receipt
            # The sum of both that are left, but for the shard of the dead host: there everyone has its own value.
            assert np.count_nonzero(result == 3.0) > LARGE // 2 and 6.0 not in result
            assert receipt.elapsed_s < 1.9, "a dead trainer is not waited for"
    with ends_within(1.0):
        back = join(name, 2, 3, four[2], four[0])
    jobs = [*survivors, back]
    assert complete_soon(jobs)
    for job in jobs:
        job.close()


def test_killed_trainer__before_it_joined(four: Hosts) -> None:
    trainer = start_trainer("attached", new_job_name(), 0, 1, four[0], four[0])
    try:
        assert trainer.stdout.readline() == "ready\n"
    finally:
        trainer.communicate("\n", timeout=10)
    with ranks(four[:1]) as jobs:
        assert jobs[0].allreduce(np.ones(3)).complete


def test_killed_trainer__with_a_fellow_on_its_host(four: Hosts) -> None:
    """The host goes on with the rank that it has left, and all know which one it is."""
    name = new_job_name()
    trainer = start_trainer("joined", name, 2, 3, four[1], four[0])
    try:
        jobs = everywhere(four[:2], lambda rank, host: join(name, rank, 3, host, four[0]))
        assert trainer.stdout.readline() == "ready\n"
    finally:
        trainer.communicate("\n", timeout=10)
    results = everywhere(jobs, lambda rank, job: job.allreduce(np.full(900, 1.0 + rank), deadline="2s"))
    for receipt in results:
        assert receipt.status is Status.PARTIAL and receipt.weight_min == 2, receipt
        assert receipt.elapsed_s < 1.9
        assert (receipt.contributors, receipt.partly, receipt.culprit) == ((0, 1), (), (2,))
    for job in jobs:
        job.close()


def test_reliable__silent_peer_is_named_at_the_deadline(four: Hosts) -> None:
    with ranks(four[:2]) as jobs:
        mine = np.ones(100)
        with ends_within(0.3), pytest.raises(ultima.DeadlineExceeded) as caught:
            jobs[0].allreduce(mine, "sum", mode="reliable", deadline="300ms")
        assert caught.value.receipt is not None and caught.value.receipt.status is Status.FAILED
        assert (mine == 1).all()


# Ranks that disagree

DIFFERENT: list[tuple[str, dict[str, Any], object, object]] = [
    ("dtype", {"array": np.zeros(1000, dtype=np.float64)}, "float32", "float64"),
    ("count", {"array": np.zeros(999, dtype=np.float32)}, 1000, 999),
    ("op", {"op": "sum"}, "avg", "sum"),
    ("mode", {"mode": "reliable"}, "bounded", "reliable"),
]


@pytest.mark.parametrize(("field", "odd", "usual_value", "odd_value"), DIFFERENT, ids=[row[0] for row in DIFFERENT])
@pytest.mark.parametrize("layout", [(0, 1, 2), (0, 1, 1)], ids=["host each", "two on a host"])
def test_desync__every_rank_is_told(
    four: Hosts, field: str, odd: dict[str, Any], usual_value: object, odd_value: object, layout: tuple[int, ...]
) -> None:
    usual = {"op": "avg", "mode": "bounded", "deadline": "2s"}

    def one(rank: int, job: ultima.Job) -> ultima.Receipt:
        mine = {**usual, "array": np.zeros(1000, dtype=np.float32), **(odd if rank == 2 else {})}
        return job.allreduce(**mine)

    with ranks([four[host] for host in layout]) as jobs:
        with ends_within(2.0):
            errors = everywhere(jobs, one)
        for rank, error in enumerate(errors):
            assert isinstance(error, Desync), f"rank {rank}: {error!r}"
            assert error.field == field
            assert error.rank != rank
        # Ranks of one host share one account of the difference; it may not name the odd one to other hosts.
        for rank in range(3) if layout == (0, 1, 2) else (1, 2):
            mine, theirs = (odd_value, usual_value) if rank == 2 else (usual_value, odd_value)
            assert (errors[rank].mine, errors[rank].theirs) == (mine, theirs), f"rank {rank}"
        if layout == (0, 1, 2):
            assert errors[0].rank == errors[1].rank == 2
        else:
            assert (errors[1].rank, errors[2].rank) == (2, 1)
        # The mistake is over: the next calls meet again.
        for receipt in everywhere(jobs, lambda _, job: job.allreduce(np.ones(10), deadline="10s")):
            assert receipt.complete


def test_desync__world_size_at_the_join(four: Hosts) -> None:
    name = new_job_name()

    def join(rank: int, host: DaemonProcess) -> ultima.Job:
        return ultima.connect(name, rank, 2 + rank, host.socket, four[0].rendezvous, timeout="4s")

    with ends_within(4.0):
        errors = everywhere(four[:2], join)
    told = [error for error in errors if isinstance(error, Desync)]
    assert told and all(isinstance(error, ultima.UltimaError) for error in errors), errors
    for error in told:
        assert error.field == "world_size"
        assert "world_size" in str(error) and "2" in str(error) and "3" in str(error)
        assert str(error).count(f"job {name!r}") == 1 and str(error).endswith("; give all ranks the same")
        assert error.__cause__ is None and error.__suppress_context__, "a traceback of gRPC says nothing more"


# Joining


def test_join__missing_rank_is_named(four: Hosts) -> None:
    with ends_within(1.5), pytest.raises(ultima.JoinTimeout) as caught:
        ultima.connect(new_job_name(), 0, 2, four[0].socket, four[0].rendezvous, timeout="1.5s")
    assert "ranks 1 of world_size 2 have not joined" in str(caught.value)


def test_join__rank_that_is_taken(four: Hosts) -> None:
    name = new_job_name()
    with ranks(four[:1], job=name), pytest.raises(ultima.JoinRefused):
        ultima.connect(name, 0, 1, four[0].socket, four[0].rendezvous, timeout="10s", arena="64K")


def test_join__addresses_of_ranks_instead_of_a_rendezvous(four: Hosts) -> None:
    name, addresses = new_job_name(), [f"{ADDRESS}:{host.port}" for host in four[:2]]

    def join(rank: int, host: DaemonProcess) -> ultima.Job:
        return ultima.connect(name, rank, 2, host.socket, rank_addresses=addresses, timeout=30, arena="1M")

    jobs = everywhere(four[:2], join)
    assert complete_soon(jobs)
    for job in jobs:
        job.close()


def test_join__arena_over_the_daemons_limit(four: Hosts) -> None:
    with pytest.raises(ultima.ResourceExhausted, match="arena_bytes"):
        ultima.connect(new_job_name(), 0, 1, four[0].socket, arena="100G", timeout=5)


def test_fork__child_of_a_trainer_ends_and_the_trainer_goes_on(four: Hosts) -> None:
    with ranks(four[:2]) as jobs:
        assert complete_soon(jobs)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                jobs[0].allreduce(np.ones(3))
            except ultima.ForkedHandle:
                for job in jobs:
                    job.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert complete_soon(jobs)
