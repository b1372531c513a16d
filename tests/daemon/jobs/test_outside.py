# SPDX-License-Identifier: Apache-2.0
"""What status says of hosts that are not in the ops of a job: each with its reason, and no free seat."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ultima.daemon.hosts.host import Host, State, seat
from ultima.daemon.jobs.job import Standing
from ultima.daemon.jobs.link import Link
from ultima.daemon.jobs.outside import job_view

HOSTS = [Host(i, f"10.0.0.{i + 1}", 29520, (), 7 + i, (i,), 1472) for i in range(6)] + [seat(6, (6,), 1472)]
STATES = (State.UP, State.ABSENT, State.UP, State.UP, State.CONNECTING, State.ABSENT, State.ABSENT)


def a_job(inside: set[int], left: Iterable[int] = (), flaps: dict[int, str] | None = None) -> Any:
    links = {h.index: Link(h, state) for h, state in zip(HOSTS, STATES, strict=True) if h.index != 0}
    links[1].why = "its daemon is gone"
    standing = Standing(7, 400, "host 1 is gone", frozenset(inside), frozenset(left), flaps or {})
    rows = [*zip(HOSTS, STATES, strict=True)]
    return SimpleNamespace(standing=standing, own=HOSTS[0], follows=False, links=links, hosts=lambda: rows)


def test_job_view__says_of_each_host_outside_why_and_names_no_free_seat() -> None:
    view = job_view(a_job(inside={0}, left={5}, flaps={2: "it went 3 times"}))
    assert view is not None
    assert (view.number, view.from_op_seq, view.why, list(view.hosts)) == (7, 400, "host 1 is gone", [0])
    assert [(each.host, each.place, each.reason, each.text) for each in view.outside] == [
        (1, "10.0.0.2:29520", "gone", "its daemon is gone"),
        (2, "10.0.0.3:29520", "flaps", "it went 3 times"),
        (3, "10.0.0.4:29520", "waits", "it is there, and not taken in yet"),
        (4, "10.0.0.5:29520", "never came", "there is no path to it yet: it has not called yet"),
        (5, "10.0.0.6:29520", "left", "it left in good order"),
    ]


def test_job_view__of_a_host_that_is_outside_itself_and_of_one_that_knows_nothing() -> None:
    view = job_view(a_job(inside={1, 2, 3, 4, 5}))
    assert view is not None
    assert [(each.host, each.reason) for each in view.outside] == [(0, "waits")]
    job = a_job(inside={0})
    job.links[2].follows = job.links[1].follows = True  # host 1 is gone, whatever it did before
    assert [each.reason for each in job_view(job).outside] == ["gone", "follows", "waits", "never came", "gone"]
    job = a_job(inside={1})
    job.follows = True
    assert next(each.reason for each in job_view(job).outside) == "follows"
    job.standing = None
    assert job_view(job) is None
