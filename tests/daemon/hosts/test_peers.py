# SPDX-License-Identifier: Apache-2.0
"""This daemon as a client of one that is far away, silent, or gone. A relay holds back what goes through it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.daemon.helpers import eventually
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.hosts import distance, watching
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.lines import Lines
from ultima.daemon.hosts.peers import OPTIONS, Peers
from ultima.daemon.hosts.watching import Told
from ultima.v1 import peer_pb2, peer_pb2_grpc

ONE_WAY = 0.15
FORMING = peer_pb2.FormingResponse(world_size=2, ranks=[0])


class Far(peer_pb2_grpc.PeerServiceServicer):
    """The daemon at the other end."""

    async def Forming(self, request: Any, context: Any) -> peer_pb2.FormingResponse:
        return FORMING

    async def Hear(self, request: Any, context: Any) -> peer_pb2.HearResponse:
        return peer_pb2.HearResponse(incarnation=7)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[peer_pb2.WatchResponse]:
        yield peer_pb2.WatchResponse()
        await asyncio.Event().wait()


@dataclass
class Heard:
    """What the daemon is told of those that it watches."""

    found: list[float] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)

    def peers(self) -> Peers:
        told = Told(
            on_news=lambda place, news: None,
            on_lost=lambda place, stood: self.lost.append(stood),
            on_found=lambda place: self.found.append(time.monotonic()),
        )
        return Peers(peer_pb2.WatchRequest(incarnation=1, grpc_port=1), told, None, Lines(Path("/nonexistent")))


async def later(seconds: float, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Hands on what comes, each piece `seconds` after it came."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while piece := await source.read(65536):
            loop.call_later(seconds, sink.write, piece)
        await asyncio.sleep(seconds)
    sink.close()


@contextlib.asynccontextmanager
async def far(one_way: float = ONE_WAY) -> AsyncIterator[tuple[Place, grpc.aio.Server]]:
    """Where a daemon is found whose bytes take so long to come and to go, and the daemon."""
    server = grpc.aio.server(options=OPTIONS)
    peer_pb2_grpc.add_PeerServiceServicer_to_server(Far(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tasks: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        for source, sink in ((reader, back), (there, writer)):
            tasks.add(asyncio.create_task(later(one_way, source, sink)))

    listener = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield Place("127.0.0.1", listener.sockets[0].getsockname()[1]), server
    finally:
        listener.close()
        await server.stop(None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[Place]:
    """Where connections are taken, and nothing is ever said."""
    listener = await asyncio.start_server(lambda reader, writer: reader.read(), "127.0.0.1", 0)
    try:
        yield Place("127.0.0.1", listener.sockets[0].getsockname()[1])
    finally:
        listener.close()


async def test_calls__to_a_daemon_that_is_far_have_the_time_and_measure_the_way() -> None:
    heard = Heard()
    peers = heard.peers()
    async with far() as (place, _):
        assert not peers.round_trip(place).measured
        # Less than a round trip is what the caller would give where nobody is far.
        assert await peers.forming(place, "job", 0.05, "uid 1") == FORMING
        trip = peers.round_trip(place)
        # TCP's own handshake is with the relay, at once, and the server's settings come unasked: of the two exchanges
        # of a connection one way is left.
        assert ONE_WAY / 2 <= trip.mean < 4 * ONE_WAY
        for _ in range(2):
            assert (await peers.hear(place, peer_pb2.HearRequest(), 0.05)).incarnation == 7
        await peers.close()


async def test_watch__of_a_daemon_that_is_far_stands_and_its_end_is_told_at_once() -> None:
    heard = Heard()
    peers = heard.peers()
    async with far() as (place, server):
        peers.watch([place])
        await eventually(lambda: bool(heard.found), "the watch stands")
        assert heard.lost == []
        await server.stop(None)
        took = await eventually(lambda: bool(heard.lost), "its end is told")
        assert heard.lost == [True] and took < 2.0
        await peers.close()


async def test_connection__that_nobody_answers_is_given_up_when_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "INITIAL_SECONDS", 0.05)
    monkeypatch.setattr(distance, "LEAST_SECONDS", 0.05)
    peers = Heard().peers()
    async with silent() as place:
        for call in (peers.forming(place, "job", 60.0, "uid 1"), peers.hear(place, peer_pb2.HearRequest(), 60.0)):
            began = time.monotonic()
            with pytest.raises(Unavailable, match=r"no connection in 0\.3 s"):
                await call
            assert time.monotonic() - began < 5.0
        # Several at once on the connection that stays open: each hears of it, whoever gives it up first.
        asked = [peers.hear(place, peer_pb2.HearRequest(), 60.0) for _ in range(5)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Unavailable] * 5, answers
        waiting = asyncio.ensure_future(peers.hear(place, peer_pb2.HearRequest(), 60.0))
        await asyncio.sleep(0.01)
        peers._close_channel(place)  # as the first of several does
        with pytest.raises(Unavailable, match="no connection in"):
            await waiting
        await peers.close()


async def test_connection__that_is_refused_is_told_as_refused_and_at_once() -> None:
    async with silent() as place:
        pass
    peers = Heard().peers()
    began = time.monotonic()
    with pytest.raises(Unavailable, match="refused"):
        await peers.forming(place, "job", 60.0, "uid 1")
    with pytest.raises(Unavailable, match="refused"):
        await peers.hear(place, peer_pb2.HearRequest(), 60.0)
    assert time.monotonic() - began < distance.connection(distance.RoundTrip()) / 2
    await peers.close()


async def test_watch__of_who_never_answers_is_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was measured, as near: then a watch is missed for so long and no longer, though a connection may take more."""
    monkeypatch.setattr(watching, "MISSED_SECONDS", 1.0)
    monkeypatch.setattr(distance, "LEAST_SECONDS", 0.1)
    heard = Heard()
    peers = heard.peers()
    async with silent() as mute:
        peers._distances.stands(mute.address, mute.port, 0.001, 2)
        peers.watch([mute])
        took = await eventually(lambda: bool(heard.lost), "it is told as lost")
        assert heard.lost == [False] and 0.7 < took < 4.0
        await peers.close()
