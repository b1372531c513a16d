# SPDX-License-Identifier: Apache-2.0
"""Where PROBE meets the rest of the daemon: the jobs that have their controller here, and what others' are told.

A controller (controller.py) begins when this daemon finds that it has the role in a job whose next op is under PROBE,
and ends when either is over; so a change of policy, and the death of the controller's host, need nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ultima.daemon.base.config import Limits
from ultima.daemon.base.errors import FailedPrecondition, NotFound
from ultima.daemon.engine.engine import Event
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Host
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.readiness import COMING
from ultima.daemon.probe.controller import Calls, Controller, has_role
from ultima.v1 import peer_pb2

SPARE_SECONDS = 1.0  # that a probe may stay open at the other end, beyond the time after which it is taken back


class Initiators:
    """See the module."""

    def __init__(
        self, jobs: Callable[[], Iterable[Job]], engine: HostEngine, peers: Callable[[], Peers], limits: Limits
    ) -> None:
        """`jobs` are all jobs of this host; of `limits`, probe_seconds is what a draw of a controller has, where no
        host is so far that it takes longer to ask there."""
        self._jobs, self._engine, self._peers, self._limits = jobs, engine, peers, limits
        self._known: set[Job] = set()
        self._controllers: dict[Job, Controller] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def review(self) -> None:
        """Something changed: who is alive, what is in force, how far a job is."""
        self._known.update(self._jobs())
        for job in list(self._known):
            job.readiness.look_again()
            self._review(job)
            if job.over:
                self._known.remove(job)

    def take(self, job: Job, event: Event) -> None:
        """Takes READY, ACTIVATED and OP_DONE of a job."""
        if job.partial is not None:
            job.readiness.take(event)
            self._review(job)

    async def probe(self, request: peer_pb2.ProbeRequest, deadline: float) -> peer_pb2.ProbeResponse:
        """Answers a probe when there is an answer, as PeerService.Probe. Raises Refused."""
        return await self._probe(self._job(request.job, request.generation), request.op_seq, request.rank, deadline)

    def activate(self, name: str, generation: int, op_seq: int) -> bool:
        """Starts an op with this host as its initiator; False if it had started before. Raises Refused."""
        return self._activate(self._job(name, generation), op_seq)

    async def close(self) -> None:
        """Waits until all controllers have ended; their jobs have."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _review(self, job: Job) -> None:
        controller = self._controllers.get(job)
        if job.partial is None or not has_role(job, self._engine):
            self._stop(job)
        elif controller is None or controller.task.done():
            self._controllers[job] = Controller(job, self._engine, self._calls(job), lambda: self._draw_seconds(job))
        else:
            controller.look_again()

    def _stop(self, job: Job) -> None:
        controller = self._controllers.pop(job, None)
        if controller is not None:
            controller.task.cancel()
            self._ending.add(controller.task)
            controller.task.add_done_callback(self._ending.discard)

    def _job(self, name: str, generation: int) -> Job:
        job = next((job for job in self._jobs() if (job.name, job.generation) == (name, generation)), None)
        if job is None or job.membership is None:
            raise NotFound(f"job = {name!r}: generation {generation} is not on this host")
        if job.partial is None:
            raise FailedPrecondition(f"job = {name!r}: policy = none: allowed: a job whose ops start by a policy")
        return job

    def _calls(self, job: Job) -> Calls:
        """How the controller of a job asks: its own host directly, the others by gRPC."""

        async def probe(host: Host, op_seq: int, rank: int) -> peer_pb2.ProbeResponse:
            seconds = self._draw_seconds(job) + SPARE_SECONDS
            if host is job.own:
                return await self._probe(job, op_seq, rank, asyncio.get_running_loop().time() + seconds)
            request = peer_pb2.ProbeRequest(job=job.name, generation=job.generation, op_seq=op_seq, rank=rank)
            return await self._peers().probe(host.place, request, seconds)

        async def activate(host: Host, op_seq: int) -> bool:
            if host is job.own:
                return self._activate(job, op_seq)
            request = peer_pb2.ActivateRequest(job=job.name, generation=job.generation, op_seq=op_seq)
            return (await self._peers().activate(host.place, request, self._draw_seconds(job))).started

        return Calls(probe, activate)

    def _draw_seconds(self, job: Job) -> float:
        """What a draw has: a rank that is given less than two round trips never answers in time."""
        trips = [2 * self._peers().round_trip(host.place).most for host in job.live() if host is not job.own]
        return max([self._limits.probe_seconds, *trips])

    async def _probe(self, job: Job, op_seq: int, rank: int, deadline: float) -> peer_pb2.ProbeResponse:
        def place() -> int | None:
            if job.own is not None and rank in job.sessions:
                return job.own.ranks.index(rank)
            return COMING if rank in job.joining else None

        result = await job.readiness.answer(op_seq, place, deadline)
        return peer_pb2.ProbeResponse(result=result, next_op_seq=job.readiness.next_op_seq)

    def _activate(self, job: Job, op_seq: int) -> bool:
        if op_seq < job.readiness.next_op_seq:
            return False
        try:
            self._engine.activate(job.number, op_seq)
        except FailedPrecondition:
            job.readiness.denied(op_seq)
            raise
        job.readiness.started(op_seq)
        return True
