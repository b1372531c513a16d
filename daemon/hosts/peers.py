# SPDX-License-Identifier: Apache-2.0
"""This daemon as a client of the other ones: registering, connecting, and watching whether they live.

A watch is a stream that stays open; when it ends, the daemon at the other end has died, or cannot be reached, which
is the same to those who wait for its data. A process that is killed closes its sockets, so the news comes at once; a
host that vanishes is found out by keepalives. Both sides agree on those (`OPTIONS`), or the server would hang up for
too many pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import grpc
import grpc.aio

from ultima.daemon.base.addresses import resolve
from ultima.daemon.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    Refused,
    Unavailable,
    from_rpc,
)
from ultima.daemon.base.waiting import spawn
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.host import Membership, target
from ultima.v1 import peer_pb2, peer_pb2_grpc

log = logging.getLogger("ultimad.peers")

Place = tuple[str, int]
Answer = TypeVar("Answer")

KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 10_000, 5_000
MESSAGE_BYTES_MAX = 1 << 20

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
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # a proxy that is set for the web has no business between daemons
    ("grpc.use_local_subchannel_pool", 1),
)
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 5.0
MISSED_SECONDS = 2.0  # for which a daemon may refuse to be watched, before it counts as gone


@contextlib.asynccontextmanager
async def peer(place: Place) -> AsyncIterator[peer_pb2_grpc.PeerServiceAsyncStub]:
    """The PeerService of the daemon at `place`."""
    async with grpc.aio.insecure_channel(target(*place), options=CLIENT_OPTIONS) as channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
        yield stub


class Peers:
    """All connections that this daemon opens to others."""

    def __init__(
        self,
        watch_request: peer_pb2.WatchRequest,
        on_news: Callable[[Place, peer_pb2.WatchResponse], None],
        on_lost: Callable[[Place, bool], None],
        on_found: Callable[[Place, bool], None],
    ) -> None:
        """`on_lost` is told whether the watch stood: if so it broke, and this is the only call for it; if not, every
        attempt has failed for MISSED_SECONDS, and the call is repeated with each further one. `on_found` is told
        whether there was an `on_lost` before."""
        self._request = watch_request
        self._on_news, self._on_lost, self._on_found = on_news, on_lost, on_found
        self._watches: dict[Place, asyncio.Task[None]] = {}
        self._channels: dict[Place, grpc.aio.Channel] = {}
        self._once: set[asyncio.Task[None]] = set()

    async def register(self, place: Place, request: peer_pb2.RegisterRequest, deadline: float) -> Membership:
        """Registers a rank with a coordinator, trying until `deadline` while nobody is there. Raises Refused."""
        loop = asyncio.get_running_loop()
        delay, why = RETRY_SECONDS_MIN, "no answer"
        while (left := deadline - loop.time()) > 0:
            try:
                async with peer(place) as stub:
                    response = await self._answer(place, stub.Register(request, timeout=left), "rendezvous")
                return _checked(place, response, request.world_size, await resolve(*place))
            except Unavailable as error:
                why = str(error)
                await asyncio.sleep(min(delay * random.uniform(0.5, 1.0), max(0.0, deadline - loop.time())))
                delay = min(2 * delay, 1.0)
        raise DeadlineExceeded(f"rendezvous {target(*place)}: cannot be reached: {why}")

    async def connect(self, place: Place, request: peer_pb2.ConnectRequest, seconds: float) -> peer_pb2.ConnectResponse:
        """Offers a path to another host of a job. Raises Refused."""
        async with peer(place) as stub:
            return await self._answer(place, stub.Connect(request, timeout=seconds), "connect to")

    async def apply_options(
        self, place: Place, request: peer_pb2.ApplyOptionsRequest, seconds: float
    ) -> peer_pb2.ApplyOptionsResponse:
        """Tells another host of a job what options are in force. Raises Refused."""
        async with peer(place) as stub:
            return await self._answer(place, stub.ApplyOptions(request, timeout=seconds), "options at")

    async def probe(self, place: Place, request: peer_pb2.ProbeRequest, seconds: float) -> peer_pb2.ProbeResponse:
        """Asks whether a rank is ready; answered when it is. Raises Refused."""
        return await self._answer(place, self._stub(place).Probe(request, timeout=seconds), "probe at")

    async def activate(
        self, place: Place, request: peer_pb2.ActivateRequest, seconds: float
    ) -> peer_pb2.ActivateResponse:
        """Makes another host of a job the initiator of an op. Raises Refused."""
        return await self._answer(place, self._stub(place).Activate(request, timeout=seconds), "activate at")

    def restore(self, place: Place, request: peer_pb2.RestoreRequest) -> None:
        """Tells a coordinator that came back what it has forgotten. Nobody waits for it."""

        async def tell() -> None:
            try:
                async with peer(place) as stub:
                    await self._answer(place, stub.Restore(request, timeout=5.0), "restore at")
            except Refused as error:
                log.warning("restore failed job=%s reason=%s", request.job, error)

        self._later(tell(), "restore")

    def watch(self, places: Iterable[Place]) -> None:
        """Watches exactly these daemons from now on."""
        wanted = set(places)
        for place in self._watches.keys() - wanted:
            self._watches.pop(place).cancel()
            if place in self._channels:
                self._later(self._channels.pop(place).close(), "close channel")
        for place in wanted - self._watches.keys():
            self._watches[place] = spawn(self._keep_watching(place), f"watch {target(*place)}")

    def watched(self) -> set[Place]:
        """The daemons that are watched now."""
        return set(self._watches)

    async def close(self) -> None:
        """Ends all watches."""
        tasks = [*self._watches.values(), *self._once]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(channel.close() for channel in self._channels.values()), return_exceptions=True)
        self._channels.clear()

    def _stub(self, place: Place) -> Any:
        """Of a channel that stays open: what is asked for each op has no time to connect."""
        if place not in self._channels:
            self._channels[place] = grpc.aio.insecure_channel(target(*place), options=CLIENT_OPTIONS)
        return peer_pb2_grpc.PeerServiceStub(self._channels[place])

    def _later(self, work: Coroutine[object, object, None], name: str) -> None:
        task = spawn(work, name)
        self._once.add(task)
        task.add_done_callback(self._once.discard)

    async def _answer(self, place: Place, call: Awaitable[Answer], about: str) -> Answer:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, f"{about} {target(*place)}") from None

    async def _keep_watching(self, place: Place) -> None:
        clock = asyncio.get_running_loop().time
        delay, lost_before, missed_from = RETRY_SECONDS_MIN, False, clock() + MISSED_SECONDS
        while True:
            stands = False
            try:
                async with peer(place) as stub:
                    stream: Any = stub.Watch(self._request)
                    async for news in stream:
                        if not stands:
                            stands, delay = True, RETRY_SECONDS_MIN
                            log.debug("watch stands place=%s", target(*place))
                            self._on_found(place, lost_before)
                        if news.job:
                            self._on_news(place, news)
                why = "it ended the stream"
            except grpc.aio.AioRpcError as error:
                why = " ".join((error.details() or error.code().name).split())
            except Exception:  # our own mistake, but a peer that nobody watches would be worse
                log.exception("watch failed place=%s", target(*place))
                why = "internal error"
            if stands:
                log.warning("peer daemon lost place=%s reason=%s", target(*place), why)
                missed_from = clock() + MISSED_SECONDS
            if stands or clock() >= missed_from:
                # A peer may die between its Connect and the first watch, or between two: no stream ends to tell of it.
                lost_before = True
                self._on_lost(place, stands)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, RETRY_SECONDS_MAX)


def _checked(place: Place, answer: peer_pb2.RegisterResponse, world_size: int, address: str) -> Membership:
    """A coordinator's answer. Raises FailedPrecondition, naming the coordinator, if it is no membership."""
    try:
        return membership.membership(answer, world_size, address)
    except InvalidArgument as error:
        raise FailedPrecondition(f"rendezvous {target(*place)}: its answer is not valid: {error}") from None
