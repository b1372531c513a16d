# SPDX-License-Identifier: Apache-2.0
"""Two lanes over real daemons: ops take turns on two ports, one that waits holds up only its own ops, none is lost."""

import threading
import time

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import DaemonProcess, Hosts, everywhere, ranks, running
from ultima import Status
from ultima.admin.calls import get_status
from ultima.daemon.base.cpus import cpus

BOTH = ultima.Options(split="always")
"""A job with all lanes of its daemons, however few CPUs this machine has; ops that are this small are not split."""


def lanes_of(host: DaemonProcess) -> list[dict[str, int]]:
    """The counters of each lane of a daemon."""
    return [dict(lane.counters) for lane in get_status(str(host.socket)).engine.lanes]


def moved(before: list[dict[str, int]], after: list[dict[str, int]], name: str) -> list[int]:
    return [now[name] - then[name] for then, now in zip(before, after, strict=True)]


def test_lanes__ops_take_turns_on_two_ports(four: Hosts) -> None:
    hosts = four[:2]
    for host in hosts:
        engine = get_status(str(host.socket)).engine
        ports = [port for lane in engine.lanes for port in (lane.data_port, lane.feedback_port)]
        assert len(set(ports)) == 4 and ports == list(range(host.port + 1, host.port + 5))
    before = [lanes_of(host) for host in hosts]
    with ranks(hosts, options=BOTH) as jobs:
        for pair in range(5):
            arrays = [[np.full(30_000, 2.0 * pair + i + rank, np.float32) for rank in range(2)] for i in range(2)]
            handles = [[job.allreduce_async(a[job.rank], "sum") for job in jobs] for a in arrays]
            for i, handle in enumerate(handles):
                for rank in range(2):
                    receipt = handle[rank].wait()
                    assert receipt.complete and receipt.op_seq == 2 * pair + i
                    assert (arrays[i][rank] == 2 * (2.0 * pair + i) + 1).all()
        for rank, host in enumerate(hosts):
            after = lanes_of(host)
            assert moved(before[rank], after, "ops_complete") == [5, 5]
            # Half of each bucket comes in, twice, in packets of 1440 bytes of payload: 84 packets an op.
            assert all(packets >= 5 * 84 for packets in moved(before[rank], after, "data_used"))


def test_lanes__a_job_has_no_more_than_there_are_cpus_for(four: Hosts) -> None:
    """Each host has one rank here, and all hosts this machine's CPUs."""
    for options, wanted in ((None, max(1, min(2, cpus() - 1))), (BOTH, 2)):
        with ranks(four[:2], options=options) as jobs:
            assert [job.lanes for job in jobs] == [wanted] * 2
            for _ in range(3):
                arrays = [np.full(5000, 1.0 + rank, np.float32) for rank in range(2)]
                receipts = everywhere(jobs, lambda rank, job: job.allreduce(arrays[rank], "sum"))  # noqa: B023
                assert all(receipt.complete for receipt in receipts) and all((each == 3.0).all() for each in arrays)
            shown = [job.lanes for job in get_status(str(four[0].socket)).jobs]
            assert shown == [wanted]


def test_lanes__one_that_waits_does_not_stop_the_other(four: Hosts) -> None:
    """Rank 1 never calls op 0: ops 1, 3, 5 are complete long before the deadline of op 0, which ends at it."""
    with ranks(four[:2], options=BOTH) as jobs:
        jobs[1]._connection.session._next_seq = 1
        lonely = np.full(1000, 3.0, np.float32)
        waiting = jobs[0].allreduce_async(lonely, "avg", deadline="1s")
        for number in (1, 3, 5):
            arrays = [np.full(1000, number + rank, np.float32) for rank in range(2)]
            handles = [job.allreduce_async(each, "sum") for job, each in zip(jobs, arrays, strict=True)]
            for handle, array in zip(handles, arrays, strict=True):
                receipt = handle.wait()
                assert receipt.op_seq == number and receipt.complete and (array == 2 * number + 1).all()
            for job in jobs:
                job._connection.session._next_seq = number + 2
        assert not waiting.done(), "they waited for op 0"
        assert waiting.wait().status is Status.INSUFFICIENT and (lonely == 3.0).all()


def test_lanes__any_number_is_queued_and_keeps_its_order(four: Hosts) -> None:
    """Three hundred calls before the first wait, more than the rings hold; each op meets its own of the other rank."""
    count = 300
    with ranks(four[:2], options=BOTH) as jobs:

        def call_all(rank: int, job: ultima.Job) -> list[tuple[int, float]]:
            arrays = [np.full(64, 1000.0 * rank + i, np.float32) for i in range(count)]
            handles = [job.allreduce_async(array, "sum") for array in arrays]
            receipts = [handle.wait() for handle in handles]
            assert all(receipt.complete for receipt in receipts)
            return [(receipt.op_seq, float(array[0])) for receipt, array in zip(receipts, arrays, strict=True)]

        wanted = [(i, 1000.0 + 2 * i) for i in range(count)]
        for answer in everywhere(jobs, call_all):
            assert answer == wanted, answer


@pytest.mark.parametrize("ops_before", [3, 4])
def test_lanes__after_a_death_the_job_goes_on_with_the_next_op(ops_before: int) -> None:
    """The newest op of the job lies in either lane when a daemon dies; then ops of both lanes are complete again."""
    with running(2) as hosts, ranks(hosts, options=BOTH) as jobs:

        def call(job: ultima.Job) -> ultima.Receipt:
            array = np.full(2000, 1.0 + 9.0 * job.rank, np.float32)
            receipt = job.allreduce(array, "sum", deadline="2s")
            assert not receipt.complete or (array == 11.0).all()
            return receipt

        for number in range(ops_before):
            for receipt in everywhere(jobs, lambda rank, job: call(job)):
                assert receipt.complete and receipt.op_seq == number
        hosts[1].kill()
        hosts[1].launch()
        hosts[1].wait_until_ready()
        enough = threading.Barrier(2)

        def go_on(rank: int, job: ultima.Job) -> list[int]:
            complete: list[int] = []
            limit = time.monotonic() + 40
            while min(sum(seq % 2 == lane for seq in complete) for lane in (0, 1)) < 3 and time.monotonic() < limit:
                try:
                    receipt = call(job)
                except ultima.DaemonError:
                    continue
                complete += [receipt.op_seq] if receipt.complete else []
            enough.wait(40)  # whoever closes first would leave the other alone
            return complete

        first, second = everywhere(jobs, go_on)
        assert first == second, (first, second)
        assert len(first) >= 6 and first[0] >= ops_before and {seq % 2 for seq in first} == {0, 1}


def test_lanes__hosts_with_different_counts_use_the_least() -> None:
    with running(2) as hosts:
        hosts[1].kill()
        hosts[1].lanes = 1
        hosts[1].launch()
        hosts[1].wait_until_ready()
        with ranks(hosts, options=BOTH) as jobs:
            for number in range(4):
                arrays = [np.full(5000, number + rank, np.float32) for rank in range(2)]
                handles = [job.allreduce_async(each, "sum") for job, each in zip(jobs, arrays, strict=True)]
                for handle, array in zip(handles, arrays, strict=True):
                    receipt = handle.wait()
                    assert receipt.complete and receipt.op_seq == number and (array == 2 * number + 1).all()
            assert [lane["ops_complete"] for lane in lanes_of(hosts[0])] == [4, 0]
            assert [lane["ops_complete"] for lane in lanes_of(hosts[1])] == [4]
