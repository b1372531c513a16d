# SPDX-License-Identifier: Apache-2.0
"""PeerService: what other daemons ask of this one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ultima.daemon.base.config import Limits
from ultima.daemon.base.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Refused,
    abort,
    translated,
)
from ultima.daemon.base.options import check_job, from_proto
from ultima.daemon.base.ranges import INT64_MAX, OP_SEQ_MAX, whole
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.coordinator import Coordinator
from ultima.daemon.hosts.host import Host, address_of_peer
from ultima.daemon.hosts.registration import Registration
from ultima.daemon.jobs.hearing import Hearing, job_of
from ultima.daemon.jobs.relay_desk import RelayDesk
from ultima.daemon.jobs.routes import Routes
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.jobs.trial import rate, reach
from ultima.daemon.jobs.watchers import Watchers
from ultima.daemon.observe.lives import copied, parts
from ultima.daemon.observe.lives import whole as whole_life
from ultima.daemon.probe.initiators import Initiators
from ultima.daemon.rpc import cluster, relays
from ultima.daemon.rpc.history_calls import bounds
from ultima.daemon.rpc.line_calls import LineCalls
from ultima.daemon.rpc.trainer_service import inner_deadline
from ultima.daemon.trust import job_secret
from ultima.daemon.trust.gate import caller_node
from ultima.daemon.trust.trust import Trust
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2
from ultima.v1.limits import BUCKET_BYTES_MAX, WORLD_SIZE_MAX

PROBE_SECONDS_MAX = 61.0  # the largest limits.probe_seconds of any daemon, and what it gives the answer beyond it


class PeerService(peer_pb2_grpc.PeerServiceServicer):
    """On TCP, for daemons, behind the gate (trust/gate.py), which counts the calls of each."""

    def __init__(
        self,
        coordinator: Coordinator,
        jobs: JobTable,
        watchers: Watchers,
        initiators: Initiators,
        limits: Limits,
        trust: Trust | None,
        hearing: Hearing,
        engine: HostEngine,
        version: str,
        desk: RelayDesk,
        routes: Routes,
        lines: LineCalls,
    ) -> None:
        """Callers are known by their certificates if there is `trust`, and by nothing if there is not."""
        self._coordinator, self._jobs = coordinator, jobs
        self._watchers, self._initiators, self._limits, self._trust = watchers, initiators, limits, trust
        self._hearing, self._engine, self._version = hearing, engine, version
        self._desk, self._routes, self._lines = desk, routes, lines
        self._reached, self._reported, self._started = rate(), cluster.rate(), time.monotonic()

    @translated
    async def Register(self, request: peer_pb2.RegisterRequest, context: Any) -> peer_pb2.RegisterResponse:
        """See peer.proto."""
        host = await self._host_of_caller(request.host, "host", context)
        if host.ranks != (tuple(range(len(host.ranks))) if request.least else host.ranks[:1]):
            allowed = "0, 1, ..., as hosts of the job come and go" if request.least else "the one rank that registers"
            raise InvalidArgument(f"host.ranks = {list(host.ranks)}: allowed: {allowed}")
        whole("world_size", request.world_size, 1, WORLD_SIZE_MAX)
        whole("bucket_bytes_max", request.bucket_bytes_max, 1, BUCKET_BYTES_MAX)
        whole("left_generation", request.left_generation, 0, INT64_MAX)
        options = from_proto(request.options)
        check_job(options, request.world_size)
        registration = Registration(
            job=membership.job_name(request.job),
            rank=host.ranks[0],
            world_size=request.world_size,
            host=host,
            bucket_bytes_max=request.bucket_bytes_max,
            left_generation=request.left_generation,
            options=options,
            source=address_of_peer(context.peer()),
            uid=request.uid,
            next_op_seq=whole("next_op_seq", request.next_op_seq, 0, OP_SEQ_MAX),
            elastic=membership.elastic(
                request.least, request.split_waits, request.world_size, options, len(host.ranks)
            ),
            only_known=request.only_known,
            taken=membership.seats("taken", request.taken),
        )
        deadline = inner_deadline(context, self._limits.join_seconds)
        secret = await self._jobs.fellows.check_secret(request, host, deadline)
        answer = await self._coordinator.register(replace(registration, secret=secret), deadline)
        told = self._jobs.fellows.membership_now(answer, request.job).to_proto()
        if secret and self._trust is not None:
            known = job_secret.answer(secret, request.proof, request.job, told.generation, host.node, self._trust.node)
            told.proof.CopyFrom(known)
        return told

    @translated
    async def Restore(self, request: peer_pb2.RestoreRequest, context: Any) -> peer_pb2.RestoreResponse:
        """See peer.proto."""
        source = address_of_peer(context.peer())
        membership.job_name(request.job)
        told = membership.membership(request, request.world_size, source)
        self._jobs.fellows.restore(request, told, source, caller_node(context, self._trust))
        return peer_pb2.RestoreResponse()

    @translated
    async def Connect(self, request: peer_pb2.ConnectRequest, context: Any) -> peer_pb2.ConnectResponse:
        """See peer.proto."""
        membership.job_name(request.job)
        caller = await self._host_of_caller(request.caller, "caller", context)
        return await self._jobs.fellows.connect(request, caller, inner_deadline(context, self._limits.join_seconds))

    @translated
    async def Probe(self, request: peer_pb2.ProbeRequest, context: Any) -> peer_pb2.ProbeResponse:
        """See peer.proto."""
        membership.job_name(request.job)
        whole("rank", request.rank, 0, WORLD_SIZE_MAX - 1)
        self._check_member(request, context)
        return await self._initiators.probe(request, inner_deadline(context, PROBE_SECONDS_MAX))

    @translated
    async def Activate(self, request: peer_pb2.ActivateRequest, context: Any) -> peer_pb2.ActivateResponse:
        """See peer.proto."""
        name = membership.job_name(request.job)
        self._check_member(request, context)
        return peer_pb2.ActivateResponse(started=self._initiators.activate(name, request.generation, request.op_seq))

    @translated
    async def Hear(self, request: peer_pb2.HearRequest, context: Any) -> peer_pb2.HearResponse:
        """See peer.proto."""
        self._check_member(request, context)
        job = job_of(self._jobs.all(), request)
        node = caller_node(context, self._trust)
        if any(host.index == request.host_index and host.node != node for host, _ in job.hosts()):
            raise PermissionDenied(f"host_index = {request.host_index}: is the place of another node than {node!r}")
        return peer_pb2.HearResponse(incarnation=job.incarnation, lanes=self._hearing.counts(job, request.host_index))

    @translated
    async def Relay(self, request: peer_pb2.RelayRequest, context: Any) -> peer_pb2.RelayResponse:
        """See peer.proto."""
        self._check_member(request, context)
        source, node = address_of_peer(context.peer()), caller_node(context, self._trust)
        job, caller = relays.members(self._jobs.all(), request, source, node)
        assert job.own is not None and job.links is not None
        here = request.to_index == job.own.index
        if here and not request.connection_ids:
            self._routes.proposed(job, caller, request.by_index)
            return peer_pb2.RelayResponse()
        if len(request.connection_ids) != self._engine.ports_of(job.number):
            raise InvalidArgument(f"connection_ids: {len(request.connection_ids)}: allowed: one per lane of the job")
        to = job.own if here else job.links[request.to_index].host
        return self._desk.answer(job, caller.host, to, request.connection_ids, source)

    @translated
    async def Forming(self, request: peer_pb2.FormingRequest, context: Any) -> peer_pb2.FormingResponse:
        """See peer.proto."""
        world_size, ranks = self._coordinator.forming(membership.job_name(request.job))
        return peer_pb2.FormingResponse(world_size=world_size, ranks=ranks)

    @translated
    async def Reach(self, request: peer_pb2.ReachRequest, context: Any) -> peer_pb2.ReachResponse:
        """See peer.proto."""
        source = address_of_peer(context.peer())
        account = caller_node(context, self._trust) or source
        return reach(request, self._engine, source, account, self._reached, self._version)

    @translated
    async def Report(self, request: peer_pb2.ReportRequest, context: Any) -> peer_pb2.ReportResponse:
        """See peer.proto."""
        node, source = caller_node(context, self._trust), address_of_peer(context.peer())
        uptime_ms = int((time.monotonic() - self._started) * 1000)
        return cluster.report(self._jobs, self._engine, node, source, self._reported, self._version, uptime_ms)

    async def ReadOps(self, request: peer_pb2.ReadOpsRequest, context: Any) -> AsyncIterator[peer_pb2.ReadOpsResponse]:
        """See peer.proto."""
        now_ns, source = time.time_ns(), address_of_peer(context.peer())
        try:
            name = membership.job_name(request.job)
            since, until = bounds(request.since_ns, request.until_ns)
            node = caller_node(context, self._trust)
            found = self._jobs.recorder.of_generation(name, request.generation)
            if found is None or found[0].life is None:
                raise NotFound(f"job {name!r}: nothing is recorded of that life")
            life = found[0].life
            if node not in life.nodes if self._trust is not None else source not in life.addresses:
                raise PermissionDenied(f"job {name!r}: {node or source} is none of its hosts")
            copy = copied(*found)
            for part in await asyncio.to_thread(lambda: list(parts(whole_life(copy, since, until)))):
                yield peer_pb2.ReadOpsResponse(part=part, now_ns=now_ns)
        except Refused as error:
            await abort(context, error)

    async def ReadState(
        self, request: peer_pb2.ReadStateRequest, context: Any
    ) -> AsyncIterator[peer_pb2.ReadStateResponse]:
        """See peer.proto."""
        source = address_of_peer(context.peer())
        try:
            job = self._jobs.fellows.job(membership.job_name(request.job), request.generation)
            if job is None or job.membership is None or job.over:
                raise NotFound(f"job {request.job!r}: there is no such life of it here")
            self._check_member(request, context)
            if self._trust is None and all(host.address != source for host, _ in job.hosts()):
                raise PermissionDenied(f"job = {request.job!r}: {source} is none of its hosts")
            async with aclosing(self._jobs.fellows.states.read(job, request)) as parts:
                async for part, data in parts:
                    yield peer_pb2.ReadStateResponse(part=part, data=data)
        except Refused as error:
            await abort(context, error)

    async def Watch(self, request: peer_pb2.WatchRequest, context: Any) -> AsyncIterator[peer_pb2.WatchResponse]:
        """See peer.proto."""
        source = address_of_peer(context.peer())
        try:
            if request.address:
                membership.check_address("address", request.address)
            whole("grpc_port", request.grpc_port, 1, membership.PORT_MAX)
            node = caller_node(context, self._trust)
            async for news in self._watchers.stream(request.address, request.grpc_port, source, node):
                yield news
        except Refused as error:
            await abort(context, error)

    async def Attend(self, request: peer_pb2.AttendRequest, context: Any) -> AsyncIterator[peer_pb2.AttendResponse]:
        """See peer.proto."""
        try:
            node = caller_node(context, self._trust)
            async with aclosing(self._lines.attend(request, address_of_peer(context.peer()), node)) as asked:
                async for each in asked:
                    yield each
        except Refused as error:
            await abort(context, error)

    @translated
    async def Carry(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        """See peer.proto."""
        await self._lines.carry(requests, context, address_of_peer(context.peer()), caller_node(context, self._trust))

    async def _host_of_caller(self, message: types_pb2.Host, name: str, context: Any) -> Host:
        """The host that calls, as the node that its certificate names, and at the address where that node is. Raises
        Refused."""
        source = address_of_peer(context.peer())
        host = membership.host(message, name, source)
        node = caller_node(context, self._trust)
        if host.node not in ("", node):
            raise PermissionDenied(f"{name}.node = {host.node!r}: the call comes from node {node!r}: allowed: its own")
        host = replace(host, node=node)
        await self._jobs.fellows.check_address(host, name, source)
        return host

    def _check_member(self, request: Any, context: Any) -> None:
        """Raises PermissionDenied unless the calling node has a host in the life of a job that a request names, if it
        is here."""
        job = self._jobs.fellows.job(request.job, request.generation)
        node = caller_node(context, self._trust)
        if job is not None and job.membership is not None and not job.has_node(node):
            raise PermissionDenied(
                f"job = {request.job!r}: has no host on node {node!r}, which calls: allowed: its own nodes"
            )
