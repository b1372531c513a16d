# SPDX-License-Identifier: Apache-2.0
"""Jobs between hosts that are far apart, on ways that lose packets: they form, live, and tell who is gone.

Each op's values say who is in it. What is bounded here is bounded in round trips, generously: the machine is shared.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import ultima
from tests.daemon.trust.papers import Authority
from tests.e2e.hosts import everywhere, new_job_name
from tests.e2e.test_probe import PROBE, RNA, Book
from tests.e2e.test_trouble import until
from tests.lab.cluster import PORT, Cluster
from tests.lab.distance import Far
from tests.lab.lab import Lab
from tests.lab.test_trouble import check_claims, ranks
from ultima.admin.calls import get_status
from ultima.v1 import types_pb2

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(180)]

NEAR_ENOUGH = Far(100, rate_mbit=50)
FAR = Far(300, loss_pct=2, rate_mbit=50)
ELEMENTS = 1000
IDLE_S = 12.0  # a keepalive of every connection, and the patience with its answer
LOST = ("peer daemon lost", "host absent", "watch not renewed", "host not found")  # of a path that was torn down


@contextmanager
def cluster(hosts: int, far: Far, authority: Authority | None = None) -> Iterator[Cluster]:
    with Lab(hosts, far=far) as lab, Cluster(lab, authority=authority) as cluster:
        yield cluster


def sums(cluster: Cluster, jobs: list[ultima.Job], count: int) -> None:
    """So many ops, each of them whole, and its values those of all ranks."""
    place = np.arange(ELEMENTS) * 2 ** len(jobs)
    for number in range(count):
        data = [(place + (1 << rank)).astype(np.float32) for rank in range(len(jobs))]
        receipts = everywhere(jobs, lambda rank, job: job.allreduce(data[rank], "sum", deadline=20.0))  # noqa: B023
        for rank, receipt in enumerate(receipts):
            assert isinstance(receipt, ultima.Receipt), receipt
            assert receipt.complete, (number, lost(cluster), receipt)
            check_claims(receipt, rank, data[rank], place, len(jobs))


def states(cluster: Cluster, index: int) -> list[int]:
    """Of the hosts of the one job that a daemon has."""
    (job,) = get_status(str(cluster.socket(index))).jobs
    return [host.state for host in job.hosts]


def lost(cluster: Cluster) -> list[str]:
    """Lines that tell of a path that was given up."""
    logs = [cluster.log(index) for index in range(len(cluster.lab.hosts))]
    return [line for log in logs for line in log.splitlines() if any(words in line for words in LOST)]


def gone_after(cluster: Cluster, index: int, bound: float) -> float:
    """Seconds until host 0 says that host |index| is gone."""
    began = time.monotonic()
    while states(cluster, 0)[index] != types_pb2.HOST_STATE_ABSENT:
        assert time.monotonic() - began < bound, f"host {index} is not told as gone in {bound} s"
        time.sleep(0.05)
    return time.monotonic() - began


def test_far__a_job_forms_runs_idles_and_tells_of_a_daemon_that_was_killed() -> None:
    with cluster(2, FAR, Authority()) as far, ranks(far) as jobs:
        sums(far, jobs, 20)
        assert far.lab.distance.counts().lost >= 10, "and frames were lost meanwhile"
        time.sleep(IDLE_S)
        assert [states(far, index) for index in (0, 1)] == [[types_pb2.HOST_STATE_UP] * 2] * 2
        sums(far, jobs, 3)
        assert lost(far) == []
        far.daemons[1].kill()
        far.daemons[1].wait()
        assert gone_after(far, 1, 15.0) < 15.0


def test_far__a_job_of_three_without_loss_outlives_a_host_that_vanishes() -> None:
    with cluster(3, NEAR_ENOUGH) as far, ranks(far) as jobs:
        sums(far, jobs, 5)
        assert lost(far) == []
        far.lab.host(2).set_link(up=False)
        gone_after(far, 2, 40.0)  # a keepalive, and the patience with its answer
        place = np.arange(ELEMENTS) * 8
        data = [(place + (1 << rank)).astype(np.float32) for rank in range(2)]
        receipts = everywhere(jobs[:2], lambda rank, job: job.allreduce(data[rank], "sum", deadline=20.0))
        for rank, receipt in enumerate(receipts):
            assert isinstance(receipt, ultima.Receipt), receipt
            assert {*receipt.contributors, *receipt.partly} == {0, 1}, "all but the shard of the one that is gone"
            check_claims(receipt, rank, data[rank], place, 3)


def test_far__probes_start_ops() -> None:
    with cluster(3, FAR) as far, ranks(far, PROBE) as jobs:
        book = Book([job.partial(**RNA) for job in jobs])
        for step in range(4):
            assert book.step(step).policy == "probe"
        (status,) = get_status(str(far.socket(0))).jobs
        assert status.probes.decided_count >= 4 and lost(far) == []


def test_far__a_rank_registers_before_the_coordinator_is_in_and_is_told_whom_it_waits_for() -> None:
    with cluster(2, FAR) as far:
        name, where = new_job_name(), f"{far.addresses[0]}:{PORT}"
        wanted = rf"waiting for rank 0 of 2 \(1 is here\); coordinator {where}"
        with pytest.warns(ultima.UltimaWarning, match=wanted) as told:

            def join(rank: int, _: int) -> ultima.Job:
                if rank == 0:  # not before the other was told: on a path that loses packets that takes its time
                    until(lambda: any(re.search(wanted, str(each.message)) for each in told), 30)
                return ultima.connect(name, rank, 2, far.socket(rank), where, timeout=60, arena="1M")

            jobs = everywhere([0, 1], join)
        assert all(isinstance(job, ultima.Job) for job in jobs), jobs
        sums(far, jobs, 2)
        for job in jobs:
            job.close()
