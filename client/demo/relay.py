# SPDX-License-Identifier: Apache-2.0
"""A bad network on loopback, without root: a process between the demo's daemons that loses and paces their datagrams.

    python -m ultima.demo.relay HOSTS REPORT    settings come on standard input, a line of JSON for each change

Each daemon tells its peers an address of loopback that is not its own but the relay's, with the same port numbers. The
relay takes what comes there and sends it on from the sender's address as others know it, so daemons see what they
would see on a network. A host's datagrams leave through its uplink and come through the downlink of the host that they
are for; each link passes so many bits per second, and its queue is finite. TCP, by which daemons agree on jobs, passes
as it is: what is lost and paced is the gradients.

Nothing here is on the path of a real network: this is for a demonstration, and says what it could not do in time.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# What IPv4, UDP and Ethernet put around each datagram: RFC 791, RFC 768, and IEEE 802.3 with preamble and gap.
HEADER_BYTES = 20 + 8 + 38
# What a link's queue holds: this long at its rate, as a switch's port of a few hundred KiB does, and at least one burst
# of segments as the kernel makes it (64 KiB).
QUEUE_S = 0.02
QUEUE_MIN_BYTES = 65536
BURST = 64
DATAGRAM_MAX = 65536
RECEIVE_BUFFER = 8 << 20
REPORT_S = 0.5


@dataclass(frozen=True)
class Weather:
    """What the network does to datagrams."""

    loss: float = 0.0
    """The share of them that it loses, each by a throw of its own."""
    rate: float = 0.0
    """Bits per second of each link; 0 for no limit."""
    delay: float = 0.0
    """Seconds that each of them is on its way, beyond what links take."""


@dataclass(frozen=True)
class Host:
    """A daemon: where it listens, and as what others know it. Both have the same ports."""

    address: str
    known_as: str
    tcp: int
    udp: tuple[int, ...]


@dataclass
class Counts:
    """What became of the datagrams since the weather changed last."""

    came: int = 0
    lost: int = 0
    """By the throw."""
    overflowed: int = 0
    """Because a link's queue was full."""
    late_s: float = 0.0
    """The longest that one left after its time: the machine was too slow for this network."""


@dataclass
class Link:
    """One direction of a host's cable."""

    free_at: float = 0.0

    def leave(self, now: float, size: int, rate: float) -> float | None:
        """When a datagram of |size| bytes that comes |now| has passed; None if the queue is full."""
        if not rate:
            return now
        begins = max(now, self.free_at)
        if (begins - now) * rate / 8 > max(QUEUE_MIN_BYTES, rate / 8 * QUEUE_S):
            return None
        self.free_at = begins + (size + HEADER_BYTES) * 8 / rate
        return self.free_at


@dataclass(order=True)
class _Passing:
    at: float
    number: int
    arrived: bool = field(compare=False)
    """Whether it has passed its second link, the downlink."""
    target: int = field(compare=False)
    size: int = field(compare=False)
    parcel: Any = field(compare=False)


class Network:
    """Uplinks and downlinks of some hosts, in whatever time the caller says it is. The same seed, the same losses."""

    def __init__(self, hosts: int, seed: int = 1) -> None:
        self._up, self._down = ([Link() for _ in range(hosts)] for _ in range(2))
        self._passing: list[_Passing] = []
        self._random = random.Random(seed)
        self._number = 0
        self.weather = Weather()
        self.counts = Counts()

    def change(self, weather: Weather) -> None:
        self.weather, self.counts = weather, Counts()

    def offer(self, now: float, source: int, target: int, size: int, parcel: Any) -> None:
        """A datagram of |size| bytes comes from a host; |parcel| is given back when it has arrived."""
        self.counts.came += 1
        if self.weather.loss and self._random.random() < self.weather.loss:
            self.counts.lost += 1
        else:
            self._pass(self._up[source].leave(now, size, self.weather.rate), False, target, size, parcel)

    def arrived(self, now: float) -> Iterator[Any]:
        """The parcels that have arrived, in order."""
        while self._passing and self._passing[0].at <= now:
            each = heapq.heappop(self._passing)
            if each.arrived:
                self.counts.late_s = max(self.counts.late_s, now - each.at)
                yield each.parcel
            else:
                at = self._down[each.target].leave(each.at, each.size, self.weather.rate)
                self._pass(at, True, each.target, each.size, each.parcel)

    def next(self) -> float | None:
        """When to ask again."""
        return self._passing[0].at if self._passing else None

    def _pass(self, at: float | None, arrived: bool, target: int, size: int, parcel: Any) -> None:
        if at is None:
            self.counts.overflowed += 1
            return
        self._number += 1
        at += 0.0 if arrived else self.weather.delay
        heapq.heappush(self._passing, _Passing(at, self._number, arrived, target, size, parcel))


class Relay:
    """The sockets between |hosts|, in an event loop."""

    def __init__(self, hosts: Sequence[Host], network: Network) -> None:
        self._hosts, self._network = hosts, network
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        """By host and port: where datagrams for the host come in, and from where those of the host go out."""
        self._senders = {(host.address, port): (at, port) for at, host in enumerate(hosts) for port in host.udp}
        self._timer: asyncio.TimerHandle | None = None
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises OSError where an address cannot be had."""
        loop = asyncio.get_running_loop()
        for at, host in enumerate(self._hosts):
            for port in host.udp:
                one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                self._sockets[at, port] = one
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
                one.bind((host.known_as, port))
                loop.add_reader(one, self._take, at, port, one)
            self._servers.append(await asyncio.start_server(self._joiner(host), host.known_as, host.tcp))

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        for one in self._sockets.values():
            loop.remove_reader(one)
            one.close()
        if self._timer is not None:
            self._timer.cancel()

    def unread(self) -> int:
        """Datagrams that the kernel has dropped because this process did not read them in time."""
        ours = {os.fstat(one.fileno()).st_ino for one in self._sockets.values()}
        rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
        return sum(int(row[12]) for row in rows if int(row[9]) in ours)

    def _take(self, target: int, port: int, one: socket.socket) -> None:
        now = time.monotonic()
        for _ in range(BURST):
            try:
                data, sender = one.recvfrom(DATAGRAM_MAX)
            except OSError:  # nothing more, or word of a port that a daemon has closed
                break
            source = self._senders.get(sender)
            if source is not None:
                self._network.offer(now, source[0], target, len(data), (source, (target, port), data))
        self._deliver()

    def _deliver(self) -> None:
        for source, (target, port), data in self._network.arrived(time.monotonic()):
            with suppress(OSError):  # a full buffer is a loss like another; a port may be closed
                self._sockets[source].sendto(data, (self._hosts[target].address, port))
        at = self._network.next()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._deliver)

    def _joiner(self, host: Host) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                theirs = await asyncio.open_connection(host.address, host.tcp)
            except OSError:
                writer.close()
                return
            with suppress(asyncio.CancelledError):
                await asyncio.gather(_pump(reader, theirs[1]), _pump(theirs[0], writer))

        return join


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes from one to the other until either ends."""
    try:
        while data := await reader.read(DATAGRAM_MAX):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(hosts: Sequence[Host], report: Path) -> None:
    """Relays until SIGTERM, or until standard input ends; each line there is a Weather. |report| is a file that holds
    the counts of now, and is there once datagrams can pass."""
    loop = asyncio.get_running_loop()
    network = Network(len(hosts))
    relay = Relay(hosts, network)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    before = 0  # unread datagrams at the last change
    rest = b""

    def tell() -> None:
        facts = {**asdict(network.weather), **asdict(network.counts), "unread": relay.unread() - before}
        new = report.with_suffix(".new")
        new.write_text(json.dumps(facts))
        new.replace(report)

    def heard() -> None:
        nonlocal before, rest
        piece = os.read(0, DATAGRAM_MAX)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            network.change(Weather(**json.loads(line)))
            before = relay.unread()
            tell()
        if not piece:
            ended.set()

    try:
        await relay.start()
        loop.add_reader(0, heard)
        while not ended.is_set():
            tell()
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), REPORT_S)
        tell()
    finally:
        relay.close()


def main() -> None:
    hosts = [
        Host(each["address"], each["known_as"], each["tcp"], tuple(each["udp"])) for each in json.loads(sys.argv[1])
    ]
    # select(2) waits to the microsecond, where epoll rounds up to a millisecond, which is many datagrams.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(serve(hosts, Path(sys.argv[2])))


if __name__ == "__main__":
    main()
