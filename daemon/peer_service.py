# SPDX-License-Identifier: Apache-2.0
"""PeerService: what other daemons ask of this one."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from typing import Any

from ultima.daemon.config import BUCKET_BYTES_MAX, LANES_MAX, WORLD_SIZE_MAX, Limits
from ultima.daemon.errors import InvalidArgument, Refused, abort, translated
from ultima.daemon.hosts import Host, State, address_of_peer
from ultima.daemon.initiators import Initiators
from ultima.daemon.jobs import JobTable
from ultima.daemon.options import check_job, from_proto
from ultima.daemon.rendezvous import Coordinator, Record, Registration
from ultima.daemon.trainer_service import JOB_NAME_MAX, inner_deadline
from ultima.daemon.tuning import Tuning
from ultima.daemon.watchers import Watchers
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2


def checked_host(host: types_pb2.Host, name: str, address: str) -> Host:
    """A host out of a message, with every field in its range. Raises InvalidArgument."""
    if not 1 <= host.grpc_port <= 65535:
        raise InvalidArgument(f"{name}.grpc_port = {host.grpc_port}: allowed: 1 to 65535")
    if not 1 <= len(host.lanes) <= LANES_MAX:
        raise InvalidArgument(f"{name}.lanes: {len(host.lanes)} entries: allowed: 1 to {LANES_MAX}")
    for i, lane in enumerate(host.lanes):
        for field in ("data_port", "feedback_port"):
            if not 1 <= getattr(lane, field) <= 65535:
                raise InvalidArgument(f"{name}.lanes[{i}].{field} = {getattr(lane, field)}: allowed: 1 to 65535")
    if host.incarnation == 0:
        raise InvalidArgument(f"{name}.incarnation = 0: allowed: any other number")
    if not host.ranks or len(set(host.ranks)) != len(host.ranks) or min(host.ranks) < 0:
        raise InvalidArgument(f"{name}.ranks = {list(host.ranks)}: allowed: different ranks, at least one")
    if not 64 <= host.packet_bytes <= 9216:
        raise InvalidArgument(f"{name}.packet_bytes = {host.packet_bytes}: allowed: 64 to 9216")
    try:
        ipaddress.ip_address(host.address or address)
    except ValueError:
        raise InvalidArgument(f"{name}.address = {host.address!r}: allowed: a numeric address") from None
    return Host.from_proto(host, address)


def checked_job(name: str) -> str:
    """A job's name. Raises InvalidArgument."""
    if not 1 <= len(name) <= JOB_NAME_MAX or not name.isprintable():
        raise InvalidArgument(f"job = {name[:JOB_NAME_MAX]!r}: allowed: 1 to {JOB_NAME_MAX} printable characters")
    return name


class PeerService(peer_pb2_grpc.PeerServiceServicer):
    """On TCP, for daemons."""

    def __init__(
        self,
        coordinator: Coordinator,
        jobs: JobTable,
        tuning: Tuning,
        watchers: Watchers,
        initiators: Initiators,
        limits: Limits,
    ) -> None:
        self._coordinator, self._jobs, self._tuning = coordinator, jobs, tuning
        self._watchers, self._initiators, self._limits = watchers, initiators, limits

    @translated
    async def Register(self, request: peer_pb2.RegisterRequest, context: Any) -> peer_pb2.RegisterResponse:
        """See peer.proto."""
        host = checked_host(request.host, "host", address_of_peer(context.peer()))
        if len(host.ranks) != 1:
            raise InvalidArgument(f"host.ranks = {list(host.ranks)}: allowed: the one rank that registers")
        if not 1 <= request.bucket_bytes_max <= BUCKET_BYTES_MAX:
            raise InvalidArgument(f"bucket_bytes_max = {request.bucket_bytes_max}: allowed: 1 to {BUCKET_BYTES_MAX}")
        options = from_proto(request.options)
        check_job(options, request.world_size)
        registration = Registration(
            job=checked_job(request.job),
            rank=host.ranks[0],
            world_size=request.world_size,
            host=host,
            bucket_bytes_max=request.bucket_bytes_max,
            left_generation=request.left_generation,
            options=options,
        )
        deadline = inner_deadline(context, self._limits.join_seconds)
        membership = await self._coordinator.register(registration, deadline)
        return self._jobs.membership_now(membership, request.job).to_proto()

    @translated
    async def Restore(self, request: peer_pb2.RestoreRequest, context: Any) -> peer_pb2.RestoreResponse:
        """See peer.proto."""
        address = address_of_peer(context.peer())
        hosts = [checked_host(host, f"hosts[{i}]", address) for i, host in enumerate(request.hosts)]
        ranks = sorted(rank for host in hosts for rank in host.ranks)
        if [host.index for host in hosts] != list(range(len(hosts))) or ranks != list(range(request.world_size)):
            raise InvalidArgument("hosts: allowed: all hosts by index, which have each rank of the world once")
        if request.generation == 0:
            raise InvalidArgument("generation = 0: allowed: any other number")
        if not 1 <= request.lanes <= min(len(host.lanes) for host in hosts):
            raise InvalidArgument(f"lanes = {request.lanes}: allowed: 1 to the least of all hosts'")
        record = Record(
            generation=request.generation,
            world_size=request.world_size,
            bucket_bytes_max=request.bucket_bytes_max,
            hosts=hosts,
            states=[State(host.state) if host.state else State.ABSENT for host in request.hosts],
            next_op_seq=request.next_op_seq,
            options_asked=from_proto(request.options_asked),
            options=from_proto(request.options),
            lanes=request.lanes,
        )
        self._coordinator.restore(checked_job(request.job), record)
        return peer_pb2.RestoreResponse()

    @translated
    async def Connect(self, request: peer_pb2.ConnectRequest, context: Any) -> peer_pb2.ConnectResponse:
        """See peer.proto."""
        caller = checked_host(request.caller, "caller", address_of_peer(context.peer()))
        return await self._jobs.connect(request, caller, inner_deadline(context, self._limits.join_seconds))

    @translated
    async def ApplyOptions(self, request: peer_pb2.ApplyOptionsRequest, context: Any) -> peer_pb2.ApplyOptionsResponse:
        """See peer.proto."""
        options = self._tuning.hear(request.job, request.generation, from_proto(request.options))
        return peer_pb2.ApplyOptionsResponse(options=options.to_proto())

    @translated
    async def Probe(self, request: peer_pb2.ProbeRequest, context: Any) -> peer_pb2.ProbeResponse:
        """See peer.proto."""
        checked_job(request.job)
        if not 0 <= request.rank < WORLD_SIZE_MAX:
            raise InvalidArgument(f"rank = {request.rank}: allowed: 0 to {WORLD_SIZE_MAX - 1}")
        return await self._initiators.probe(request, inner_deadline(context, self._limits.probe_seconds))

    @translated
    async def Activate(self, request: peer_pb2.ActivateRequest, context: Any) -> peer_pb2.ActivateResponse:
        """See peer.proto."""
        name = checked_job(request.job)
        return peer_pb2.ActivateResponse(started=self._initiators.activate(name, request.generation, request.op_seq))

    async def Watch(self, request: peer_pb2.WatchRequest, context: Any) -> AsyncIterator[peer_pb2.WatchResponse]:
        """See peer.proto."""
        try:
            async for news in self._watchers.stream(request.address, request.grpc_port):
                yield news
        except Refused as error:
            await abort(context, error)
