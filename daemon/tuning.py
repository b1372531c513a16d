# SPDX-License-Identifier: Apache-2.0
"""Changes the options of a job while it runs, on this host and all others that are up. options.py: how they agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ultima.daemon.errors import FailedPrecondition, InvalidArgument, NotFound, Refused
from ultima.daemon.hosts import State
from ultima.daemon.job import Job
from ultima.daemon.jobs import JobTable
from ultima.daemon.options import NAMES, InForce, Options, named
from ultima.daemon.peers import Peers
from ultima.v1 import peer_pb2, types_pb2

CALL_SECONDS = 3.0
ATTEMPTS = 5  # at a change that another operator's was quicker than


class Tuning:
    """See the module."""

    def __init__(self, jobs: JobTable, peers: Callable[[], Peers]) -> None:
        self._jobs, self._peers = jobs, peers

    def hear(self, name: str, generation: int, options: Options) -> Options:
        """Another host tells what it has in force; returns what this one has then. Raises Refused."""
        job, in_force = self._job(name)
        if job.generation != generation:
            raise NotFound(f"job = {name!r}: generation {generation} is not on this host")
        return in_force.hear(options)

    async def tune(self, name: str, changes: types_pb2.JobOptions) -> Options:
        """Applies what is set in `changes` everywhere, and returns what is in force then. Raises Refused."""
        if not named(changes):
            raise InvalidArgument(f"options: none named: allowed: {', '.join(NAMES[1:])}")
        for _ in range(ATTEMPTS):
            job, in_force = self._job(name)
            before = in_force.options
            wanted = replace(before.with_changes(changes), revision=before.revision + 1)
            in_force.hear(wanted)
            newest = await self._tell(job, in_force)
            if replace(newest.with_changes(changes), revision=newest.revision) == newest:
                return newest
        raise FailedPrecondition(f"job = {name!r}: its options are being changed from elsewhere as well; try again")

    def _job(self, name: str) -> tuple[Job, InForce]:
        job = next((job for job in self._jobs.all() if job.name == name), None)
        if job is None or job.in_force is None:
            raise NotFound(f"job = {name!r}: not on this host, or still forming")
        return job, job.in_force

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
