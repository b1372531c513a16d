# SPDX-License-Identifier: Apache-2.0
"""Hosts that wait where they are cut off (`split="wait"`), and whose others were killed instead, over real daemons."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.elastic import enter, enter_all, summed, whole_soon
from tests.e2e.hosts import Hosts, new_job_name
from ultima import Status

pytestmark = [pytest.mark.check, pytest.mark.timeout(120)]


@pytest.mark.parametrize("others", [1, 2])
def test_wait__goes_on_when_the_killed_hosts_daemons_are_back(daemons: Callable[[int], Hosts], others: int) -> None:
    """The last host of a job cannot tell from a cut that the rest was killed, and waits: as long as their daemons are
    down, too. Once each of them is started anew, and says that it knows nothing of the job, the last host goes on, and
    they can come in again."""
    meet, *rest = daemons(others + 2)
    hosts, name, last = dict(enumerate(rest)), new_job_name(), others
    jobs = enter_all(hosts, meet, name, most=others + 1, split="wait")
    whole_soon(jobs)
    mine = max(jobs, key=lambda number: jobs[number].rank)  # a half with the oldest host, of seat 0, does not wait
    jobs = {last: jobs.pop(mine), **dict(enumerate(jobs.values()))}
    hosts = {last: hosts.pop(mine), **dict(enumerate(hosts.values()))}
    for number in range(others):
        hosts[number].kill()
        jobs.pop(number)
    until, found = time.monotonic() + 4, None
    while time.monotonic() < until:  # a branch is made after a second
        ((found, _),) = summed(jobs, deadline="300ms").values()
        assert found.status is Status.INSUFFICIENT or time.monotonic() < until - 2.5, found
    assert len(jobs[last].view.ranks) == 1, "it is a branch of its own, and waits"
    for number in range(others):
        hosts[number].launch()
    whole_soon(jobs, 30.0, deadline="500ms")
    assert "live no more" in jobs[last].view.why
    for number in range(others):
        hosts[number].wait_until_ready()
        jobs[number] = enter(hosts[number], meet, name, most=others + 1, split="wait")
    whole_soon(jobs, 30.0, deadline="2s")
    for job in jobs.values():
        job.close()
