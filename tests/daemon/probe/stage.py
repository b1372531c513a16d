# SPDX-License-Identifier: Apache-2.0
"""A controller of PROBE on a stage: a job of one rank per host, of which one engine exists; the test is the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.daemon.fake_engine import FakeEngine
from tests.daemon.helpers import eventually
from ultima.daemon.base.options import InForce, Options
from ultima.daemon.engine.engine import EngineConfig, Event, EventKind, JobConfig
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Host, Membership, State
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.links import Links
from ultima.daemon.probe.controller import Calls, Controller
from ultima.v1 import peer_pb2, types_pb2

PROBE = Options(policy=types_pb2.POLICY_PROBE, policy_seed=42)
LONG = 1000.0  # of a draw that is not to end by itself


@dataclass(eq=False)
class Asked:
    """One probe as the other side sees it."""

    op_seq: int
    rank: int
    answer: asyncio.Future[peer_pb2.ProbeResponse]

    @property
    def open(self) -> bool:
        return not self.answer.done()

    def say(self, result: int, next_op_seq: int = 0) -> None:
        if not self.answer.done():
            self.answer.set_result(peer_pb2.ProbeResponse(result=result, next_op_seq=next_op_seq))  # type: ignore[arg-type]

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(eq=False)
class Stage:
    """Host 0 of a job, with a controller, and nothing but the test behind its calls. Host i has rank i."""

    job: Job
    engine: HostEngine
    timeout: float
    asked: list[Asked] = field(default_factory=list)
    activated: list[tuple[int, int]] = field(default_factory=list)
    """Host and op of each Activate that came."""
    on_activate: Callable[[int, int], bool] = lambda host, op_seq: True
    controller: Controller | None = None

    def begin(self) -> None:
        self.controller = Controller(self.job, self.engine, Calls(self._probe, self._activate), lambda: self.timeout)

    async def _probe(self, host: Host, op_seq: int, rank: int) -> peer_pb2.ProbeResponse:
        assert rank in host.ranks
        asked = Asked(op_seq, rank, asyncio.get_running_loop().create_future())
        self.asked.append(asked)
        return await asked.answer

    async def _activate(self, host: Host, op_seq: int) -> bool:
        self.activated.append((host.index, op_seq))
        return self.on_activate(host.index, op_seq)

    def tell(self, kind: EventKind, op_seq: int, a: int = 0) -> None:
        """The own engine's word."""
        self.job.readiness.take(Event(int(kind), self.job.number, 0, 0, op_seq, a, 0, 0))
        self.poke()

    def poke(self) -> None:
        assert self.controller is not None
        self.controller.look_again()

    def dies(self, *hosts: int) -> None:
        assert self.job.links is not None
        for host in hosts:
            self.job.links[host].state = State.ABSENT
        self.poke()

    async def probes(self, count: int) -> list[Asked]:
        """The newest `count` probes, once so many came in all that this stage has seen."""
        await eventually(lambda: len(self.asked) >= count, f"{count} probes, {len(self.asked)} came")
        await self.quiet()
        return self.asked

    async def quiet(self) -> None:
        """Lets everything happen that happens without time."""
        for _ in range(30):
            await asyncio.sleep(0)

    def open(self) -> list[int]:
        """The ranks whose probes are open."""
        return [asked.rank for asked in self.asked if asked.open]


@contextlib.asynccontextmanager
async def stage(hosts: int = 8, options: Options = PROBE, timeout: float = LONG, own: int = 0) -> AsyncIterator[Stage]:
    """A controller that has begun. At the end it is stopped, and must leave nothing behind."""
    before = asyncio.all_tasks()
    engine = HostEngine([EngineConfig("127.0.0.1")], FakeEngine)
    every = [Host(i, "127.0.0.1", 100 + i, ((1, 2),), 1000 + i, (i,), 1472) for i in range(hosts)]
    job = Job("job", 0)
    job.number = engine.job_add(JobConfig(hosts, own, 1, 1472, hosts, 1000, 0, 0, options), 1)
    states = (State.UP,) * hosts
    job.membership = Membership(7, hosts, 1000, tuple(every), states, 0, False, options, options)
    job.own, job.ready, job.sessions = every[own], True, dict.fromkeys(every[own].ranks)  # type: ignore[arg-type]
    job.in_force = InForce(options)

    async def call(*args: Any) -> Any:
        raise AssertionError("nobody connects here")

    others = {host.index: host for host in every if host is not job.own}
    job.links = Links(engine, call, "job", job.number, 7, job.own, others, 0, lambda: None)
    for link in job.links.values():
        link.state = State.UP
    ret = Stage(job, engine, timeout)
    ret.begin()
    try:
        yield ret
    finally:
        assert ret.controller is not None
        if not ret.controller.task.done():
            assert job.probes.sent == sum(sums(job)) + len(ret.open())
        ret.controller.task.cancel()
        await asyncio.gather(ret.controller.task, return_exceptions=True)
        await ret.quiet()
        assert asyncio.all_tasks() == before, "tasks are left"
        assert not ret.open(), "probes are left"
        assert job.probes.sent == sum(sums(job))
        engine.close()


def sums(job: Job) -> tuple[int, int, int]:
    return job.probes.ready, job.probes.expired, job.probes.gone
