# SPDX-License-Identifier: Apache-2.0
"""Changes the options of a job while it runs: checks what is asked for, and has the job's hosts agree on it.

They agree as on everything that must be alike in an op (epoch.py): the change holds on all of them from the first op of
the epoch that brings it. What they cannot agree on in time is wanted no more, and nobody has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument, NotFound
from ultima.daemon.base.options import FIXED, NAMES, PARTIAL, InForce, Options, named
from ultima.daemon.hosts.host import Place, State
from ultima.daemon.jobs.council import Council
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.trainers.users import check_manage, may_manage
from ultima.v1 import types_pb2

AGREE_SECONDS = 3.0  # for a majority: three times as long as hosts without one wait before they go on by themselves


class Tuning:
    """See the module."""

    def __init__(self, jobs: JobTable, council: Council, heard: Callable[[Place], bool]) -> None:
        """`heard` says whether a daemon can tell something to this one."""
        self._jobs, self._council, self._heard = jobs, council, heard

    async def tune(self, name: str, changes: types_pb2.JobOptions, uid: int) -> tuple[Options, int]:
        """Applies what is set in `changes` everywhere, for that user; returns what is in force then, and from which op
        on. Raises Refused."""
        change = named(changes)
        if not change:
            allowed = ", ".join(name for name in NAMES if name not in FIXED)
            raise InvalidArgument(f"options: none named: allowed: {allowed}")
        job, in_force = self._job(name, uid)
        check_manage(name, job.uid, uid)
        self._check(job, in_force.options, changes)
        epoch = await self._council.change(job, change, asyncio.get_running_loop().time() + AGREE_SECONDS)
        if epoch is None:
            raise FailedPrecondition(self._why_not(job))
        return epoch.settings, in_force.start if in_force.options == epoch.settings else epoch.start

    def _job(self, name: str, uid: int) -> tuple[Job, InForce]:
        """The job of that name; of several, one of that user."""
        jobs = (job for job in self._jobs.all() if job.name == name)
        job = max(jobs, key=lambda job: may_manage(job.uid, uid), default=None)
        if job is None or job.in_force is None:
            raise NotFound(f"job = {name!r}: not on this host, or still forming")
        return job, job.in_force

    def _check(self, job: Job, before: Options, changes: types_pb2.JobOptions) -> None:
        """Raises InvalidArgument for what the job cannot have."""
        wanted = before.with_changes(changes)
        bound = [name for name in PARTIAL if name in named(changes)]
        if bound and not before.partial and not wanted.partial:
            raise InvalidArgument(f"{bound[0]}: allowed: in a job that began with a policy; {job.name!r} has none")
        self._council.check(job, wanted)

    def _why_not(self, job: Job) -> str:
        if job.over:
            return f"job = {job.name!r}: it ended before its hosts had agreed on the change"
        others = [host for host, state in job.hosts() if state is State.UP and host is not job.own]
        silent = [host.name for host in others if not self._heard(host.place)]
        whom = f"the daemon of {', '.join(silent)} is not heard" if silent else "too few of them answered"
        return (
            f"job = {job.name!r}: within {AGREE_SECONDS:g} s its hosts did not agree on the change, as {whom}; `ultima "
            "status` tells what is in force, and the change can be asked for again"
        )
