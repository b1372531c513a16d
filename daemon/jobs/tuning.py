# SPDX-License-Identifier: Apache-2.0
"""Changes the options of a job while it runs, on this host and all others that are up. options.py: how they agree.

The policy of a partial job and its numbers change between two ops, and should on all hosts between the same two. So
the daemon that makes the change says from which op it holds: far enough ahead that all hosts have heard of it by then,
which is two ops and what the job does in TELL_SECONDS. A host that hears too late changes at once; then hosts disagree
about the ops in between, which is harmless (an op starts once, whoever starts it), only not as asked.

Two ops ahead may be for ever: perhaps the policy is changed just because nothing starts under the old one. Where no op
has come for a second the change is told again, to hold at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument, NotFound, Refused
from ultima.daemon.base.options import FIXED, NAMES, PARTIAL, TIMED, InForce, Options, check_change, check_job, named
from ultima.daemon.base.ranges import STEP_OPS
from ultima.daemon.hosts.host import State
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.trainers.users import check_manage, may_manage
from ultima.v1 import peer_pb2, types_pb2

CALL_SECONDS = 3.0
TELL_SECONDS = 0.1
MARGIN_OPS = 2  # one may be about to start, or be open on a host that is quicker than we
LOOK_SECONDS = 0.02
STILL_LOOKS = 50
ATTEMPTS = 5  # at a change that another operator's was quicker than


class Tuning:
    """See the module."""

    def __init__(self, jobs: JobTable, peers: Callable[[], Peers]) -> None:
        self._jobs, self._peers = jobs, peers

    def hear(self, name: str, generation: int, options: Options) -> Options:
        """Another host tells what it has in force; returns what this one has then. Raises Refused."""
        job, in_force = self._job(name, lambda job: job.generation == generation)
        if job.generation != generation:
            raise NotFound(f"job = {name!r}: generation {generation} is not on this host")
        check_job(options, _world_size(job))
        return in_force.hear(options)

    async def tune(self, name: str, changes: types_pb2.JobOptions, uid: int) -> Options:
        """Applies what is set in `changes` everywhere, for that user; returns what is in force then. Raises Refused."""
        if not named(changes):
            allowed = ", ".join(name for name in NAMES if name not in FIXED)
            raise InvalidArgument(f"options: none named: allowed: {allowed}")
        for _ in range(ATTEMPTS):
            job, in_force = self._job(name, lambda job: may_manage(job.uid, uid))
            check_manage(name, job.uid, uid)  # each time: the name may be another job's by now
            in_force.hear(self._wanted(job, in_force.options, changes))
            newest = await self._tell(job, in_force)
            if _asked(newest, changes) == newest:
                return await self._see_through(job, in_force)
        raise FailedPrecondition(f"job = {name!r}: its options are being changed from elsewhere as well; try again")

    def _job(self, name: str, meant: Callable[[Job], bool]) -> tuple[Job, InForce]:
        """The job of that name; of several, one that is `meant`."""
        job = max((job for job in self._jobs.all() if job.name == name), key=meant, default=None)
        if job is None or job.in_force is None:
            raise NotFound(f"job = {name!r}: not on this host, or still forming")
        return job, job.in_force

    def _wanted(self, job: Job, before: Options, changes: types_pb2.JobOptions) -> Options:
        """What to tell. Raises InvalidArgument."""
        wanted = replace(_asked(before, changes), revision=before.revision + 1)
        bound = [name for name in PARTIAL if name in named(changes)]
        if bound and not before.partial and not wanted.partial:
            raise InvalidArgument(f"{bound[0]}: allowed: in a job that began with a policy; {job.name!r} has none")
        check_change(before, wanted)
        check_job(wanted, _world_size(job))
        if job.partial is None or all(getattr(wanted, name) == getattr(before, name) for name in TIMED):
            return wanted
        ahead = margin(job.partial.ops_per_second()) * (STEP_OPS if before.coded else 1)
        return replace(wanted, policy_from=self._jobs.next_op_seq(job) + ahead)

    async def _see_through(self, job: Job, in_force: InForce) -> Options:
        """Returns when a change holds here, after it was told again if no op brings it about. Raises Refused."""
        told, seen, still = in_force.options.policy_from, -1, 0
        while not job.over and in_force.options.policy_from == told and seen < told:
            now = self._jobs.next_op_seq(job)
            seen, still = now, still + 1 if now == seen else 0
            if still >= STILL_LOOKS:
                in_force.hear(replace(in_force.options, policy_from=0, revision=in_force.options.revision + 1))
                return await self._tell(job, in_force)
            await asyncio.sleep(LOOK_SECONDS)
        return in_force.options

    async def _tell(self, job: Job, in_force: InForce) -> Options:
        """Tells all hosts that are up, and takes over what is newer. Raises FailedPrecondition, naming the rest."""
        request = peer_pb2.ApplyOptionsRequest(
            job=job.name, generation=job.generation, options=in_force.options.to_proto()
        )
        hosts = [host for host, state in job.hosts() if state is State.UP and host is not job.own]
        answers = await asyncio.gather(
            *(self._peers().apply_options(host.place, request, CALL_SECONDS) for host in hosts), return_exceptions=True
        )
        failed = []
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, peer_pb2.ApplyOptionsResponse):
                in_force.hear(in_force.options.with_changes(answer.options))
            elif isinstance(answer, Refused):
                failed.append(f"{host.name}: {answer}")
            else:
                raise answer
        if failed:
            raise FailedPrecondition(f"job = {job.name!r}: changed here, but not on {'; '.join(failed)}")
        return in_force.options


def margin(ops_per_second: float) -> int:
    """How many ops ahead a change of policy is to hold."""
    return MARGIN_OPS + math.ceil(ops_per_second * TELL_SECONDS)


def _asked(before: Options, changes: types_pb2.JobOptions) -> Options:
    """`before` with what an operator asked for; revision and `policy_from` are not his to say."""
    return replace(before.with_changes(changes), revision=before.revision, policy_from=before.policy_from)


def _world_size(job: Job) -> int:
    assert job.membership is not None
    return job.membership.world_size
