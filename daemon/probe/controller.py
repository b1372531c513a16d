# SPDX-License-Identifier: Apache-2.0
"""RNA's controller (docs/papers.md, section 3.1): finds for each op of a partial job, under the policy PROBE, the rank
that starts it.

The role falls to the daemon of the lowest live rank, as each daemon sees for itself who is alive; nobody is elected and
nothing is handed over. For the op that comes next on its own engine the controller draws q ranks, probes each with the
op's number, and has the host of the first one that is ready start it; the others' probes are taken back. The engines
spread the word from there. All that a controller knows can be forgotten: the next one asks its own engine where
the job is. Two at a time, which see the hosts differently for a moment, do no harm, since an op starts once.

A rank that cannot be asked, or is not ready after all, is replaced by the next draw at once; when nobody has answered
for `timeout`, all are drawn anew. Draws go through all live ranks before one comes again.

The controller may hear that the job is further than its own engine: by its own decision, of which the engine hears a
moment later, or when it comes back from a partition. It follows, but only once until the engine has come after it or
the time is up: a daemon that answers nonsense cannot lead it away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ultima.daemon.base.errors import Refused
from ultima.daemon.base.ranges import WINDOW
from ultima.daemon.base.waiting import spawn
from ultima.daemon.engine.host_engine import HostEngine, HostSnapshot
from ultima.daemon.hosts.host import Host
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.readiness import EXPIRED, READY
from ultima.v1 import peer_pb2, types_pb2
from ultima.v1.job_options import PROBES

log = logging.getLogger("ultimad.initiator")

_Answer = asyncio.Task[peer_pb2.ProbeResponse]


@dataclass(frozen=True, slots=True)
class Calls:
    """How a controller speaks to the hosts of its job. Both raise Refused."""

    probe: Callable[[Host, int, int], Awaitable[peer_pb2.ProbeResponse]]
    """Host, op_seq, rank: the answer to a probe, when there is one."""
    activate: Callable[[Host, int], Awaitable[bool]]
    """Host, op_seq: makes it the initiator; False if the op had started before."""


def controller_of(job: Job, engine: HostEngine | HostSnapshot) -> Host | None:
    """The host whose daemon is to find the initiator of the job's next op, as it looks from here.

    None if there is none, or the op does not start by PROBE.
    """
    if job.over or job.in_force is None:
        return None
    by_probes = job.in_force.at(next_here(job, engine)).policy == types_pb2.POLICY_PROBE
    return job.controller() if by_probes else None


def has_role(job: Job, engine: HostEngine) -> bool:
    """Whether that is this host."""
    return job.own is not None and controller_of(job, engine) is job.own


def next_here(job: Job, engine: HostEngine | HostSnapshot) -> int:
    """The op that comes next on the own engine."""
    return max(job.readiness.next_op_seq, engine.next_op_seq(job.number))


class Controller:
    """The role in one job, from when this daemon has it until it is stopped."""

    def __init__(self, job: Job, engine: HostEngine, calls: Calls, timeout: Callable[[], float]) -> None:
        """`timeout` tells what a draw has, in seconds. Begins at once."""
        self._job, self._engine, self._calls, self._timeout = job, engine, calls, timeout
        self._loop = asyncio.get_running_loop()
        self._poked: asyncio.Future[None] = self._loop.create_future()
        self._ahead = 0
        """Where the job is said to be elsewhere, if that is further than here."""
        self._drawn = (0, 0)
        """The own engine's next op, and how many were drawn for it."""
        self.task = spawn(self._run(), f"controller {job.name}")

    def look_again(self) -> None:
        """Something changed that it may be waiting for."""
        if not self._poked.done():
            self._poked.set_result(None)

    async def _run(self) -> None:
        job = self._job
        assert job.own is not None
        log.info("controller begins job=%s host=%d op_seq=%d", job.name, job.own.index, self._op_seq())
        try:
            while has_role(job, self._engine):
                await self._decide(self._op_seq())
        finally:
            counts = " ".join(f"{name}={value}" for name, value in job.probes.values().items())
            log.info("controller ends job=%s host=%d %s", job.name, job.own.index, counts)

    def _op_seq(self) -> int:
        """The op that is to be decided next."""
        return max(next_here(self._job, self._engine), self._ahead)

    def _follow(self, op_seq: int) -> None:
        """The job is said to be at `op_seq`."""
        job = self._job
        assert job.in_force is not None
        ours = job.in_force.at(op_seq).policy == types_pb2.POLICY_PROBE
        if ours and self._ahead <= next_here(job, self._engine):
            self._ahead = op_seq

    def _open(self, op_seq: int) -> bool:
        """Whether it is this op's turn still, and ours to decide it."""
        return has_role(self._job, self._engine) and self._op_seq() == op_seq

    async def _decide(self, op_seq: int) -> None:
        """Draws until the op has started, or it turns out to be another one's turn."""
        began = time.monotonic_ns()
        drawn = self._drawn[1] if self._drawn[0] == op_seq else 0
        while self._open(op_seq):
            hosts = self._live()
            ranks = [rank for rank in self._picks(op_seq) if rank in hosts]
            first = drawn % len(ranks) if ranks else 0
            drawn += await self._draw(op_seq, [*ranks[first:], *ranks[:first]], hosts, drawn, began)
            if op_seq == next_here(self._job, self._engine):
                self._drawn = (op_seq, drawn)

    def _picks(self, op_seq: int) -> tuple[int, ...]:
        """All ranks in the order in which they are drawn."""
        job = self._job
        assert job.membership is not None and job.in_force is not None
        world, options = job.membership.world_size, job.in_force.at(op_seq).seeded(job.generation)
        return self._engine.picks(options.policy_seed, op_seq, world, world)

    def _live(self) -> dict[int, Host]:
        """The host of each rank that may be asked. Which of another host's ranks are alive, its daemon says then.

        While this host has yet to come after the others its own ranks would start an op that is past.
        """
        job, hosts = self._job, self._job.live()
        assert job.links is not None
        behind = len(hosts) > 1 and job.links.next_op_seq > next_here(job, self._engine)
        own = set() if behind else job.sessions.keys()
        return {rank: host for host in hosts for rank in host.ranks if host is not job.own or rank in own}

    async def _draw(self, op_seq: int, ranks: Sequence[int], hosts: dict[int, Host], before: int, began: int) -> int:
        """Probes q of `ranks` at a time, in this order, until one of them has started the op, or for `timeout`.

        `before` were drawn for this op before; `began` is when its turn came. Returns how many were drawn now.
        """
        job, left, decided = self._job, deque(ranks), False
        assert job.in_force is not None
        q = job.in_force.at(op_seq).probes or PROBES
        end = self._loop.time() + self._timeout()
        asked: dict[_Answer, int] = {}
        try:
            while self._open(op_seq):
                while left and len(asked) < q and not decided:
                    draw, rank = before + len(ranks) - len(left), left.popleft()
                    log.debug("pick job=%s op_seq=%d draw=%d rank=%d", job.name, op_seq, draw, rank)
                    asked[asyncio.ensure_future(self._calls.probe(hosts[rank], op_seq, rank))] = rank
                    job.probes.sent += 1
                    job.probes.redrawn += draw >= q
                if not await self._something(asked, end):
                    job.probes.timed_out += 1
                    self._ahead = 0
                    break
                live = self._live()
                for answer, rank in list(asked.items()):
                    if answer.done() or live.get(rank) is not hosts[rank]:
                        del asked[answer]
                        if self._heard(op_seq, answer) and not decided and self._open(op_seq):
                            decided = await self._start(op_seq, rank, hosts[rank], began)
                if decided:  # the own engine will hear of it; meanwhile it may be the next one's turn
                    self._take_back(asked)
                    self._follow(op_seq + 1)
                elif not asked and not left and live != hosts:
                    break  # nobody was left to ask, and now there are others
        finally:
            self._take_back(asked)
        return len(ranks) - len(left)

    async def _something(self, asked: Iterable[_Answer], end: float) -> bool:
        """Waits for an answer, or to be told to look again; False if `end` came first."""
        if self._poked.done():
            self._poked = self._loop.create_future()
        left = max(0.0, end - self._loop.time())
        waited: set[asyncio.Future[Any]] = {*asked, self._poked}
        done, _ = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    def _heard(self, op_seq: int, answer: _Answer) -> bool:
        """Takes an answer; whether the rank is ready. `job.probes` says what else it can be."""
        probes = self._job.probes
        if not answer.done():  # its host has died meanwhile
            self._withdraw(answer)
            probes.gone += 1
            return False
        if answer.cancelled() or answer.exception() is not None:
            if not answer.cancelled() and not isinstance(answer.exception(), Refused):
                log.error("probe failed job=%s op_seq=%d", self._job.name, op_seq, exc_info=answer.exception())
            probes.gone += 1
            return False
        response = answer.result()
        if response.result == READY:
            probes.ready += 1
            return True
        if response.result == EXPIRED and op_seq < response.next_op_seq <= op_seq + WINDOW:
            probes.expired += 1
            self._follow(response.next_op_seq)
        else:
            probes.gone += 1
        return False

    async def _start(self, op_seq: int, rank: int, host: Host, began: int) -> bool:
        """Has the host of a ready rank start the op; whether it has."""
        job = self._job
        try:
            async with asyncio.timeout(self._timeout()):
                started = await self._calls.activate(host, op_seq)
        except (Refused, TimeoutError) as error:
            job.probes.denied += 1
            log.debug("initiator denies job=%s op_seq=%d rank=%d reason=%s", job.name, op_seq, rank, error)
            return False
        if started:
            took = time.monotonic_ns() - began
            job.probes.decide(took)
            log.debug("initiator job=%s op_seq=%d rank=%d after_us=%d", job.name, op_seq, rank, took // 1000)
        return True

    def _take_back(self, asked: dict[_Answer, int]) -> None:
        """Withdraws the probes that are open. What they still say is heard by nobody."""
        for answer in asked:
            self._withdraw(answer)
            self._job.probes.expired += 1
        asked.clear()

    @staticmethod
    def _withdraw(answer: _Answer) -> None:
        # Looking at the exception keeps asyncio from complaining that it was never retrieved.
        answer.add_done_callback(lambda late: late.cancelled() or late.exception())
        answer.cancel()
