# SPDX-License-Identifier: Apache-2.0
"""Whether datagrams get from one daemon to another: sends a few that belong to no job, and tells how many came.

They go from the engines' own sockets to the ports that jobs use, so a firewall treats them as it treats a job's
packets. An engine counts what belongs to no job, and the two counts, before and after, are the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from ultima.daemon.base.errors import Refused
from ultima.daemon.base.ranges import whole
from ultima.daemon.base.rate import Rate
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.peers import Peers
from ultima.v1 import peer_pb2, types_pb2
from ultima.v1.limits import LANES_MAX, PACKET_BYTES_MAX, WIRE_VERSION

PACKETS = 8
SMALL_BYTES = 64
FULL_TRIES = 3  # at one full packet, of which a call may ask for no more
# What a node may have sent to itself: two examinations of all ports, of 36 KiB each, and then one in 5 s. ASK_BYTES are
# what a call costs in work and in its answer.
BYTES_AT_ONCE, BYTES_PER_SECOND, ASK_BYTES = 96 << 10, 8 << 10, 256
CALL_SECONDS = 2.0
LINE_SECONDS = 6.5  # on a connection that stands: TCP sends a packet again after .2, .6, 1.4, 3 and 6.2 s (RFC 6298)
FLIGHT_SECONDS = 0.25  # for datagrams to arrive, and to be counted, where nobody is far
STRANGE = ("malformed", "unknown")  # counters of datagrams that belong to no job


Ports = list[tuple[int, int]]
"""Pairs of a data and a feedback port, one of each thread of an engine."""
Asking = Callable[[peer_pb2.ReachRequest, float], Awaitable[peer_pb2.ReachResponse]]


class Line:
    """One connection to another daemon, over which datagrams are tried both ways at once. Raises Refused."""

    def __init__(self, engine: HostEngine, place: Place, asking: Asking, flight: Callable[[], float]) -> None:
        """`flight` is how many seconds datagrams may be under way."""
        self._engine, self._place, self._asking, self._flight = engine, place, asking, flight

    async def ask(self, request: peer_pb2.ReachRequest | None = None) -> peer_pb2.ReachResponse:
        """What the other daemon is, and how many strange datagrams came there."""
        return await self._asking(request or peer_pb2.ReachRequest(), LINE_SECONDS)

    async def both(
        self, ours: Ports, theirs: Ports, feedback: bool, size: int, packets: int
    ) -> tuple[list[int], list[int]]:
        """For each pair of ports: how many of so many datagrams of `size` bytes arrived there, and how many here."""
        before = strangers(self._engine)
        to = [types_pb2.Lane(data_port=data, feedback_port=other) for data, other in _only(ours, feedback)]
        told = await self.ask(peer_pb2.ReachRequest(to=to, bytes=size, packets=packets))
        send(self._engine, self._place.address, _only(theirs, feedback), size, packets)
        await asyncio.sleep(self._flight())
        after = (await self.ask()).strangers
        there = [b - a for a, b in zip(told.strangers, after, strict=False)][: len(theirs)]
        here = [b - a for a, b in zip(before, strangers(self._engine), strict=False)][: len(ours)]
        return there, here


class Trial:
    """Tries the ports between this daemon and others. Raises Refused where the other one does not answer over TCP."""

    def __init__(self, engine: HostEngine, peers: Callable[[], Peers]) -> None:
        self._engine, self._peers = engine, peers

    @property
    def ports(self) -> Ports:
        """Of this host."""
        return [*self._engine.ports]

    async def find(self, place: Place) -> Place:
        """The place with the node that answers there: all that is asked then is asked of that node."""
        return await self._peers().find(place)

    async def ask(self, place: Place, request: peer_pb2.ReachRequest | None = None) -> peer_pb2.ReachResponse:
        """What another daemon is, and how many strange datagrams came there."""
        return await self._peers().reach(place, request or peer_pb2.ReachRequest(), CALL_SECONDS)

    @contextlib.asynccontextmanager
    async def line(self, place: Place) -> AsyncIterator[Line]:
        """A connection for many questions."""
        async with self._peers().line(place) as asking:
            yield Line(self._engine, place, asking, lambda: self._flight(place))

    async def outward(
        self, place: Place, ports: Ports, feedback: bool, size: int = SMALL_BYTES, to: str = ""
    ) -> list[bool]:
        """For each pair: whether any of a few datagrams to that port of the other daemon's arrived there. `to`: its
        address for datagrams, where that is another one."""
        before = (await self.ask(place)).strangers
        send(self._engine, to or place[0], _only(ports, feedback), size, PACKETS)
        await self._in_flight(place)
        after = (await self.ask(place)).strangers
        return [b > a for a, b in zip(before, after, strict=False)][: len(ports)]

    async def inward(self, place: Place, pairs: int, feedback: bool, size: int = SMALL_BYTES) -> list[bool]:
        """The same from there to the ports here."""
        before = strangers(self._engine)
        to = [types_pb2.Lane(data_port=a, feedback_port=b) for a, b in _only(self.ports[:pairs], feedback)]
        came: list[bool] = []
        for _ in range(1 if size <= SMALL_BYTES else FULL_TRIES):
            packets = PACKETS if size <= SMALL_BYTES else 1
            await self.ask(place, peer_pb2.ReachRequest(to=to, bytes=size, packets=packets))
            await self._in_flight(place)
            came = [b > a for a, b in zip(before, strangers(self._engine), strict=False)][:pairs]
            if all(came):
                break
        return came

    async def _in_flight(self, place: Place) -> None:
        await asyncio.sleep(self._flight(place))

    def _flight(self, place: Place) -> float:
        return max(FLIGHT_SECONDS, self._peers().round_trip(place).most)


def _only(ports: Ports, feedback: bool) -> Ports:
    return [(0, second) if feedback else (first, 0) for first, second in ports]


def strangers(engine: HostEngine) -> list[int]:
    """For each pair of ports here: datagrams that belonged to no job, since the start."""
    return [sum(stats.get(name, 0) for name in STRANGE) for stats in engine.stats_of_each()]


def rate() -> Rate:
    """What nodes have had sent to them."""
    return Rate("datagrams of `ultima doctor`", BYTES_PER_SECOND, BYTES_AT_ONCE, time.monotonic)


def reach(
    request: peer_pb2.ReachRequest, engine: HostEngine, source: str, account: str, spent: Rate, version: str
) -> peer_pb2.ReachResponse:
    """Answers PeerService.Reach; `source` is where the call comes from, and the only place that is sent to. `account`
    is who has `spent` what is sent. Raises Refused."""
    whole("bytes", request.bytes, 0, PACKET_BYTES_MAX)
    whole("packets", request.packets, 0, PACKETS if request.bytes <= SMALL_BYTES else 1)
    whole("to", len(request.to), 0, LANES_MAX)
    wanted = sum(bool(pair.data_port) + bool(pair.feedback_port) for pair in request.to[: engine.count])
    spent.spend(account, ASK_BYTES + wanted * request.packets * request.bytes)
    ports = [(pair.data_port, pair.feedback_port) for pair in request.to]
    return peer_pb2.ReachResponse(
        refused=send(engine, source, ports, request.bytes, request.packets),
        strangers=strangers(engine),
        lanes=[types_pb2.Lane(data_port=data, feedback_port=feedback) for data, feedback in engine.ports],
        version=version,
        wire_version=WIRE_VERSION,
        packet_bytes=engine.info.packet_bytes,
        clock_ns=time.time_ns(),
    )


def send(engine: HostEngine, address: str, ports: list[tuple[int, int]], size: int, packets: int) -> str:
    """Sends to each pair of ports from the same pair here; port 0 is left out. Returns why the
    kernel refused, "" if it did not."""
    refused = ""
    for at, pair in enumerate(ports[: engine.count]):
        for feedback, port in enumerate(pair):
            try:
                if port and packets:
                    engine.send_strange(at, bool(feedback), address, port, size, packets)
            except Refused as error:
                refused = str(error)
    return refused
