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
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from ultima.daemon.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    Refused,
    Unavailable,
    from_rpc,
    said,
)
from ultima.daemon.base.names import Names
from ultima.daemon.base.waiting import spawn
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.distance import HANDSHAKES, Distances, RoundTrip, connection, exchange
from ultima.daemon.hosts.host import Membership, Place
from ultima.daemon.hosts.proofs import Proofs
from ultima.daemon.trust import answerer, job_secret
from ultima.daemon.trust.answerer import Answerer
from ultima.daemon.trust.trust import RENEW_SECONDS, Trust
from ultima.v1 import peer_pb2, peer_pb2_grpc, records_pb2
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
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 5.0
RESTORE_SECONDS = 5.0  # for a coordinator to take over what it is told
CLOSE_SECONDS = 5.0  # for calls that are under way on a channel that is replaced
# Words of gRPC's for a connection that ended in a handshake. A port where nobody listens explains itself.
UNEXPLAINED = ("Socket closed", "handshake", "Custom verification check")
MISSED_SECONDS = 2.0  # for which a daemon may refuse to be watched, at least, before it counts as gone
UNPROVEN_SECONDS = 60.0  # for which a place is called where no peer has ever answered
LOOK_SECONDS = 2.0  # between two looks whether a watch is to be made anew


@dataclass(eq=False)
class _Stream:
    """One stream of a watch."""

    task: asyncio.Task[str]
    """Ends when the stream does, and says why."""
    version: int
    """Of the certificates that it was made with."""
    began: float
    stands: bool = False


class Peers:
    """All connections that this daemon opens to others."""

    def __init__(
        self,
        watch_request: peer_pb2.WatchRequest,
        on_news: Callable[[Place, peer_pb2.WatchResponse], None],
        on_lost: Callable[[Place, bool], None],
        on_found: Callable[[Place], None],
        trust: Trust | None = None,
    ) -> None:
        """`on_lost` is told whether the watch stood: if so it broke, and this is the only call for it; if not, every
        attempt has failed for MISSED_SECONDS or, where that is more, for what a connection and a call may take; and the
        call is repeated with each further one. `on_found` is called each time that a watch stands, after a break or as
        the first one."""
        self._request, self._trust = watch_request, trust
        self._on_news, self._on_lost, self._on_found = on_news, on_lost, on_found
        self._watches: dict[Place, asyncio.Task[None]] = {}
        self._streams: dict[Place, _Stream] = {}
        self._channels: dict[Place, tuple[int, grpc.aio.Channel]] = {}
        self._distances = Distances()
        self._once: set[asyncio.Task[None]] = set()
        self.names = Names()
        self.proofs = Proofs(lambda place: asyncio.ensure_future(self._answers(place)), self.stands)

    async def register(
        self, place: Place, request: peer_pb2.RegisterRequest, secret: bytes, deadline: float
    ) -> Membership:
        """Registers a rank with a coordinator, trying until `deadline` while nobody is there. Raises Refused.

        Where the job has a secret, the coordinator must know it as well.
        """
        loop = asyncio.get_running_loop()
        delay, why = RETRY_SECONDS_MIN, "no answer"
        while (left := deadline - loop.time()) > 0:
            try:
                account = f"uid {request.uid}"
                return await self._register(await self._found(place, account), request, secret, left, account)
            except Unavailable as error:
                why = str(error)
                await asyncio.sleep(min(delay * random.uniform(0.5, 1.0), max(0.0, deadline - loop.time())))
                delay = min(2 * delay, 1.0)
        raise DeadlineExceeded(f"rendezvous {place}: cannot be reached: {why}")

    async def connect(self, place: Place, request: peer_pb2.ConnectRequest, seconds: float) -> peer_pb2.ConnectResponse:
        """Offers a path to another host of a job. Raises Refused."""
        async with self._peer(place) as stub:
            call = stub.Connect(request, timeout=self._patience(place, seconds))
            return await self._answer(place, call, "connect to")

    async def apply_options(
        self, place: Place, request: peer_pb2.ApplyOptionsRequest, seconds: float
    ) -> peer_pb2.ApplyOptionsResponse:
        """Tells another host of a job what options are in force. Raises Refused."""
        async with self._peer(place) as stub:
            call = stub.ApplyOptions(request, timeout=self._patience(place, seconds))
            return await self._answer(place, call, "options at")

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
            async with self._peer(place, message_bytes_max=READ_PART_BYTES_MAX) as stub:
                async for answer in stub.ReadOps(request, timeout=self._patience(place, seconds)):
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

    async def hear(self, place: Place, request: peer_pb2.HearRequest, seconds: float) -> peer_pb2.HearResponse:
        """Asks another host of a job what it sends to this one and hears of it. Raises Refused."""
        stub = await self._stub(place)
        return await self._answer(place, stub.Hear(request, timeout=self._patience(place, seconds)), "counts of")

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

    def watch(self, places: Iterable[Place], answered: Collection[Place] = ()) -> None:
        """Watches exactly these daemons from now on; but one that never answered for UNPROVEN_SECONDS only if it has
        `answered` since."""
        wanted = set(places)
        for place in [place for place in answered if place in self._watches and self._watches[place].done()]:
            del self._watches[place]
        for place in self._watches.keys() - wanted:
            self._watches.pop(place).cancel()
            self._close_channel(place)
        for place in wanted - self._watches.keys():
            self._watches[place] = spawn(self._keep_watching(place), f"watch {place}")

    def stands(self, place: Place) -> bool:
        """Whether a watch of it stands: the node is there."""
        return place in self._streams and self._streams[place].stands

    def watched(self) -> set[Place]:
        """The daemons that are watched now."""
        return set(self._watches)

    def watch_versions(self) -> list[int]:
        """With which certificates each watch was made (Trust.version)."""
        return [stream.version for stream in self._streams.values()]

    def round_trip(self, place: Place) -> RoundTrip:
        """How far a daemon is, as far as was measured."""
        return self._distances.to(place.address, place.port)

    async def close(self) -> None:
        """Ends all watches."""
        tasks = [*self._watches.values(), *self._once]
        self._watches.clear()
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
        own = dict(CLIENT_OPTIONS)
        own["grpc.keepalive_timeout_ms"] = max(KEEPALIVE_TIMEOUT_MS, round(1000 * exchange(self.round_trip(place))))
        own["grpc.max_receive_message_length"] = message_bytes_max
        if self._trust is None:
            return grpc.aio.insecure_channel(str(place), options=tuple(own.items()))
        options = (*own.items(), *self._trust.channel_options(place.node))
        return grpc.aio.secure_channel(str(place), self._trust.channel_credentials(), options=options)

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
        if state is grpc.ChannelConnectivity.READY:
            exchanges = HANDSHAKES if self._trust is not None else HANDSHAKES - 1
            self._distances.stands(place.address, place.port, clock() - began, exchanges)

    async def _answers(self, place: Place) -> Answerer:
        assert self._trust is not None
        return await answerer.who_answers(place.address, place.port, self._trust, connection(self.round_trip(place)))

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
        if any(bool(host.node) is not (self._trust is not None) for host in told.hosts):
            raise FailedPrecondition(f"rendezvous {place}: its answer is not valid: hosts: node: one for each, or none")
        return told

    def _later(self, work: Coroutine[object, object, None], name: str) -> None:
        task = spawn(work, name)
        self._once.add(task)
        task.add_done_callback(self._once.discard)

    async def _answer(self, place: Place, call: Awaitable[Answer], about: str) -> Answer:
        try:
            answer = await call
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
            secure = await answerer.demands_certificates(place.address, place.port, patience)
            return FailedPrecondition(f"{place}: {answerer.SECURE_THERE}") if secure else None
        found = await self._answers(place)
        if found.trouble is not None:
            return type(found.trouble)(f"{place}: {found.trouble}")
        if found.node != place.node:
            return PermissionDenied(f"{place}: node {found.node!r} answers there: allowed: node {place.node!r}")
        return Unavailable(f"{place}: {answerer.refused_us(self._trust)}")

    async def _keep_watching(self, place: Place) -> None:
        clock = asyncio.get_running_loop().time
        delay, missed_from = RETRY_SECONDS_MIN, clock() + self._missed(place)
        began: float | None = clock()
        while True:
            # A way of which nothing is known has the time of a first connection.
            left = missed_from - clock() if self.round_trip(place).measured else 0.0
            stands, why = await self._watch_once(place, left if left > 0 else math.inf)
            began = None if stands else began
            if stands:
                delay = RETRY_SECONDS_MIN
                log.warning("peer daemon lost place=%s reason=%s", place, why)
                missed_from = clock() + self._missed(place)
            if stands or clock() >= missed_from:
                # A peer may die between its Connect and the first watch, or between two: no stream ends to tell of it.
                self._on_lost(place, stands)
            if began is not None and clock() >= began + UNPROVEN_SECONDS:
                log.warning("peer daemon never answered place=%s seconds=%.0f reason=%s", place, clock() - began, why)
                return  # whoever it is, it may be none of ours
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, RETRY_SECONDS_MAX)

    def _missed(self, place: Place) -> float:
        """For how long a daemon may refuse to be watched."""
        trip = self.round_trip(place)
        return max(MISSED_SECONDS, connection(trip) + exchange(trip) if trip.measured else 0.0)

    async def _watch_once(self, place: Place, seconds: float) -> tuple[bool, str]:
        """Watches until nothing does any more, connected in `seconds` at most; whether a stream has stood, and why it
        ended."""

        def found() -> None:
            log.debug("watch stands place=%s", place)
            self._on_found(place)

        now, then = self._begin(place, found, seconds), None
        self._streams[place] = now
        retry = -math.inf
        try:
            while True:
                waited = [stream.task for stream in (now, then) if stream is not None]
                look = LOOK_SECONDS if self._trust is not None else None
                await asyncio.wait(waited, timeout=look, return_when=asyncio.FIRST_COMPLETED)
                if then is not None and then.stands:
                    now.task.cancel()
                    now, then = then, None
                    self._streams[place] = now
                elif then is not None and then.task.done():
                    log.warning("watch not renewed place=%s reason=%s", place, then.task.result())
                    then, retry = None, asyncio.get_running_loop().time() + RETRY_SECONDS_MAX
                if now.task.done():
                    return now.stands, now.task.result()
                if then is None and self._is_old(now) and asyncio.get_running_loop().time() >= retry:
                    then = self._begin(place, lambda: None)
        finally:
            del self._streams[place]
            for stream in (now, then):
                if stream is not None:
                    stream.task.cancel()

    def _is_old(self, stream: _Stream) -> bool:
        """Whether a stream is to be replaced: it rests on former certificates, or may be ended soon for its age."""
        if self._trust is None or not stream.stands:
            return False
        age = asyncio.get_running_loop().time() - stream.began
        return stream.version != self._trust.version or age >= RENEW_SECONDS

    def _begin(self, place: Place, on_found: Callable[[], None], seconds: float = math.inf) -> _Stream:
        async def run() -> str:
            return await self._listen(place, found, seconds)

        def found() -> None:
            stream.stands = True
            on_found()

        version = self._trust.version if self._trust is not None else 0
        stream = _Stream(asyncio.create_task(run()), version, asyncio.get_running_loop().time())
        return stream

    async def _listen(self, place: Place, on_found: Callable[[], None], seconds: float) -> str:
        """One stream of a watch, to its end; says why it ended."""
        stands = False
        try:
            async with self._peer(place, seconds) as stub:
                stream: Any = stub.Watch(self._request)
                async for news in stream:
                    clean(news)
                    if not stands:
                        stands = True
                        on_found()
                    if news.job:
                        self._on_news(place, news)
            return "it ended the stream"
        except grpc.aio.AioRpcError as error:
            trouble = None if stands else await self._trouble(place, error)
            return str(trouble or said(error))
        except Unavailable as error:
            return str(error)
        except Exception:  # our own mistake, but a peer that nobody watches would be worse
            log.exception("watch failed place=%s", place)
            return "internal error"


def _checked(place: Place, answer: peer_pb2.RegisterResponse, world_size: int, address: str) -> Membership:
    """A coordinator's answer. Raises FailedPrecondition, naming the coordinator, if it is no membership."""
    try:
        return membership.membership(answer, world_size, address)
    except InvalidArgument as error:
        raise FailedPrecondition(f"rendezvous {place}: its answer is not valid: {error}") from None
