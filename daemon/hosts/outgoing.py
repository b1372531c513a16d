# SPDX-License-Identifier: Apache-2.0
"""This daemon as one that only goes out: it attends at others (lines.py), if they find that it cannot be dialled.

It finds that out where a job meets: before a rank is registered at another daemon, that one is asked how this host
looks from there. If the call comes from an address that is not this host's, there is a NAT between. If no connection
back comes about, this daemon stays on the call, and attends at all daemons of its jobs that can be dialled, for as long
as it has a part in a job with them. What comes by a line is led to this daemon's own port, as from anybody: a line
gives no rights that a connection would not give.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc.aio

from ultima.daemon.base.addresses import is_here, numeric
from ultima.daemon.base.calls import messages, unbroken
from ultima.daemon.base.errors import Refused, said
from ultima.daemon.base.waiting import spawn
from ultima.daemon.hosts.host import Place, target
from ultima.daemon.hosts.lines import CONNECTIONS_MAX
from ultima.daemon.hosts.membership import ADDRESS_MAX
from ultima.daemon.hosts.pipes import OVER, SocketEnd, StreamEnd, join
from ultima.daemon.trust.trust import RENEW_SECONDS
from ultima.v1 import peer_pb2

log = logging.getLogger("ultimad.lines")

FRESH_SECONDS = 60.0  # for which a daemon is not asked anew how this host looks from there
LINGER_SECONDS = 10.0  # from a registration to the first look at who is watched
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 5.0
# For what a call carries whose place a newer one has taken. A connection that it was asked for in its last moment may
# carry a watch, which is made anew RENEW_SECONDS later, and needs some time for that. The other side ends what carries
# it later still: after AGE_MS, less a tenth, and AGE_GRACE_MS.
RETIRED_SECONDS = RENEW_SECONDS + 120.0


class Seen(NamedTuple):
    """How this host looks from another one."""

    source: str = ""
    """The address that its calls come from."""
    natted: bool = False
    """That is not an address of this host."""
    outward: bool = False
    """No connection to it comes about."""


@dataclass(eq=False)
class _Attending:
    """What is done about one daemon."""

    task: asyncio.Task[None] | None = None
    seen: asyncio.Future[Seen | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """None if it could not be asked."""
    at: float = 0.0
    """When it was asked."""
    newest: object = None


class Outgoing:
    """See the module. It belongs to the event loop."""

    def __init__(
        self,
        address: str,
        port: int,
        call: Callable[[Place], AbstractAsyncContextManager[Any]],
        arrivals: dict[str, str],
        renews: bool,
    ) -> None:
        """`address` and `port` are where this daemon listens, "" if it says where it is found; `call` connects to the
        PeerService of another one. In `arrivals` it is noted where each connection comes from that is led here, by its
        other end. It `renews` its calls where connections are ended for their age, as those with certificates are."""
        self._address, self._port, self._call, self._renews = address, port, call, renews
        self._places: dict[Place, _Attending] = {}
        self._held: set[Place] = set()
        self._registering: Counter[Place] = Counter()
        self._arrivals = arrivals

    @property
    def natted(self) -> bool:
        """Whether any daemon found a NAT before this host."""
        return any(seen.natted for seen in self._seen())

    def source(self) -> str:
        """The address that calls of this host come from, if it only goes out; else ""."""
        return next((seen.source for seen in self._seen() if seen.outward), "")

    @contextlib.asynccontextmanager
    async def registering(self, place: Place, seconds: float) -> AsyncIterator[Seen]:
        """How this host looks from the daemon at which a rank is to be registered, found out within `seconds`; if it
        only goes out, that daemon can call it from then on. One that says where it is found is not looked for."""
        if not self._address:
            yield Seen()
            return
        self._registering[place] += 1
        try:
            yield await self._look(place, seconds)
        finally:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._registered, place)

    def hold(self, places: Iterable[Place]) -> None:
        """Attends at these daemons, and at no other ones but where ranks are registered just now."""
        self._held = set(places)
        for place in self._held:
            known = self._places.get(place)
            if known is None or known.task is None or known.task.done():
                self._begin(place, stays=True)
        self._prune()

    def close(self) -> None:
        """Ends all."""
        for known in self._places.values():
            if known.task is not None:
                known.task.cancel()
        self._places.clear()

    def _seen(self) -> list[Seen]:
        found = [known.seen.result() for known in self._places.values() if known.seen.done()]
        return [seen for seen in found if seen is not None]

    def _registered(self, place: Place) -> None:
        self._registering[place] -= 1
        self._prune()

    def _prune(self) -> None:
        now = asyncio.get_running_loop().time()
        for place in [p for p in self._places if p not in self._held and self._registering[p] <= 0]:
            known = self._places[place]
            if known.task is not None and not known.task.done():
                known.task.cancel()
            elif now - known.at < FRESH_SECONDS:
                continue  # what was found counts for a while
            del self._places[place]
        self._registering = +self._registering

    async def _look(self, place: Place, seconds: float) -> Seen:
        known, now = self._places.get(place), asyncio.get_running_loop().time()
        ended = known is not None and known.seen.done() and (known.task is None or known.task.done())
        if known is not None and ended and (now - known.at >= FRESH_SECONDS or known.seen.result() is None):
            known = None
        if known is None:
            known = self._begin(place, stays=False)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(known.seen) or Seen()
        except TimeoutError:
            return Seen()

    def _begin(self, place: Place, stays: bool) -> _Attending:
        known = self._places[place] = _Attending(at=asyncio.get_running_loop().time())
        known.task = spawn(self._keep(place, known, stays), f"attend {place}")
        return known

    async def _keep(self, place: Place, known: _Attending, stays: bool) -> None:
        """Attends at one daemon until it is cancelled, or that one finds that it can dial this one."""
        delay, streams, clock = RETRY_SECONDS_MIN, set[asyncio.Task[bool]](), asyncio.get_running_loop().time
        try:
            while True:
                began = clock()
                stream = asyncio.ensure_future(self._attend(place, known, stays))
                streams.add(stream)
                stream.add_done_callback(streams.discard)
                await asyncio.wait({stream}, timeout=RENEW_SECONDS if self._renews else None)
                if stream.done():
                    if not known.seen.done():
                        known.seen.set_result(None)
                    seen = known.seen.result()
                    if not stays and (seen is None or not seen.outward):
                        return
                    delay = RETRY_SECONDS_MIN if clock() - began > RETRY_SECONDS_MAX else delay
                    await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                    delay = min(2 * delay, RETRY_SECONDS_MAX)
                stays = True
        finally:
            if not known.seen.done():
                known.seen.set_result(None)
            for stream in streams:
                stream.cancel()

    async def _attend(self, place: Place, known: _Attending, stays: bool) -> bool:
        """One call, to its end."""
        carriers: set[asyncio.Task[None]] = set()
        known.newest = mine = object()
        request = peer_pb2.AttendRequest(grpc_port=self._port, stays=stays)
        try:
            async with self._call(place) as stub:
                async with aclosing(messages(stub.Attend(request))) as answers:
                    async for answer in answers:
                        if answer.ticket and len(carriers) < CONNECTIONS_MAX:
                            task = spawn(self._carry(place, stub, answer), f"carry {place}")
                            carriers.add(task)
                            task.add_done_callback(carriers.discard)
                        elif answer.source and not known.seen.done():
                            known.seen.set_result(self._looks(place, answer))
                if known.newest is not mine and carriers:
                    await asyncio.wait(carriers, timeout=RETIRED_SECONDS)
            log.info("attends no more place=%s", place)
        except grpc.aio.AioRpcError as error:
            log.info("attends no more place=%s reason=%s", place, said(error))
        except Refused as error:
            log.info("attends not place=%s reason=%s", place, error)
        finally:
            for task in carriers:
                task.cancel()
        return True

    def _looks(self, place: Place, answer: peer_pb2.AttendResponse) -> Seen:
        try:
            source = str(ipaddress.ip_address(answer.source[:ADDRESS_MAX]))
        except ValueError:
            return Seen()
        seen = Seen(source, not is_here(source), not answer.dialled)
        if seen.outward:
            log.warning(
                "only goes out: no connection from %s to %s comes about; this daemon attends there",
                *(place, target(source, self._port)),
            )
        return seen

    async def _carry(self, place: Place, stub: Any, asked: peer_pb2.AttendResponse) -> None:
        """One connection that was asked for, to its end."""
        call = stub.Carry()

        async def send(data: bytes) -> None:
            await call.write(peer_pb2.CarryRequest(data=data))

        key, writer = "", None
        try:
            reader, writer = await asyncio.open_connection(self._address, self._port)
            key = arrival(*writer.get_extra_info("sockname")[:2])
            self._arrivals[key] = asked.from_address if numeric(asked.from_address) else place.address
            await unbroken(call.write(peer_pb2.CarryRequest(ticket=asked.ticket)), call)
            await join(SocketEnd(reader, writer), StreamEnd(call.read, send, call))
        except OVER as error:
            log.debug("connection not carried place=%s reason=%s", place, error)
        finally:
            call.cancel()
            self._arrivals.pop(key, None)
            if writer is not None:
                writer.close()


def arrival(address: str, port: int) -> str:
    """The other end of a connection, as gRPC writes it, without escapes."""
    return f"{'ipv6' if ':' in address else 'ipv4'}:{target(address, port)}"


def own_end(bind: str) -> str:
    """The address by which a daemon reaches the port that it listens on at `bind`."""
    found = ipaddress.ip_address(bind)
    if not found.is_unspecified:
        return bind
    return "127.0.0.1" if found.version == 4 else "::1"
