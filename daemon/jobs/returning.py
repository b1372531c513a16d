# SPDX-License-Identifier: Apache-2.0
"""Hosts whose daemon was told to stop, and that are to come back.

Such a daemon says so on its watch streams before it goes, and for how long it wants to be waited for (`Links` has the
paths). Until it is gone nothing changes. From then on bounded ops go on without its host, and reliable ones wait: the
engine keeps what they have, and goes on when the host is connected anew. When the time is over the host is gone, as
any other that went without a word.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ultima.daemon.base.errors import Refused
from ultima.daemon.base.ranges import STEP_OPS, WINDOW
from ultima.daemon.base.waiting import numbers
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Membership
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.link import Link

log = logging.getLogger("ultimad.returning")

WINDOW_SECONDS_MAX = 600.0  # the largest limits.drain_window_seconds of any daemon


class Note(Protocol):
    """Records an event: its kind, text, job and level, and the other host that it is about."""

    def __call__(self, kind: str, text: str, job: str, level: str, *, host: str = "") -> None: ...


class Returning:
    """Who of the other hosts of this daemon's jobs is waited for."""

    def __init__(self, engine: HostEngine) -> None:
        self._engine = engine
        self.note: Note = lambda kind, text, job, level, host="": None

    def announced(self, job: Job, link: Link, back_within_ms: int) -> None:
        """The daemon of a host that is up says that it goes, or (0) nothing of the kind."""
        seconds = min(max(back_within_ms, 0) / 1e3, WINDOW_SECONDS_MAX)
        if seconds and not link.back_within_s and link.up():
            text = (
                f"{link.host.name} of job {job.name}: its daemon was told to stop and should be back in {seconds:g} s"
            )
            log.info("host goes job=%s host=%d back_within=%g", job.name, link.host.index, seconds)
            self.note("host_goes", text, job.name, "info", host=str(link.host.place))
            self._await(job, link, True)
            link.back_within_s = seconds

    def expected(self, job: Job, link: Link, seconds: float) -> None:
        """This host comes back itself, and finds that one away: it may have been stopped at the same time."""
        if seconds and not link.back_within_s:
            self._await(job, link, True)
            link.back_within_s = seconds
            self.went(job, link)

    def went(self, job: Job, link: Link) -> str:
        """A host is gone: why, for people. From now on the time runs in which it is to be back."""
        if not link.back_within_s:
            self._await(job, link, False)  # it was back, and the engine may not have heard of it yet
            return ""
        if link.giving_up is None:
            after = asyncio.get_running_loop().call_later
            link.giving_up = after(link.back_within_s, self._give_up, job, link)
        return f"its daemon was told to stop; reliable ops wait for it, for {link.back_within_s:g} s at most"

    def left(self, job: Job, link: Link) -> None:
        """Its ranks will not come back: it is waited for no longer."""
        if link.back_within_s:
            link.stop_waiting()
            self._await(job, link, False)

    def _give_up(self, job: Job, link: Link) -> None:
        if not job.over:
            seconds = link.back_within_s
            link.why = f"its daemon was told to stop, and was not back within {seconds:g} s"
            text = (
                f"{link.host.name} of job {job.name} (ranks {numbers(link.host.ranks)}): {link.why}; reliable ops "
                "cannot go on without it"
            )
            log.warning("host does not return job=%s host=%d within=%g", job.name, link.host.index, seconds)
            self.note("host_gone", text, job.name, "warning", host=str(link.host.place))
            for session in job.sessions.values():  # before their ops fail of it
                session.trainer.tell("host gone", text)
        self.left(job, link)

    def _await(self, job: Job, link: Link, on: bool) -> None:
        if job.over:
            return
        try:
            self._engine.peer_await(job.number, link.host.index, on)
        except Refused as error:
            log.error("engine refused job=%s host=%d reason=%s", job.name, link.host.index, error)


def first_op_seq(job: Job, membership: Membership) -> int:
    """Where the engine begins: not beyond an op in which the others may still wait for a rank that comes back."""
    said = [joiner.spec.next_op_seq for joiner in job.joining.values() if joiner.spec.next_op_seq is not None]
    window = WINDOW * (STEP_OPS if membership.options.coded else 1)
    near = [op_seq for op_seq in said if op_seq >= membership.next_op_seq - window]
    return min([membership.next_op_seq, *near]) if membership.under_way else membership.next_op_seq


def next_op_seq_of(job: Job, rank: int, engine: HostEngine, known_from: int) -> int:
    """The first op that a rank takes part in, which joins now; the others know this host's life in ops from
    `known_from` on."""
    assert job.links is not None and job.membership is not None
    if not job.membership.under_way and rank not in job.seen:
        # By now a quicker host may have sent us some of an op that our rank is to be in.
        return job.membership.next_op_seq
    said = job.joining[rank].spec.next_op_seq
    if said is None:
        newest = max(engine.next_op_seq(job.number), job.links.next_op_seq, known_from)
    else:
        newest = job.links.takes_part_from(said)
    if newest == said:
        return newest
    # Not between two portions of an op: the first one has a multiple of their number.
    return newest + -newest % job.membership.portions
