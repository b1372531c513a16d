# SPDX-License-Identifier: Apache-2.0
"""The daemon at which hosts of an elastic job meet: one without a rank, one that is started anew."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.elastic import enter, enter_all, whole_soon
from tests.e2e.hosts import Hosts, everywhere, new_job_name
from ultima import ElasticJob

ROUNDS = 5


@pytest.mark.check
def test_meet__a_daemon_without_a_rank_hears_who_is_gone(daemons: Callable[[int], Hosts]) -> None:
    """A seat of a host that was killed is given again."""
    *found, meet = daemons(4)
    hosts, name = dict(enumerate(found)), new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, meet, name, most=2)
    try:
        whole_soon(jobs)
        hosts[1].kill()
        gone = jobs.pop(1)
        gone.close()
        jobs[2] = enter(hosts[2], meet, name, most=2)
        assert jobs[2].rank == gone.rank
        whole_soon(jobs)
    finally:
        for job in jobs.values():
            job.close()


@pytest.mark.check
def test_meet__a_daemon_that_is_started_anew_is_told_of_the_job(daemons: Callable[[int], Hosts]) -> None:
    """While a newcomer waits for a seat, and another one has yet to come: both get into the job that runs."""
    *found, meet = daemons(5)
    hosts, name = dict(enumerate(found)), new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, meet, name, most=3)
    try:
        jobs[2] = enter(hosts[2], meet, name, most=3)
        whole_soon(jobs)

        def play(_: int, role: str) -> None:
            if role == "spare":
                jobs[3] = enter(hosts[3], meet, name, most=3, timeout=40)
                return
            time.sleep(1)
            meet.kill()
            meet.launch()
            meet.wait_until_ready()
            time.sleep(1)
            jobs.pop(1).leave()

        assert everywhere(["spare", "killer"], play) == [None, None]
        whole_soon(jobs)
        assert jobs[3].view.world_size == 3, jobs[3].view
        jobs.pop(2).leave()
        meet.kill()
        meet.launch()
        meet.wait_until_ready()
        jobs[1] = enter(hosts[1], meet, name, most=3)
        whole_soon(jobs)
    finally:
        for job in jobs.values():
            job.close()


@pytest.mark.check
def test_meet__any_of_several_daemons_may_be_down(daemons: Callable[[int], Hosts]) -> None:
    """The job begins with the first of them dead. Then that one comes up, knows nothing, and the other one dies."""
    first, second, *found = daemons(6)
    hosts, name = dict(enumerate(found)), new_job_name()
    first.kill()
    meets = [first.rendezvous, second.rendezvous]
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, second, name, most=4, meets=meets)
    try:
        whole_soon(jobs)
        first.launch()
        first.wait_until_ready()
        jobs[2] = enter(hosts[2], second, name, most=4, meets=meets)
        whole_soon(jobs)
        assert jobs[2].view.world_size == 3, "the second knows the job"
        second.kill()
        jobs[3] = enter(hosts[3], second, name, most=4, meets=meets)
        whole_soon(jobs)
        assert sorted(job.rank for job in jobs.values()) == [0, 1, 2, 3], "the first was told"
    finally:
        for job in jobs.values():
            job.close()


@pytest.mark.check
def test_meet__newcomers_that_come_to_two_daemons_at_once_get_a_seat_each(daemons: Callable[[int], Hosts]) -> None:
    """Again and again. Each of the two reaches another daemon first, as where a network is cut in parts."""
    first, second, *found = daemons(6)
    hosts, name = dict(enumerate(found)), new_job_name()
    meets = [first.rendezvous, second.rendezvous]
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, first, name, most=4, meets=meets)
    try:
        whole_soon(jobs)
        for _ in range(ROUNDS):

            def come(number: int) -> ElasticJob:
                return enter(hosts[number], first, name, most=4, meets=meets if number == 2 else meets[::-1])

            came = everywhere([2, 3], lambda _, number: come(number))
            jobs |= {number: job for number, job in zip((2, 3), came, strict=True) if isinstance(job, ElasticJob)}
            assert sorted(jobs) == [0, 1, 2, 3], came
            assert sorted(job.rank for job in jobs.values()) == [0, 1, 2, 3], {n: j.rank for n, j in jobs.items()}
            whole_soon(jobs)
            for number in (2, 3):
                jobs.pop(number).leave()
            whole_soon(jobs)
    finally:
        for job in jobs.values():
            job.close()
