# SPDX-License-Identifier: Apache-2.0
"""The part of a job's paths that is about jobs whose hosts come and go: who has which place.

Hosts get their seats from the daemons at which they meet. Two of these need not know of each other's newcomers: then
two hosts have one seat, or two that come at once hear nothing of each other. The hosts that are in the job put that
right. Each tells a newcomer whom else it knows. And of two lives that claim one seat it lets that one have it which is
in the ops of the job, or which does not give way when it is asked; the other one is told, and registers again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ultima.daemon.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    Refused,
    ResourceExhausted,
    Unavailable,
)
from ultima.daemon.hosts import membership
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs.link import Link
from ultima.v1 import peer_pb2, types_pb2

log = logging.getLogger("ultimad.links")

T = TypeVar("T")


class SeatLost(Unavailable):
    """Another host is in the job by the seat that this one was given."""

    def __init__(self, text: str, seat: int) -> None:
        super().__init__(text)
        self.seat = seat


async def until_seated(join: Callable[[frozenset[int]], Awaitable[T]]) -> T:
    """Joins a job, and again, for another seat than those `join` is told of, each time that another host has its own.

    Two hosts with one seat may each have paths to some of the others, and believe in the rest. Then the ops of the job
    have one of them, and the other one finds that out last of all, when it waits to be taken in.
    """
    lost: frozenset[int] = frozenset()
    while True:
        try:
            return await join(lost)
        except SeatLost as error:
            log.warning("seat taken: %s", error)
            lost |= {error.seat}


class Claims:
    """See the module; the rest is in `Links`."""

    own: Host
    seat_taken: bool = False
    """Another host has the place of this one, and is alive."""
    _job: str
    _elastic: bool
    _is_in: Callable[[Host], bool]
    _links: dict[int, Link]
    _on_change: Callable[[], None]

    def call(self, link: Link, give_up: bool, after: float = 0.0) -> None:
        raise NotImplementedError

    def settled(self) -> bool:
        raise NotImplementedError

    def absent(self, index: int, why: str) -> None:
        raise NotImplementedError

    def _forget(self, link: Link, why: str) -> None:
        raise NotImplementedError

    async def _claim(self, link: Link, rival: int) -> peer_pb2.ConnectResponse:
        raise NotImplementedError

    def known(self, caller: Host) -> list[types_pb2.Host]:
        """The other hosts that this one has a path to, or calls, as one is to know that comes to the job."""
        there = [link.host for link in self._links.values() if link.up() or link.calls()]
        return [host.to_proto() for host in there if self._elastic and not host.vacant and host.index != caller.index]

    def meet(self, told: Iterable[types_pb2.Host]) -> None:
        """Another host of the job knows these. While this one has yet to come in, it calls those that are new to it."""
        if not self._elastic or self._is_in(self.own):
            return
        for message in told:
            try:
                host = membership.host(message, "hosts", message.address)
            except Refused as error:
                log.warning("host not believed job=%s reason=%s", self._job, error)
                continue
            link = self._links.get(host.index)
            if link is None or link.up() or link.host.incarnation == host.incarnation:
                continue
            if link.host.ranks != host.ranks or bool(host.node) is not bool(self.own.node):
                continue
            if link.calls():
                link.instead = host
                continue
            log.info("host told of job=%s host=%d address=%s", self._job, host.index, host.address)
            link.host, link.state = host, link.state if self.settled() else State.CONNECTING
            self.call(link, give_up=True)
            self._on_change()

    def _not_there(self, link: Link, why: Refused) -> bool:
        """A host that is called is not there. Whether another one is to be called in its place."""
        if link.instead is not None:
            link.host, link.instead = link.instead, None
            return True
        if link.state is State.CONNECTING:
            log.warning("host not found job=%s host=%d reason=%s", self._job, link.host.index, why)
            link.state = State.ABSENT
            self._on_change()
        return False

    def left(self, index: int) -> None:
        """A host has left in good order, and nothing of its last op is needed here: it has no path any more."""
        self._links[index].left = self._links[index].host.incarnation
        self.absent(index, "it left in good order")

    def _has_left(self, link: Link, caller: Host, asks: bool) -> bool:
        """Whether a host calls that has left: no path is made for what its last op may still miss there, as one would
        hold its seat. It may ask whether this host is alive (`asks`). Raises FailedPrecondition if it wants a path."""
        left = link.left == caller.incarnation
        if left and not asks:
            raise FailedPrecondition(f"job {self._job!r}: caller.index = {caller.index}: it has left, and has no path")
        return left

    async def stands_by(self, link: Link) -> None:
        raise NotImplementedError

    async def check_own_seat(self) -> None:
        """Asks those that there are paths to whether they know this host. Raises SeatLost if another one has its seat.
        They may have taken the other one's call while they called this one, so that it believes in a path."""
        for link in [each for each in self._links.values() if each.up()]:
            try:
                await self.stands_by(link)
            except AlreadyExists as error:
                raise SeatLost(str(error), self.own.index) from None
            except Refused as error:
                log.debug("seat not checked job=%s host=%d reason=%s", self._job, link.host.index, error)

    async def _check_seat(self, link: Link, caller: Host) -> None:
        """Another host claims the place of one that there is a path to. Raises Refused if it does not get it."""
        known, name = link.host.incarnation, f"job {self._job!r}: seat {caller.index}"
        if not self._is_in(caller):
            try:
                await self._claim(link, caller.incarnation)
            except (FailedPrecondition, NotFound) as error:
                log.info("seat given up job=%s host=%d reason=%s", self._job, caller.index, error)
            except Refused as error:
                raise DeadlineExceeded(f"{name}: whether {link.host.name} gives it up is not known: {error}") from None
            else:
                if link.leaving:  # it stays until nothing of its last op is needed, and then the seat is free
                    raise ResourceExhausted(f"{name}: {link.host.name} leaves it: call again")
                raise AlreadyExists(f"{name}: {link.host.name} has it, and is alive")
        if link.host.incarnation == known:
            self._forget(link, "another host has its seat")
