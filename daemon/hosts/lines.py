# SPDX-License-Identifier: Apache-2.0
"""Calls to daemons that nobody can dial, because a NAT or a firewall lets no connection in.

Such a daemon *attends*: it keeps a call open at each daemon of its jobs that can be dialled (outgoing.py). Whoever
wants to call it has a *door* here, a Unix socket that gRPC connects to as it would to the daemon itself. For each
connection to the door the daemon behind it is given a *ticket*, and opens a stream that carries the bytes. Where it
attends elsewhere only, as each of two daemons does that only go out, a daemon of the job at which it attends passes the
bytes on.

So a call by a line is any other call: the TLS of its connection goes from end to end, each side is known by its
certificate, and who passes bytes on is trusted with nothing. One who attends is the node that its certificate names, at
the address that its call comes from, and at no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from ultima.daemon.base.calls import unbroken
from ultima.daemon.base.errors import NotFound, Refused, ResourceExhausted, Unavailable
from ultima.daemon.base.quota import Quota
from ultima.daemon.base.waiting import spawn
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.pipes import OVER, End, SocketEnd, StreamEnd, join
from ultima.v1 import peer_pb2, types_pb2

log = logging.getLogger("ultimad.lines")

ATTENDING_MAX = 1024
CONNECTIONS_MAX = 64  # to one daemon at once: a few channels, and what is asked by hand
TICKET_BYTES = 16
TICKET_SECONDS = 10.0  # for a ticket to be taken; who wants the connection is mostly less patient, and hangs up


@dataclass(eq=False)
class _Attendee:
    asked: asyncio.Queue[peer_pb2.AttendResponse | None] = field(
        default_factory=lambda: asyncio.Queue(CONNECTIONS_MAX + 1)
    )
    """What it is asked for; None ends its call."""
    waiting: int = 0
    """Tickets that it has not taken."""
    counted: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What it has of the quota, as long as it attends."""


@dataclass(eq=False)
class _Ticket:
    place: Place
    taken: asyncio.Future[_Carried]


@dataclass(eq=False)
class _Carried:
    """A connection that was opened with a ticket: its end, and whether it is still of use."""

    end: End
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Door:
    path: Path
    listener: socket.socket
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """One that answers it, and one for each connection."""


class Lines:
    """See the module. It belongs to the event loop."""

    def __init__(self, folder: Path) -> None:
        """Doors are sockets in `folder`, which belongs to this daemon alone."""
        self._folder = folder
        self._attending: dict[Place, _Attendee] = {}
        self._tickets: dict[bytes, _Ticket] = {}
        self._doors: dict[Place, _Door] = {}
        self._numbers = 0
        self._outward: dict[Place, Sequence[Place]] = {}
        """Daemons that cannot be dialled, and by whom each may be reached."""
        self._quota = Quota("daemons that attend here", ATTENDING_MAX)
        self.call: Callable[[Place], AbstractAsyncContextManager[Any]] | None = None
        """Connects to the PeerService of a daemon that can be dialled."""
        self.stands: Callable[[Place], bool] = lambda place: False
        """Whether a daemon is known to be there."""
        for left in folder.glob("line*.s"):
            left.unlink(missing_ok=True)  # of a daemon that was killed

    def __len__(self) -> int:
        return len(self._attending)

    def know(self, outward: Mapping[Place, Sequence[Place]]) -> None:
        """All daemons of the jobs here that cannot be dialled, each with those that may pass bytes on to it."""
        self._outward = dict(outward)
        for place in [place for place in self._doors if not self.leads_to(place)]:
            self._shut(place)

    def leads_to(self, place: Place) -> bool:
        """Whether calls to a daemon go by a line. An empty node stands for any."""
        return place in self._outward or self._attends(place) is not None

    def door(self, place: Place) -> Path:
        """The socket to connect to, for a daemon that a line leads to. Raises Unavailable."""
        if place not in self._doors:
            self._doors[place] = self._open(place)
        return self._doors[place].path

    async def attend(
        self, place: Place, stays: bool, dials: Callable[[Place], Awaitable[bool]]
    ) -> AsyncGenerator[peer_pb2.AttendResponse, None]:
        """What a daemon is told that attends here: `place` is where its call comes from, its port, and its node. Unless
        it `stays` anyway, it is dialled first. Raises ResourceExhausted."""
        mine, former = _Attendee(), self._attending.get(place) if stays else None
        if former is not None:  # the newer call has its place in the quota, too: one more may not be there
            mine.counted = former.counted.pop_all()
        else:
            mine.counted.enter_context(self._quota.taken(place.node or place.address))
        with mine.counted:
            dialled = not stays and await dials(place)
            if not dialled:
                if (former := self._attending.get(place)) is not None:
                    _end(former)
                self._attending[place] = mine
                log.info("daemon attends place=%s", place)
            try:
                yield peer_pb2.AttendResponse(source=place.address, dialled=dialled)
                while not dialled and (asked := await mine.asked.get()) is not None:
                    yield asked
            finally:
                if self._attending.get(place) is mine:
                    del self._attending[place]
                    if place in self._doors and not self.leads_to(place):
                        self._shut(place)
                    log.info("daemon attends no more place=%s", place)

    async def carry(self, ticket: bytes, caller: tuple[str, str], end: End) -> None:
        """A daemon, at an address and with a node, opens a connection that it was asked for. Returns when that is over.
        Raises NotFound."""
        found = self._tickets.get(ticket)
        if found is None or (found.place.address, found.place.node) != caller or found.taken.done():
            raise NotFound("ticket: nobody waits for this connection: allowed: one that the caller was given just now")
        carried = _Carried(end)
        found.taken.set_result(carried)
        await carried.over.wait()

    async def pass_on(self, place: Place, from_address: str, end: End, stands: Callable[[], Awaitable[None]]) -> None:
        """Passes bytes on to a daemon that attends here; `stands` is called first. Raises Refused."""
        attendee = self._attends(place)
        if attendee is None:
            raise NotFound(f"to = {place}: does not attend here")
        async with self._connection(place, attendee, from_address) as other:
            await stands()
            await join(end, other)

    def close(self) -> None:
        """Ends all."""
        for place in list(self._doors):
            self._shut(place)
        for attendee in self._attending.values():
            _end(attendee)

    def _attends(self, place: Place) -> _Attendee | None:
        if place.node or place in self._attending:
            return self._attending.get(place)
        return next((each for there, each in self._attending.items() if there[:2] == place[:2]), None)

    @contextlib.asynccontextmanager
    async def _connection(self, place: Place, attendee: _Attendee, from_address: str = "") -> AsyncIterator[End]:
        """A connection to a daemon that attends here, which comes from there. Raises Refused."""
        if max(attendee.waiting, attendee.asked.qsize()) >= CONNECTIONS_MAX:  # one that does not read what it is asked
            raise ResourceExhausted(f"{place}: {CONNECTIONS_MAX} connections wait for it: allowed: no more at once")
        there = next(where for where, each in self._attending.items() if each is attendee)
        number, taken = secrets.token_bytes(TICKET_BYTES), asyncio.get_running_loop().create_future()
        self._tickets[number] = _Ticket(there, taken)
        attendee.waiting += 1
        try:
            attendee.asked.put_nowait(peer_pb2.AttendResponse(ticket=number, from_address=from_address))
            carried = await _in_time(place, taken)
        except BaseException:
            if taken.done() and not taken.cancelled():
                taken.result().over.set()  # it came as the wait ended
            raise
        finally:
            attendee.waiting -= 1
            del self._tickets[number]
        try:
            yield carried.end
        finally:
            carried.over.set()

    def _open(self, place: Place) -> _Door:
        self._numbers += 1
        path = self._folder / f"line{self._numbers}.s"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            before = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
            listener.listen(CONNECTIONS_MAX)
        except OSError as error:
            listener.close()
            raise Unavailable(f"{place}: no door to it can be opened: {error.strerror}") from None
        door = _Door(path, listener)
        task = spawn(self._answer_door(place, door), f"door {place}")
        door.tasks.add(task)
        return door

    def _shut(self, place: Place) -> None:
        door = self._doors.pop(place)
        door.path.unlink(missing_ok=True)
        for task in door.tasks:
            task.cancel()

    async def _answer_door(self, place: Place, door: _Door) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                connection, _ = await loop.sock_accept(door.listener)
                if len(door.tasks) > CONNECTIONS_MAX:
                    connection.close()
                    continue
                task = spawn(self._serve(place, connection), f"line {place}")
                door.tasks.add(task)
                task.add_done_callback(door.tasks.discard)
        finally:
            door.listener.close()

    async def _serve(self, place: Place, connection: socket.socket) -> None:
        """One connection through a door, to its end."""
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            await self._lead(place, SocketEnd(reader, writer))
        except Refused as error:
            log.info("no line place=%s reason=%s", place, error)
        finally:
            writer.close()

    async def _lead(self, place: Place, end: End) -> None:
        """Leads a connection to a daemon, by way of another one if it does not attend here. Raises Refused."""
        if (attendee := self._attends(place)) is not None:
            async with self._connection(place, attendee) as other:
                await join(end, other)
            return
        why: Refused = Unavailable(f"{place}: only goes out, and attends at no daemon that is known here")
        for by in sorted(self._outward.get(place, ()), key=lambda each: not self.stands(each)):
            try:
                await self._lead_by(by, place, end)
                return
            except Refused as error:
                why = error
        raise why

    async def _lead_by(self, by: Place, place: Place, end: End) -> None:
        """Raises Refused if no connection comes about."""
        assert self.call is not None
        async with self.call(by) as stub:
            call = stub.Carry()

            async def send(data: bytes) -> None:
                await call.write(peer_pb2.CarryRequest(data=data))

            to = types_pb2.PlaceOfHost(address=place.address, grpc_port=place.port, node=place.node)
            try:
                await unbroken(call.write(peer_pb2.CarryRequest(to=to)), call)
                if await unbroken(call.read(), call) is grpc.aio.EOF:
                    raise Unavailable(f"{place}: {by} has ended the connection")
            except OVER as error:
                raise Unavailable(f"{place}: {by} leads nowhere: {' '.join(str(error).split())[:200]}") from None
            try:
                await join(end, StreamEnd(call.read, send, call))
            finally:
                call.cancel()


async def _in_time(place: Place, taken: asyncio.Future[_Carried]) -> _Carried:
    try:
        async with asyncio.timeout(TICKET_SECONDS):
            return await taken
    except TimeoutError:
        raise Unavailable(f"{place}: opens no connection in {TICKET_SECONDS:g} s") from None


def _end(attendee: _Attendee) -> None:
    while attendee.asked.full():
        attendee.asked.get_nowait()
    attendee.asked.put_nowait(None)
