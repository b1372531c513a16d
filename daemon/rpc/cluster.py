# SPDX-License-Identifier: Apache-2.0
"""How all hosts of the jobs here fare, in their own daemons' words: for `ultima status --all`, `top --all`, the page.

Both sides of the question. This daemon asks the others over the connections that it has to them anyway, all at once,
and waits for none of them beyond a bound: one that has not answered by then is named, with the reason. However many
users look, one round of questions a second leaves this host, and whoever is asked bounds what one node may ask.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from ultima.daemon.base.errors import DeadlineExceeded, NotFound, Refused
from ultima.daemon.base.rate import Rate
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.rpc.admin_service import job_status
from ultima.v1 import admin_pb2, peer_pb2

FRESH_SECONDS = 1.0  # that an answer counts as of now
ASK_SECONDS = 2.0  # for a host that is near to answer
BOUND_SECONDS = 5.0  # for one that is far; whoever looks waits no longer
HOSTS_MAX = 256  # that are asked in one round
REPORT_BYTES_MAX = 64 << 10  # of one answer: the jobs that do not fit are counted
# What a node may ask: a round a second, and some at once after a restart of its daemon.
REPORTS_PER_SECOND, REPORTS_AT_ONCE = 2.0, 10.0


class Cluster:
    """The asking side. It belongs to the event loop."""

    def __init__(
        self,
        jobs: JobTable,
        peers: Callable[[], Peers],
        here: Callable[[], admin_pb2.ClusterHost],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`here` is what this host says of itself; `clock` tells seconds."""
        self._jobs, self._peers, self._here, self._clock = jobs, peers, here, clock
        self._round: asyncio.Task[admin_pb2.GetClusterResponse] | None = None
        self._began = float("-inf")

    async def ask(self, job: str = "") -> admin_pb2.GetClusterResponse:
        """All hosts of a job, or of all jobs for "", not older than FRESH_SECONDS and its own answer. Raises
        NotFound."""
        if job and all(each.name != job for each in self._jobs.all()):
            raise NotFound(f"job = {job!r}: not on this host")
        if self._round is None or (self._round.done() and self._clock() - self._began >= FRESH_SECONDS):
            self._began = self._clock()
            self._round = asyncio.ensure_future(self._ask_all())
        found = await asyncio.shield(self._round)
        return _of(job, self._places([each for each in self._jobs.all() if each.name == job]), found) if job else found

    def close(self) -> None:
        """Whoever waits for an answer gets none."""
        if self._round is not None:
            self._round.cancel()

    async def _ask_all(self) -> admin_pb2.GetClusterResponse:
        places = self._places(self._jobs.all())
        told = await asyncio.gather(*(self._ask_one(place) for place in places[:HOSTS_MAX]))
        return admin_pb2.GetClusterResponse(
            hosts=[self._here(), *told], not_asked_count=max(len(places) - HOSTS_MAX, 0)
        )

    async def _ask_one(self, place: Place) -> admin_pb2.ClusterHost:
        """What one other host says, or why it says nothing."""
        row = admin_pb2.ClusterHost(address=place.address, grpc_port=place.port, node=place.node)
        began, peers = self._clock(), self._peers()
        bound = min(max(ASK_SECONDS, peers.patience(place)), BOUND_SECONDS)
        try:
            async with asyncio.timeout(bound):
                answer = await peers.report(place, bound)
        except TimeoutError:
            row.unreached = f"no answer within {bound:.1f} s"
        except DeadlineExceeded:
            row.unreached = f"no answer within {bound:.1f} s"
        except Refused as error:
            row.unreached = str(error)
        else:
            row.took_us = round((self._clock() - began) * 1e6)
            row.version, row.uptime_ms, row.left_out_count = answer.version, answer.uptime_ms, answer.left_out_count
            known = {job.name for job in self._jobs.all()}
            row.jobs.extend(job for job in answer.jobs if job.job in known)
        return row

    def _places(self, jobs: Sequence[Job]) -> list[Place]:
        """Of other hosts, each once."""
        return sorted({host.place for job in jobs for host, _ in job.hosts() if host is not job.own and host.grpc_port})


def _of(job: str, places: Sequence[Place], found: admin_pb2.GetClusterResponse) -> admin_pb2.GetClusterResponse:
    """What of an answer is about one job."""
    ret, wanted = admin_pb2.GetClusterResponse(), {(place.address, place.port) for place in places}
    for row in found.hosts:
        if row.here or (row.address, row.grpc_port) in wanted:
            kept = ret.hosts.add()
            kept.CopyFrom(row)
            del kept.jobs[:]
            kept.jobs.extend(each for each in row.jobs if each.job == job)
    return ret


def rate() -> Rate:
    """What nodes have asked."""
    return Rate("questions of `ultima status --all`", REPORTS_PER_SECOND, REPORTS_AT_ONCE, time.monotonic)


def report(
    jobs: JobTable, engine: HostEngine, node: str, source: str, spent: Rate, version: str, uptime_ms: int
) -> peer_pb2.ReportResponse:
    """Answers PeerService.Report to a node, or to an address where nobody is authenticated. Raises Refused."""
    spent.spend(node or source, 1.0)
    answer, now = peer_pb2.ReportResponse(version=version, uptime_ms=uptime_ms), engine.snapshot()
    size = 0
    for job in jobs.all():
        if not any(host.node == node if node else host.address == source for host, _ in job.hosts()):
            continue
        status = job_status(job, engine, now)
        del status.ranks[:]
        size += status.ByteSize()
        if size > REPORT_BYTES_MAX:
            answer.left_out_count += 1
        else:
            answer.jobs.append(status)
    return answer
