# SPDX-License-Identifier: Apache-2.0
"""Bounds the connections to the two gRPC servers, so that nobody takes the descriptors or the places of all others.

gRPC accepts whoever comes, and does not tell its handlers of connections that make no call. So the daemon looks at its
own sockets a few times a second. Where a door has more connections than its bound, whoever has the most loses the
newest of them, again and again: one who has few keeps them, however many others want. On the Unix socket users are told
apart, by the word of the kernel; on the port for peers addresses, of which IPv6 gives one host a network of 2^64.

The port for peers may use a quarter of the descriptors that this process may have, and the socket an eighth. The rest
is for trainers, who attach elsewhere (attach.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import socket
import stat
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from ultima.daemon.base.logs import about
from ultima.daemon.trainers.attach import credentials

LOCAL_MAX, PEERS_MAX = 128, 4096
LOCAL_SHARE, PEERS_SHARE = 8, 4  # one of so many descriptors
LOCAL_STREAMS_MAX = 64  # calls of one connection to the Unix socket
LOOK_SECONDS = 0.25
IDLE = ("grpc.max_connection_idle_ms", 60_000)  # a connection that has made no call for so long is closed

log = logging.getLogger("ultimad.doors")
Whose = Callable[[socket.socket], Hashable]


@dataclass(frozen=True, slots=True)
class Door:
    """Where connections come in: `name` is for the log, `here` is the address of our end, `most` the bound."""

    name: str
    family: tuple[int, ...]
    here: Callable[[socket.socket], bool]
    whose: Whose
    most: int


def local_door(path: str, descriptors: int) -> Door:
    """The Unix socket at `path`; `descriptors` is how many this process may have."""
    return Door(
        "local",
        (socket.AF_UNIX,),
        lambda connection: connection.getsockname() == path,
        lambda connection: credentials(connection)[1],
        min(LOCAL_MAX, descriptors // LOCAL_SHARE),
    )


def peer_door(port: int, descriptors: int) -> Door:
    """The TCP port for other daemons."""
    return Door(
        "peers",
        (socket.AF_INET, socket.AF_INET6),
        lambda connection: connection.getsockname()[1] == port,
        lambda connection: network_of(str(connection.getpeername()[0])),
        min(PEERS_MAX, descriptors // PEERS_SHARE),
    )


def network_of(address: str) -> str:
    """What counts as one caller: an IPv4 address, or the /64 of an IPv6 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def raise_limit() -> int:
    """Lets this process have as many descriptors as its hard limit allows; returns how many. A sandbox that forbids it
    is one that has set the limits itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@dataclass(frozen=True, slots=True)
class _Guest:
    """A connection that came through a door; `since` is the number of the look that saw it first."""

    since: int
    fd: int
    inode: int
    door: Door
    whose: Hashable


class Doorkeeper:
    """See the module. It belongs to the event loop."""

    def __init__(self, *doors: Door) -> None:
        self._doors = doors
        self._looks = 0
        self._known: dict[tuple[int, int], _Guest | None] = {}
        """By descriptor and inode, what each socket is; None: it came through no door."""

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> int:
        """Ends what is too much; returns how many connections that were."""
        self._looks += 1
        held: dict[Door, dict[Hashable, list[_Guest]]] = {door: defaultdict(list) for door in self._doors}
        known, self._known = self._known, {}
        for fd, inode in _sockets():
            at = fd, inode
            try:
                self._known[at] = guest = known[at] if at in known else self._guest(fd, inode)
            except OSError:  # it has ended meanwhile
                continue
            if guest is not None:
                held[guest.door][guest.whose].append(guest)
        return sum(self._cut(door, by) for door, by in held.items())

    def _guest(self, fd: int, inode: int) -> _Guest | None:
        """What the kernel says of a socket. It is asked once: none of this changes in its life. Raises OSError."""
        connection = socket.socket(fileno=fd)
        try:
            streams = connection.type == socket.SOCK_STREAM
            if streams and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                for door in self._doors:
                    if connection.family in door.family and door.here(connection):
                        return _Guest(self._looks, fd, inode, door, door.whose(connection))
            return None
        finally:
            connection.detach()  # it is not ours to close

    def _cut(self, door: Door, by: dict[Hashable, list[_Guest]]) -> int:
        """Ends connections until no more are left than the door may have; who has the most loses the newest."""
        too_many = max(0, sum(map(len, by.values())) - door.most)
        for found in by.values():
            found.sort(key=lambda guest: guest.since)
        whose: Hashable = None
        for _ in range(too_many):
            whose = max(by, key=lambda each: len(by[each]))
            newest = by[whose].pop()
            _end(newest.fd, newest.inode)
        if too_many:
            log.warning(
                "connections ended door=%s count=%d allowed=%d whose=%s",
                *(door.name, too_many, door.most, whose),
                extra=about(door.name),
            )
        return too_many


def _sockets() -> Iterator[tuple[int, int]]:
    """Descriptor and inode of each socket that this process holds."""
    for name in os.listdir("/proc/self/fd"):
        try:
            found = os.fstat(int(name))
        except OSError:  # closed since it was listed
            continue
        if stat.S_ISSOCK(found.st_mode):
            yield int(name), found.st_ino


def _end(fd: int, inode: int) -> None:
    """Ends the connection of another owner, who hears of it as of any hang-up."""
    try:
        if os.fstat(fd).st_ino != inode:
            return
        connection = socket.socket(fileno=fd)
    except OSError:
        return
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    finally:
        connection.detach()
