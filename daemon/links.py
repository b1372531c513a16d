# SPDX-License-Identifier: Apache-2.0
"""The paths between this host and the others of one job: how they come up, break, and come up again.

A path is two connection ids, each chosen by the side that receives. One Connect call settles both: it carries the
caller's id and brings back the other's. At the first join the host with the lower index calls, so that each pair
meets once; a host that comes back calls everyone. Both may still call at the same time (two hosts come back
together), so an id that was chosen and not yet used is told to whoever asks, and the first exchange that is complete
counts.

The engine forgets all it knows of a path when it breaks. A path that broke is therefore never resumed: new ids are
exchanged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ultima.daemon.engine import Engine
from ultima.daemon.errors import FailedPrecondition, Refused, Unavailable
from ultima.daemon.hosts import Host, State
from ultima.daemon.waiting import spawn
from ultima.v1 import peer_pb2

log = logging.getLogger("ultimad.links")

CALL_SECONDS = 5.0  # one Connect call; the other side waits that long for its own membership
DEAD_AFTER = 3  # calls that nobody takes, before a host that should be under way is taken for dead

ConnectCall = Callable[[tuple[str, int], peer_pb2.ConnectRequest, float], Awaitable[peer_pb2.ConnectResponse]]


@dataclass(eq=False)
class Link:
    """The path to one peer host."""

    host: Host
    state: State = State.CONNECTING
    rx_cid: int | None = None
    """Our choice, on its packets; None before it is made."""
    tx_cid: int | None = None
    """Its choice, on ours."""
    why: str = "has not called yet"
    """Why the path is not up, for people."""
    leaving: bool = False
    """Its trainers have all left in good order: it will not take part in further ops, and needs nothing any more."""
    caller: asyncio.Task[None] | None = None


class Links:
    """All paths of one job."""

    def __init__(
        self,
        engine: Engine,
        call: ConnectCall,
        job: str,
        number: int,
        generation: int,
        own: Host,
        others: dict[int, Host],
        next_op_seq: int,
        on_change: Callable[[], None],
    ) -> None:
        """`number` is the engine's number of the job; `others` are its other hosts by index."""
        self._engine, self._call, self._job, self._number = engine, call, job, number
        self._generation, self.own = generation, own
        self._on_change = on_change
        self._links = {index: Link(host) for index, host in others.items()}
        self.next_op_seq = next_op_seq
        """Where the job stands as far as the other hosts have said."""

    def __getitem__(self, index: int) -> Link:
        return self._links[index]

    def __contains__(self, index: int) -> bool:
        return index in self._links

    def values(self) -> list[Link]:
        """All links, in order of their hosts."""
        return [self._links[index] for index in sorted(self._links)]

    def begin(self, rejoin: bool, absent: set[int]) -> None:
        """Starts to connect. A host that comes back calls everyone, but does not wait for the `absent` ones."""
        for index, link in self._links.items():
            if index in absent:
                link.state = State.ABSENT
            if rejoin or self.own.index < index:
                self.call(link, give_up=rejoin)

    def settled(self) -> bool:
        """Every path is up, or known to lead nowhere."""
        return all(link.state is not State.CONNECTING for link in self._links.values())

    def done(self) -> bool:
        """No other host needs anything of this one any more."""
        return all(link.leaving or link.state is not State.UP for link in self._links.values())

    def unsettled(self) -> str:
        """For people: the hosts that are waited for, and why."""
        waiting = [link for link in self.values() if link.state is State.CONNECTING]
        return "; ".join(f"{link.host.name}: {link.why}" for link in waiting)

    def call(self, link: Link, give_up: bool) -> None:
        """Calls a host until the path is up, unless someone does. `give_up`: nobody there means that it is dead."""
        if link.caller is None or link.caller.done():
            link.caller = spawn(self._keep_calling(link, give_up), f"connect-{self._job}")

    def answer(self, caller: Host, cid: int) -> int:
        """The other side called: takes its id and returns ours. Raises FailedPrecondition."""
        link = self._links.get(caller.index)
        if link is None or link.host.ranks != caller.ranks:
            raise FailedPrecondition(
                f"job {self._job!r}: caller.index = {caller.index} with ranks {list(caller.ranks)}: "
                f"not a peer of host {self.own.index}"
            )
        same_life = link.host.incarnation == caller.incarnation
        if same_life and link.state is State.UP and link.tx_cid == cid and link.rx_cid is not None:
            return link.rx_cid
        unused = link.rx_cid if same_life and link.state is not State.UP else None
        rx_cid = self._engine.peer_listen(self._number, caller.index) if unused is None else unused
        self._connect(link, caller, rx_cid, cid)
        return rx_cid

    def absent(self, index: int, why: str) -> None:
        """A host is gone: ops do not wait for it."""
        link = self._links[index]
        if link.caller is not None:
            link.caller.cancel()
        link.why = why
        if link.state is State.ABSENT:
            return
        log.warning("host absent job=%s host=%d address=%s reason=%s", self._job, index, link.host.address, why)
        link.state, link.rx_cid, link.tx_cid = State.ABSENT, None, None
        self._engine.peer_absent(self._number, index)
        self._on_change()

    def close(self) -> None:
        """The job is over here."""
        for link in self._links.values():
            if link.caller is not None:
                link.caller.cancel()

    def _connect(self, link: Link, host: Host, rx_cid: int, tx_cid: int) -> None:
        self._engine.peer_connect(self._number, host.index, host.address, host.data_port, host.feedback_port, tx_cid)
        link.host, link.rx_cid, link.tx_cid, link.state, link.why = host, rx_cid, tx_cid, State.UP, ""
        link.leaving = False
        log.info("host up job=%s host=%d address=%s", self._job, host.index, host.address)
        self._on_change()

    async def _keep_calling(self, link: Link, give_up: bool) -> None:
        delay, unanswered = 0.05, 0
        while link.state is not State.UP:
            try:
                if await self._call_once(link):
                    return
            except FailedPrecondition as error:
                # It lives another life than we know of: it knows better, and calls us.
                link.why = str(error)
                log.debug("connect refused job=%s host=%d reason=%s", self._job, link.host.index, error)
                return
            except Refused as error:
                link.why = str(error)
                unanswered += isinstance(error, Unavailable) or link.state is State.ABSENT
                if give_up and unanswered >= DEAD_AFTER:
                    if link.state is State.CONNECTING:
                        log.warning("host not found job=%s host=%d reason=%s", self._job, link.host.index, error)
                        link.state = State.ABSENT
                        self._on_change()
                    return
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, 1.0)

    async def _call_once(self, link: Link) -> bool:
        """One exchange; True if the path is up afterwards, by this exchange or another."""
        host = link.host
        if link.rx_cid is None:
            link.rx_cid = self._engine.peer_listen(self._number, host.index)
        rx_cid = link.rx_cid
        request = peer_pb2.ConnectRequest(
            job=self._job,
            generation=self._generation,
            caller=self.own.to_proto(),
            to_index=host.index,
            connection_id=rx_cid,
            to_incarnation=host.incarnation,
        )
        response = await self._call(host.place, request, CALL_SECONDS)
        self.next_op_seq = max(self.next_op_seq, response.next_op_seq)
        if link.state is not State.UP and link.rx_cid == rx_cid and response.incarnation == link.host.incarnation:
            self._connect(link, link.host, rx_cid, response.connection_id)
        return link.state is State.UP
