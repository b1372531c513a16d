# SPDX-License-Identifier: Apache-2.0
"""This daemon as a client of the other ones: registering, connecting, and watching whether they live.

A watch is a stream that stays open; when it ends, the daemon at the other end has died, or cannot be reached, which
is the same to those who wait for its data. A process that is killed closes its sockets, so the news comes at once; a
host that vanishes is found out by keepalives. Both sides agree on those (`OPTIONS`), or the server would hang up for
too many pings.

Where daemons have certificates (trust.py) each connection is made to one node and no other. Nobody knows the node at a
rendezvous, so it is asked for first. A watch is made anew now and then, so that it rests on certificates that are
valid, and the old one is given up only when the new one stands: a stream that ends is the news of a death.

How long to wait follows the distance (distance.py). Each connection is waited for before the call that needs it, and
measured meanwhile; a call then has the time that its caller says, or that of an exchange where that is more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import grpc.aio

from ultima.daemon.base.addresses import listens
from ultima.daemon.base.calls import answered, messages
from ultima.daemon.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    Refused,
    Unavailable,
    from_rpc,
)
from ultima.daemon.base.names import Names
from ultima.daemon.base.waiting import spawn
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.distance import HANDSHAKES, Distances, RoundTrip, connection, exchange
from ultima.daemon.hosts.finding import register_at
from ultima.daemon.hosts.host import Membership, Place
from ultima.daemon.hosts.lines import Lines
from ultima.daemon.hosts.outgoing import Outgoing
from ultima.daemon.hosts.proofs import Proofs
from ultima.daemon.hosts.watching import Told, Watching
from ultima.daemon.trust import answerer, job_secret
from ultima.daemon.trust.answerer import Answerer
from ultima.daemon.trust.trust import Trust
from ultima.v1 import peer_pb2, peer_pb2_grpc, records_pb2
from ultima.v1.unix_target import unix_target
from ultima.v1.words import clean

log = logging.getLogger("ultimad.peers")

Answer = TypeVar("Answer")

KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 10_000, 5_000
MESSAGE_BYTES_MAX = 1 << 20
# What another host may tell of one job: as much as it keeps (observe/ring.py, record.py), and in parts of that size.
OPS_READ_MAX, READ_BYTES_MAX, READ_PART_BYTES_MAX = 8192, 3 << 20, 512 << 10

# Of both ends of every connection between daemons.
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 8192),
)
CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # a proxy that is set for the web has no business between daemons
    ("grpc.use_local_subchannel_pool", 1),
)
DIAL_SECONDS = 2.0  # to find out whether a caller can be dialled; one that is taken for one that cannot still works
RESTORE_SECONDS = 5.0  # for a coordinator to take over what it is told
CLOSE_SECONDS = 5.0  # for calls that are under way on a channel that is replaced
# Words of gRPC's for a connection that ended in a handshake. A port where nobody listens explains itself.
UNEXPLAINED = ("Socket closed", "handshake", "Custom verification check")


class Peers(Watching):
    """All connections that this daemon opens to others."""

    def __init__(
        self,
        watch_request: peer_pb2.WatchRequest,
        told: Told,
        trust: Trust | None,
        lines: Lines,
        own_end: str = "",
        arrivals: dict[str, str] | None = None,
    ) -> None:
        """`lines` lead to daemons that cannot be dialled; `own_end` is the address of this one's own port, and in
        `arrivals` it is noted what a line leads there."""
        super().__init__(watch_request, told, trust)
        self.lines, lines.call, lines.stands = lines, self._peer, self.stands
        arrivals = {} if arrivals is None else arrivals
        self.outgoing = Outgoing(own_end, watch_request.grpc_port, self._peer, arrivals, trust is not None)
        self._channels: dict[Place, tuple[int, grpc.aio.Channel]] = {}
        self._distances = Distances()
        self._once: set[asyncio.Task[None]] = set()
        self.names = Names()
        self.proofs = Proofs(lambda place: asyncio.ensure_future(self._answers(place, dial=True)), self.stands)

    async def register(
        self, places: Sequence[Place], request: peer_pb2.RegisterRequest, secret: bytes, deadline: float
    ) -> Membership:
        """Registers a rank with a coordinator, trying until `deadline` while nobody is there. Raises Refused.

        Of several, which only jobs have whose hosts come and go, it is one that knows the job, else the first that can
        be reached. Where the job has a secret, the coordinator must know it as well.
        """
        account, clock = f"uid {request.uid}", asyncio.get_running_loop().time

        async def attempt(place: Place, only_known: bool, seconds: float) -> Membership:
            until = clock() + seconds
            found = await self._found(place, account)
            patience = DIAL_SECONDS + connection(self.round_trip(found)) + exchange(self.round_trip(found))
            async with self.outgoing.registering(found, min(until - clock(), patience)) as seen:
                request.host.natted |= self.outgoing.natted
                if seen.outward:  # this host is where its calls come from
                    request.host.outward, request.host.address, self._request.address = True, "", ""
                request.only_known = only_known
                told = await self._register(found, request, secret, max(0.0, until - clock()), account)
            others = [each for each in places if each != place] if told.elastic else []
            return replace(told, meet=told.meet.union(*[await self._meets(each, account) for each in others]))

        return await register_at(places, attempt, deadline)

    async def _meets(self, place: Place, account: str) -> set[Place]:
        """A place as hosts watch it, if somebody answers there now, or nobody need to."""
        try:
            found = await self._found(place, account)
            address, *_ = await self._addresses(found, account)
        except Refused:
            return set()
        return {found._replace(address=address)}

    async def connect(self, place: Place, request: peer_pb2.ConnectRequest, seconds: float) -> peer_pb2.ConnectResponse:
        """Offers a path to another host of a job. Raises Refused."""
        async with self._peer(place) as stub:
            call = stub.Connect(request, timeout=self._patience(place, seconds))
            return await self._answer(place, call, "connect to")

    async def probe(self, place: Place, request: peer_pb2.ProbeRequest, seconds: float) -> peer_pb2.ProbeResponse:
        """Asks whether a rank is ready; answered when it is. Raises Refused."""
        stub = await self._stub(place)
        return await self._answer(place, stub.Probe(request, timeout=self._patience(place, seconds)), "probe at")

    async def activate(
        self, place: Place, request: peer_pb2.ActivateRequest, seconds: float
    ) -> peer_pb2.ActivateResponse:
        """Makes another host of a job the initiator of an op. Raises Refused."""
        stub = await self._stub(place)
        return await self._answer(place, stub.Activate(request, timeout=self._patience(place, seconds)), "activate at")

    async def read_ops(self, place: Place, request: peer_pb2.ReadOpsRequest, seconds: float) -> records_pb2.JobLife:
        """The ops and receipts that another host has recorded of a job, and its clock's offset. Raises Refused."""
        life, size, began_ns = records_pb2.JobLife(), 0, time.time_ns()
        try:
            async with (
                self._peer(place, message_bytes_max=READ_PART_BYTES_MAX) as stub,
                contextlib.aclosing(messages(stub.ReadOps(request, timeout=self._patience(place, seconds)))) as answers,
            ):
                async for answer in answers:
                    part = answer.part
                    if not life.clock_offset_ns:
                        life.world_size, life.running, life.lanes = part.world_size, part.running, part.lanes
                        life.clock_offset_ns = answer.now_ns - (began_ns + time.time_ns()) // 2
                    size += answer.ByteSize()
                    if size > READ_BYTES_MAX:
                        raise FailedPrecondition(f"ops of {place}: more than {READ_BYTES_MAX} bytes")
                    for ours, theirs in ((life.ops, part.ops), (life.receipts, part.receipts)):
                        if len(ours) + len(theirs) > OPS_READ_MAX:
                            raise FailedPrecondition(f"ops of {place}: more than {OPS_READ_MAX}")
                    life.ops.extend(part.ops)
                    life.receipts.extend(part.receipts)
                    await asyncio.sleep(0)  # each part is a slice of the loop's time
        except grpc.aio.AioRpcError as error:
            raise await self._trouble(place, error) or from_rpc(error, f"ops of {place}") from None
        return life

    async def read_state(
        self, place: Place, request: peer_pb2.ReadStateRequest
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Parts of the state that a rank on another host gives. Raises Refused."""
        try:
            async with (
                self._peer(place) as stub,
                contextlib.aclosing(messages(stub.ReadState(request))) as answers,
            ):
                async for answer in answers:
                    yield answer.part, answer.data
        except grpc.aio.AioRpcError as error:
            raise await self._trouble(place, error) or from_rpc(error, f"state of {place}") from None

    async def hear(self, place: Place, request: peer_pb2.HearRequest, seconds: float) -> peer_pb2.HearResponse:
        """Asks another host of a job what it sends to this one and hears of it. Raises Refused."""
        stub = await self._stub(place)
        return await self._answer(place, stub.Hear(request, timeout=self._patience(place, seconds)), "counts of")

    async def relay(self, place: Place, request: peer_pb2.RelayRequest, seconds: float) -> peer_pb2.RelayResponse:
        """Has a host of a job forward packets to a third one, or tells that one by whom they go. Raises Refused."""
        stub = await self._stub(place)
        return await self._answer(place, stub.Relay(request, timeout=self._patience(place, seconds)), "relay at")

    async def forming(self, place: Place, job: str, seconds: float, account: str) -> peer_pb2.FormingResponse:
        """Asks a coordinator who waits there for a job, for the user `account`. Raises Refused."""
        place = await self._found(place, account)
        async with self._peer(place) as stub:
            call = stub.Forming(peer_pb2.FormingRequest(job=job), timeout=self._patience(place, seconds))
            return await self._answer(place, call, "asked")

    async def reach(self, place: Place, request: peer_pb2.ReachRequest, seconds: float) -> peer_pb2.ReachResponse:
        """Has another daemon send a few datagrams here, or only say how many came there. Raises Refused."""
        async with self._peer(place) as stub:
            call = stub.Reach(request, timeout=self._patience(place, seconds))
            return await self._answer(place, call, "try")

    @contextlib.asynccontextmanager
    async def line(
        self, place: Place
    ) -> AsyncIterator[Callable[[peer_pb2.ReachRequest, float], Awaitable[peer_pb2.ReachResponse]]]:
        """Asks another daemon again and again over one connection, each time as `reach` does. Raises Refused."""
        async with self._peer(place) as stub:

            async def ask(request: peer_pb2.ReachRequest, seconds: float) -> peer_pb2.ReachResponse:
                return await self._answer(place, stub.Reach(request, timeout=self._patience(place, seconds)), "try")

            yield ask

    async def report(self, place: Place, seconds: float) -> peer_pb2.ReportResponse:
        """Asks another host how the jobs fare that it shares with this one. Raises Refused."""
        stub = await self._stub(place)
        return await self._answer(place, stub.Report(peer_pb2.ReportRequest(), timeout=seconds), "status of")

    def patience(self, place: Place) -> float:
        """Seconds of patience with a call to a daemon that answers at once."""
        return exchange(self.round_trip(place))

    async def find(self, place: Place) -> Place:
        """A numeric place with the node that answers there. Raises Refused."""
        return await self._found(place, "")

    def restore(self, place: Place, request: peer_pb2.RestoreRequest) -> None:
        """Tells a coordinator that came back what it has forgotten. Nobody waits for it."""

        async def tell() -> None:
            try:
                async with self._peer(place) as stub:
                    call = stub.Restore(request, timeout=self._patience(place, RESTORE_SECONDS))
                    await self._answer(place, call, "restore at")
            except Refused as error:
                log.warning("restore failed job=%s reason=%s", request.job, error)

        self._later(tell(), "restore")

    async def dials(self, place: Place) -> bool:
        """Whether a connection to a daemon comes about, and its node answers there."""
        if self._trust is None:
            return await listens(place.address, place.port)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return (await self._answers(place, dial=True)).node == place.node
        except TimeoutError:
            return False

    def round_trip(self, place: Place) -> RoundTrip:
        """How far a daemon is, as far as was measured."""
        return self._distances.to(place.address, place.port)

    async def close(self) -> None:
        """Ends all watches."""
        self.outgoing.close()
        self.lines.close()
        tasks = [*self.unwatch(), *self._once]
        for task in tasks:
            task.cancel()
        channels = [channel.close() for _, channel in self._channels.values()]
        await asyncio.gather(*tasks, *channels, return_exceptions=True)
        self._channels.clear()
        self.names.close()

    def _patience(self, place: Place, seconds: float) -> float:
        """For a call that has `seconds` where nobody is far."""
        return max(seconds, exchange(self.round_trip(place)))

    async def _stub(self, place: Place) -> Any:
        """Of a channel that stays open: what is asked for each op has no time to connect. Raises Unavailable."""
        version = self._trust.version if self._trust is not None else 0
        if place in self._channels and self._channels[place][0] != version:
            self._close_channel(place)
        if place not in self._channels:
            self._channels[place] = version, self._channel(place)
        channel = self._channels[place][1]
        try:
            await self._connected(place, channel)
        except Unavailable:
            if self._channels.get(place, (version, None))[1] is channel:
                self._close_channel(place)  # it would go on with what nobody answered
            raise
        return peer_pb2_grpc.PeerServiceStub(channel)

    def _close_channel(self, place: Place) -> None:
        """Calls that are under way on it may end."""
        if place in self._channels:
            self._later(self._channels.pop(place)[1].close(CLOSE_SECONDS), "close channel")

    def _channel(self, place: Place, message_bytes_max: int = MESSAGE_BYTES_MAX) -> grpc.aio.Channel:
        """A connection to one node. Raises PermissionDenied for a node that was withdrawn."""
        if self._trust is not None:
            self._trust.check_node(place.node)
        own = dict(CLIENT_OPTIONS)
        own["grpc.keepalive_timeout_ms"] = max(KEEPALIVE_TIMEOUT_MS, round(1000 * exchange(self.round_trip(place))))
        own["grpc.max_receive_message_length"] = message_bytes_max
        there = unix_target(self.lines.door(place)) if self.lines.leads_to(place) else str(place)
        if self._trust is None:
            return grpc.aio.insecure_channel(there, options=tuple(own.items()))
        options = (*own.items(), *self._trust.channel_options(place.node))
        return grpc.aio.secure_channel(there, self._trust.channel_credentials(), options=options)

    @contextlib.asynccontextmanager
    async def _peer(
        self, place: Place, seconds: float = math.inf, message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> AsyncIterator[peer_pb2_grpc.PeerServiceAsyncStub]:
        """The PeerService of the daemon at `place`, connected in `seconds` at most, with answers of so many bytes at
        most. Raises Unavailable."""
        async with self._channel(place, message_bytes_max) as channel:
            await self._connected(place, channel, seconds)
            stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
            yield stub

    async def _connected(self, place: Place, channel: grpc.aio.Channel, seconds: float = math.inf) -> None:
        """Returns when a connection stands, or was refused: why, a call then says. Raises Unavailable after `seconds`,
        or when patience is at its end."""
        clock = asyncio.get_running_loop().time
        began, patience = clock(), connection(self.round_trip(place))
        state = channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return
        try:
            async with asyncio.timeout(min(seconds, patience)):
                while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            if seconds >= patience:
                self._distances.late(place.address, place.port)
            raise Unavailable(f"{place}: no connection in {min(seconds, patience):.1f} s") from None
        if state is grpc.ChannelConnectivity.SHUTDOWN:  # another one who waited for it gave it up first, and closed it
            raise Unavailable(f"{place}: no connection in {clock() - began:.1f} s")
        if state is grpc.ChannelConnectivity.READY:
            exchanges = HANDSHAKES if self._trust is not None else HANDSHAKES - 1
            self._distances.stands(place.address, place.port, clock() - began, exchanges)

    async def _answers(self, place: Place, dial: bool = False) -> Answerer:
        """Which node answers there; `dial`: at that very address, not by a line."""
        assert self._trust is not None
        path = "" if dial else self._door(place)
        patience = connection(self.round_trip(place))
        return await answerer.who_answers(place.address, place.port, self._trust, patience, path)

    def _door(self, place: Place) -> str:
        return str(self.lines.door(place)) if self.lines.leads_to(place) else ""

    async def _found(self, place: Place, account: str) -> Place:
        """The place with the node that answers there. Raises Refused."""
        if self._trust is None or place.node:
            return place
        trouble: Refused = Unavailable("no address")
        for address in await self._addresses(place, account):
            found = await self._answers(place._replace(address=address))
            if found.trouble is None:
                return place._replace(address=address, node=found.node)
            trouble = found.trouble
        raise type(trouble)(f"rendezvous {place}: {trouble}")

    async def _addresses(self, place: Place, account: str) -> list[str]:
        try:
            return await self.names.resolve(place.address, account)
        except Unavailable as error:
            raise Unavailable(f"rendezvous {place}: {error}") from None

    async def _register(
        self, place: Place, request: peer_pb2.RegisterRequest, secret: bytes, seconds: float, account: str
    ) -> Membership:
        own = self._trust.node if self._trust is not None else ""
        until = asyncio.get_running_loop().time() + seconds
        if secret:
            request.proof.CopyFrom(job_secret.prove(secret, request.job, 0, own, place.node))
        async with self._peer(place, seconds) as stub:
            left = max(0.0, until - asyncio.get_running_loop().time())
            answer = await self._answer(place, stub.Register(request, timeout=left), "rendezvous")
        if secret and not job_secret.answers(
            secret, answer.proof, request.proof, request.job, answer.generation, own, place.node
        ):
            raise PermissionDenied(
                f"rendezvous {place}: node {place.node!r} does not prove that it knows the secret of job "
                f"{request.job!r}: give all ranks the same one"
            )
        address, *_ = await self._addresses(place, account)
        told = _checked(place, answer, request.world_size, address)
        if any(bool(host.node) is not (self._trust is not None) for host in told.hosts if not host.vacant):
            raise FailedPrecondition(f"rendezvous {place}: its answer is not valid: hosts: node: one for each, or none")
        return replace(told, meet=frozenset([place._replace(address=address)])) if told.elastic else told

    def _later(self, work: Coroutine[object, object, None], name: str) -> None:
        task = spawn(work, name)
        self._once.add(task)
        task.add_done_callback(self._once.discard)

    async def _answer(self, place: Place, call: Awaitable[Answer], about: str) -> Answer:
        try:
            answer: Answer = await answered(call)
            clean(answer)
            return answer
        except grpc.aio.AioRpcError as error:
            trouble = await self._trouble(place, error)
            raise trouble or from_rpc(error, f"{about} {place}") from None

    async def _trouble(self, place: Place, error: grpc.aio.AioRpcError) -> Refused | None:
        """What a call that met no daemon may have failed of, where gRPC does not say it; None if it does."""
        details = error.details() or ""
        if error.code() is not grpc.StatusCode.UNAVAILABLE or not any(word in details for word in UNEXPLAINED):
            return None
        patience = exchange(self.round_trip(place))
        if self._trust is None:
            secure = await answerer.demands_certificates(place.address, place.port, patience, self._door(place))
            return FailedPrecondition(f"{place}: {answerer.SECURE_THERE}") if secure else None
        found = await self._answers(place)
        if found.trouble is not None:
            return type(found.trouble)(f"{place}: {found.trouble}")
        if found.node != place.node:
            return PermissionDenied(f"{place}: node {found.node!r} answers there: allowed: node {place.node!r}")
        return Unavailable(f"{place}: {answerer.refused_us(self._trust)}")


def _checked(place: Place, answer: peer_pb2.RegisterResponse, world_size: int, address: str) -> Membership:
    """A coordinator's answer. Raises FailedPrecondition, naming the coordinator, if it is no membership."""
    try:
        return membership.membership(answer, world_size, address)
    except InvalidArgument as error:
        raise FailedPrecondition(f"rendezvous {place}: its answer is not valid: {error}") from None
