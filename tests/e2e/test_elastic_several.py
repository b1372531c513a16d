# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs with several ranks on each host, which come and go together. Each rank is a process's as far as a daemon
can tell: it has its own session. Ranks are numbered host * EACH + place, and give 2 to the power of that number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import pytest

import ultima
from tests.e2e.elastic import Jobs, N, enter, summed, whole_soon
from tests.e2e.hosts import DaemonProcess, Hosts, everywhere, new_job_name
from ultima import DaemonLost, Desync, ElasticJob, InvalidArgument, JoinRefused, JoinTimeout, Status
from ultima.admin.calls import get_status

EACH = 2


def enter_host(
    number: int, host: DaemonProcess, meet: DaemonProcess, job: str, **rules: object
) -> dict[int, ElasticJob]:
    """All ranks of a host, by their numbers."""

    def one(_: int, local: int) -> ElasticJob:
        return enter(host, meet, job, local_world_size=EACH, local_rank=local, **rules)

    made = everywhere(range(EACH), one)
    assert all(isinstance(job, ElasticJob) for job in made), made
    return {number * EACH + local: job for local, job in enumerate(made)}


def enter_hosts(
    hosts: dict[int, DaemonProcess], meet: DaemonProcess, job: str, **rules: object
) -> dict[int, ElasticJob]:
    made = everywhere(list(hosts.items()), lambda _, each: enter_host(*each, meet, job, **rules))
    assert all(isinstance(found, dict) for found in made), made
    return {number: job for found in made for number, job in found.items()}


def take(jobs: dict[int, ElasticJob], host: int) -> list[ElasticJob]:
    """The jobs of the ranks of a host, which are in `jobs` no more."""
    return [jobs.pop(host * EACH + local) for local in range(EACH)]


def close(jobs: Iterable[ElasticJob]) -> None:
    for job in jobs:
        job.close()


def test_several__ranks_of_a_host_come_and_go_together(daemons: Callable[[int], Hosts]) -> None:
    """A seat has the ranks of one host after another. Each receipt names the ranks of its view, and just those are in
    the sum."""
    *found, meet = daemons(4)
    hosts, name = dict(enumerate(found)), new_job_name()
    jobs = enter_hosts({0: hosts[0], 1: hosts[1]}, meet, name, most=2)
    try:
        whole_soon(jobs)
        assert {job.view.ranks for job in jobs.values()} == {(0, 1, 2, 3)} and jobs[0].seats == 4
        assert sorted(job.rank for job in jobs.values()) == [0, 1, 2, 3]
        assert all(
            jobs[2 * host].rank % 2 == 0 and jobs[2 * host + 1].rank == jobs[2 * host].rank + 1 for host in (0, 1)
        )
        left = take(jobs, 1)
        assert everywhere(left, lambda _, job: job.leave()) == [None, None]
        whole_soon(jobs)
        assert jobs[0].view.world_size == 2 and "leaves" in jobs[0].view.why
        jobs |= enter_host(2, hosts[2], meet, name, most=2)
        whole_soon(jobs)
        assert [job.rank for job in (jobs[4], jobs[5])] == [job.rank for job in left], "the seat that was free"
        (shown,) = get_status(str(hosts[0].socket), name).jobs
        assert shown.world_size == 4 and [list(each.host.ranks) for each in shown.hosts] == [[0, 1], [2, 3]], shown
        hosts[2].kill()
        close(take(jobs, 2))
        whole_soon(jobs)
        assert jobs[0].view.world_size == 2
    finally:
        close(jobs.values())


def test_several__with_the_first_rank_that_leaves_its_host_does(daemons: Callable[[int], Hosts]) -> None:
    """The others do not wait for what it cannot bring any more. Its other rank has its own values until it leaves."""
    hosts, name = dict(enumerate(daemons(2))), new_job_name()
    jobs = enter_hosts(hosts, hosts[0], name)
    try:
        whole_soon(jobs)
        jobs.pop(3).leave()
        stays = jobs.pop(2)
        whole_soon(jobs)
        assert jobs[0].view.world_size == 2
        receipt, data = summed({2: stays}, deadline="300ms")[2]
        while receipt.contributors != (stays.rank,):  # of an op that the others had begun before
            receipt, data = summed({2: stays}, deadline="300ms")[2]
        assert receipt.status is Status.INSUFFICIENT and data[0] == 4.0, receipt
        stays.leave()
    finally:
        close(jobs.values())


@pytest.mark.check
def test_several__when_one_dies_its_host_goes_and_comes_again_with_all(daemons: Callable[[int], Hosts]) -> None:
    """The rank beside it is told in its next op, attaches again in a later one, and comes in with the one that is
    started again."""
    hosts, name = dict(enumerate(daemons(2))), new_job_name()
    jobs = enter_hosts(hosts, hosts[0], name)
    try:
        whole_soon(jobs)
        beside, dead = take(jobs, 1)
        dead._connection.session._attachment.lifeline.close()  # as the kernel does when the process is killed
        whole_soon(jobs)
        assert jobs[0].view.world_size == 2
        with (
            pytest.raises(DaemonLost),
            pytest.warns(ultima.UltimaWarning, match="ranks of a host come and go together"),
        ):
            summed({2: beside}, deadline="5s")

        def come(_: int, role: str) -> ElasticJob | None:
            if role == "beside":
                summed({2: beside}, deadline="20s")
                return None
            time.sleep(0.5)
            return enter(hosts[1], hosts[0], name, local_world_size=EACH, local_rank=1)

        nothing, again = everywhere(["beside", "again"], come)
        assert nothing is None and isinstance(again, ElasticJob), (nothing, again)
        jobs |= {2: beside, 3: again}
        whole_soon(jobs)
        assert jobs[0].view.world_size == 4 and beside.reconnects == 1
    finally:
        close(jobs.values())


@pytest.mark.parametrize("elements", [1_000, pytest.param(3_000_000, marks=pytest.mark.check)])
def test_several__newcomers_get_the_state(daemons: Callable[[int], Hosts], elements: int) -> None:
    """Each rank of the host that comes, from ranks of the others; the large one in jobs beside. Replicas on one host
    that had drifted apart are made the same."""
    *found, meet = daemons(4)
    hosts, name = dict(enumerate(found)), new_job_name()
    jobs = enter_hosts({0: hosts[0], 1: hosts[1]}, meet, name, arena="64M")
    states = {number: np.arange(elements, dtype=np.float32) for number in jobs}
    states[1][7] = -1.0
    try:
        whole_soon(jobs)
        steps = {number: job.next_op_seq for number, job in jobs.items()}  # one may have called an op more
        jobs |= enter_host(2, hosts[2], meet, name, arena="64M")
        states |= {number: np.zeros(elements, np.float32) for number in (4, 5)}

        def train(_: int, number: int) -> tuple[int, ultima.Receipt | None]:
            job, state = jobs[number], {"w": states[number]}
            if number in (4, 5):
                report = job.sync_state(state)
                assert report is not None and report.nbytes == 4 * elements
                steps[number] = report.revision
            receipt = None
            until = time.monotonic() + 30
            while time.monotonic() < until and (receipt is None or not receipt.complete or receipt.world_size < 6):
                job.share(state, revision=steps[number])
                # As many elements as `whole_soon` gave: the others come to an op that a rank has called already.
                receipt = job.allreduce(np.full(N, 2.0**number), "sum", deadline="5s")
                steps[number] += 1
            return steps[number], receipt

        got = everywhere(list(jobs), train)
        for number, (step, receipt) in zip(jobs, got, strict=True):
            assert step == got[0][0] and receipt.complete and receipt.world_size == 6, (number, got)
            assert receipt.op_seq == got[0][1].op_seq, got
            assert np.array_equal(states[number], np.arange(elements, dtype=np.float32)), number
    finally:
        close(jobs.values())


@pytest.mark.check
def test_several__a_daemon_that_is_started_anew_brings_them_all_back(daemons: Callable[[int], Hosts]) -> None:
    """Its ranks attach again by themselves, and are newcomers."""
    hosts, name = dict(enumerate(daemons(2))), new_job_name()
    jobs = enter_hosts(hosts, hosts[0], name)
    try:
        whole_soon(jobs)
        hosts[1].kill()
        for number in (2, 3):
            with pytest.raises(DaemonLost):
                summed({number: jobs[number]}, deadline="5s")
        whole_soon({number: jobs[number] for number in (0, 1)})
        hosts[1].launch()
        hosts[1].wait_until_ready()
        whole_soon(jobs, deadline="10s")
        assert jobs[0].view.world_size == 4
    finally:
        close(jobs.values())


def test_several__bad_input(daemons: Callable[[int], Hosts]) -> None:
    hosts, name = dict(enumerate(daemons(2))), new_job_name()
    for field, said in (("local_world_size", 17), ("local_world_size", 0), ("local_rank", 2), ("local_rank", -1)):
        with pytest.raises(InvalidArgument, match=f"{field} is {said}; allowed: a whole number from"):
            enter(hosts[0], hosts[0], name, **({"local_world_size": 2} | {field: said}))
    with pytest.raises(InvalidArgument, match="follow is True; allowed: False with local_world_size 2"):
        enter(hosts[0], hosts[0], name, local_world_size=2, follow=True)
    with pytest.raises(JoinTimeout, match="1 of the 2 ranks of this host have joined"):
        enter(hosts[0], hosts[0], name, local_world_size=2, local_rank=1, timeout=1)
    jobs: Jobs = {}
    try:
        jobs = enter_hosts({0: hosts[0]}, hosts[0], name)
        with pytest.raises(JoinRefused, match="local_rank = 1: already runs"):
            enter(hosts[0], hosts[0], name, local_world_size=2, local_rank=1, timeout=2)
        with pytest.raises(Desync, match="local_world_size differs: this rank says 1, the job that is under way"):
            enter(hosts[1], hosts[0], name, timeout=5)
        with pytest.raises(JoinRefused, match="this rank says elastic, least 1, split go on, another one on this host"):
            enter(hosts[0], hosts[0], name, timeout=2)
        whole_soon(jobs)
    finally:
        close(jobs.values())
