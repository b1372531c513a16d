# SPDX-License-Identifier: Apache-2.0
"""Ways around what lets no UDP through: by a relay, or opened by both sides at the same time.

A NAT or a firewall before a host drops what comes to it unasked. So where UDP does not get through between two hosts
(hearing.py), or always where the daemon says so, both ask a host of the job that both reach (relay_desk.py) and say
hello to its relay from each of their sockets; from then on their packets go by it. That host may be one of the two:
its relay then answers to where the other one says hello from. Of the two the one with the lower index chooses, and
tells the other one.

The relay tells each of them where the other one's sockets are, as it sees them. Both send there at the same time,
which opens a NAT whose mappings do not depend on whom a packet goes to (RFC 4787, section 4.1). Whoever then finds that
its datagrams arrive on all ports sends straight there; the relay stays behind it. Where it finds that they do not, or
later hears that they do no more, its packets go by the relay.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ultima.daemon.base.errors import FailedPrecondition, NotFound, Refused
from ultima.daemon.base.waiting import spawn
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.engine.relaying import hello
from ultima.daemon.hosts.host import Host
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.link import Link, Route
from ultima.daemon.jobs.relay_desk import RelayDesk
from ultima.daemon.jobs.trial import SMALL_BYTES, Trial, send
from ultima.v1 import peer_pb2

log = logging.getLogger("ultimad.routes")

LOOK_SECONDS = 0.25
KEEP_SECONDS = 5.0  # between two questions and hellos; NATs keep a mapping for half a minute and more
CALL_SECONDS = 2.0
READY_SECONDS = 5.0  # for both ends to be known to a relay
SETTLE_SECONDS = 5.0  # after a change: until then the other side may say what it found of the way before
LAID_SECONDS = READY_SECONDS  # that a rank waits for ways before its first op
LAID_LOOK_SECONDS = 0.02
REST_SECONDS = 5.0  # after no relay was found
OPENINGS = 10  # datagrams to each port of the other side, LOOK_SECONDS / 2 apart: longer than between two questions
FAILURES_MAX = 2  # calls in a row that a relay does not answer

Note = Callable[[str, str, str, str, str], None]


@dataclass(eq=False)
class _Way:
    """What is done about the path to one host of a job."""

    task: asyncio.Task[None] | None = None
    tried: set[int] = field(default_factory=set)
    """Incarnations of hosts that did not do as a relay."""
    told_by: int | None = None
    """Index of the relay that the other side has chosen."""
    by: int | None = None
    """Index of the one that is in use or being asked, by `task`."""
    rest_until: float = 0.0
    needed: bool = False
    """A relay was of use before: a path that comes up again is not left to fail first."""


class Routes:
    """See the module. It belongs to the event loop."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[Job]],
        engine: HostEngine,
        peers: Callable[[], Peers],
        desk: RelayDesk,
        use: str,
        rerouted: Callable[[Job, int], None],
        note: Note,
    ) -> None:
        """`use`: "auto", "always" or "never". `rerouted` is told of a host to which packets go another way now, and
        `note` of an event: kind, text, job, level, host."""
        self._jobs, self._engine, self._peers, self._desk, self._use = jobs, engine, peers, desk, use
        self._rerouted, self._note = rerouted, note
        self._trial = Trial(engine, peers)
        self._ways: dict[tuple[int, int], _Way] = {}
        """By the incarnation of the job here, and the index of the other host."""
        self._deaf: dict[int, set[tuple[int, int]]] = {}
        """By the incarnation of the job here: pairs (from, to) that were ever found to let nothing through straight.
        Once they have a way around, nobody says so any more, and the receiver is no good as a relay all the same."""
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Looks, for as long as the daemon lives."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Begins what is needed, and forgets what is over."""
        now = asyncio.get_running_loop().time()
        known: set[tuple[int, int]] = set()
        for job in self._jobs():
            if not job.ready or job.over or job.links is None or self._use == "never":
                continue
            told = {(each.from_host, each.to_host) for found in job.unheard.values() for each in found}
            self._deaf.setdefault(job.incarnation, set()).update(told)
            for link in job.links.values():
                key = job.incarnation, link.host.index
                known.add(key)
                way = self._ways.setdefault(key, _Way())
                idle = way.task is None or way.task.done()
                if idle and link.up() and now >= way.rest_until and self._wanted(job, link, way):
                    way.task = spawn(self._serve(job, link, way), f"route-{job.name}")
        for key in self._ways.keys() - known:
            way = self._ways.pop(key)
            if way.task is not None:
                way.task.cancel()
        for life in self._deaf.keys() - {life for life, _ in known}:
            del self._deaf[life]

    async def laid(self, job: Job) -> None:
        """Returns when this host has a way to each host that packets get to by no other, so that the first op need not
        fail to find that out; after LAID_SECONDS at the latest, as a job without relays is better than none."""
        until = asyncio.get_running_loop().time() + LAID_SECONDS
        while self._use != "never" and not job.over and asyncio.get_running_loop().time() < until:
            links = job.links.values() if job.links is not None else []
            if all(link.route is not None or not link.up() or _goes_straight(job, link) for link in links):
                return
            self.look()
            await asyncio.sleep(LAID_LOOK_SECONDS)

    def close(self) -> None:
        """Ends all."""
        for way in self._ways.values():
            if way.task is not None:
                way.task.cancel()
        self._ways.clear()

    def proposed(self, job: Job, link: Link, by_index: int) -> None:
        """The host at the other end has chosen a relay. Raises Refused."""
        if self._use == "never":
            raise FailedPrecondition("relay.use = 'never': this daemon sends no packets by a third host")
        if job.links is None or job.own is None or by_index not in {job.own.index, *_indices(job)}:
            raise NotFound(f"by_index = {by_index}: allowed: a host of job {job.name!r}")
        way = self._ways.setdefault((job.incarnation, link.host.index), _Way())
        current = way.by if way.told_by is None else way.told_by
        if way.task is not None and not way.task.done():
            if current == by_index or job.own.index < link.host.index:
                return  # it is so already, or ours to choose
            way.task.cancel()
        way.told_by, way.rest_until = by_index, 0.0
        way.task = spawn(self._serve(job, link, way), f"route-{job.name}")

    def _wanted(self, job: Job, link: Link, way: _Way) -> bool:
        """Whether packets of this pair are to go another way, and it is this side that says so."""
        assert job.own is not None
        needed = way.needed or _is_blocked(job, link) or not _goes_straight(job, link)
        chooses = job.own.index < link.host.index or self._use == "always"
        return chooses and (needed or self._use == "always")

    def _choice(self, job: Job, link: Link, way: _Way) -> int | None:
        """The first host to which both seem to get through, and that has not failed. One of the two, if it is not this
        host that says of itself that it needs a relay: then a third one has no work with it."""
        assert job.links is not None and job.own is not None
        here, there = job.own.index, link.host.index
        deaf = self._deaf.get(job.incarnation, set())
        thirds = [each.host.index for each in job.links.values() if each is not link and each.up()]
        known = [there, *thirds, here] if self._use == "always" else [here, there, *thirds]
        hosts = [job.own if by == here else job.links[by].host for by in known]
        # One behind a NAT can answer those who say hello, but they cannot say it unless the NAT lets all in.
        for host in sorted((each for each in hosts if not each.outward), key=lambda each: each.natted):
            by = host.index
            if host.incarnation not in way.tried and not {(here, by), (there, by)} & deaf:
                return by
        return None

    async def _serve(self, job: Job, link: Link, way: _Way) -> None:
        """Has the packets to one host go by relays, one after the other, as long as it is up and one does."""
        assert job.links is not None
        try:
            while _alive(job, link):
                told, way.told_by = way.told_by, None
                by = told if told is not None else self._choice(job, link, way)
                way.by = by
                if by is None:
                    way.tried.clear()
                    log.info("no relay job=%s host=%d: UDP of both gets to no host", job.name, link.host.index)
                    return
                relay = job.own if job.own is not None and by == job.own.index else job.links[by].host
                way.needed |= await self._by(job, link, relay, chosen=told is None)
                way.tried.add(relay.incarnation)
                if told is not None:
                    return  # the other side chooses the next one
        except Refused as error:  # of the engine: the path went meanwhile
            log.info("way not tried host=%d reason=%s", link.host.index, error)
        finally:
            way.rest_until = asyncio.get_running_loop().time() + REST_SECONDS
            self._straight(job, link)

    async def _tell(self, job: Job, link: Link, by_index: int) -> None:
        request = self._request(job, link)
        request.by_index = by_index
        await self._peers().relay(link.host.place, request, CALL_SECONDS)

    async def _ask(self, job: Job, link: Link, relay: Host, cids: tuple[int, ...]) -> peer_pb2.RelayResponse:
        if relay is job.own:
            return self._desk.answer(job, relay, link.host, cids, relay.address)
        return await self._peers().relay(relay.place, self._request(job, link, cids), CALL_SECONDS)

    async def _by(self, job: Job, link: Link, relay: Host, chosen: bool) -> bool:
        """Has them go by one relay, which was `chosen` here. Returns when it does not do, or no more; whether it ever
        did."""
        clock = asyncio.get_running_loop().time
        until, failures = clock() + READY_SECONDS, 0
        settled = until
        sent: tuple[int, ...] = ()
        opening: asyncio.Task[list[tuple[int, int]]] | None = None
        try:
            while _stands(job, link, relay):
                cids = link.tx_cids
                try:
                    if chosen:  # each time: the other side may have given up what this one has not
                        await self._tell(job, link, relay.index)
                    answer = await self._ask(job, link, relay, cids)
                except Refused as error:
                    failures += 1
                    log.info("relay does not answer job=%s by=%d reason=%s", job.name, relay.index, error)
                    if failures > FAILURES_MAX or isinstance(error, FailedPrecondition):
                        break
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
                failures = 0
                self._hello(answer, relay)
                if answer.ready:
                    until = clock() + READY_SECONDS
                    if sent != cids:
                        sent = cids
                        self._around(job, link, relay, answer.port)
                        settled = clock() + SETTLE_SECONDS
                        opening = opening or asyncio.create_task(self._open(link, answer))
                    self._knock(answer)
                elif clock() > until:
                    log.info("relay not ready job=%s host=%d by=%d", job.name, link.host.index, relay.index)
                    break
                again = clock() + (KEEP_SECONDS if answer.ready else LOOK_SECONDS / 2)
                while clock() < again and _stands(job, link, relay) and link.tx_cids == cids:
                    await asyncio.sleep(LOOK_SECONDS / 2)
                    if opening is not None and opening.done():
                        ports, opening = opening.result(), asyncio.create_task(_never())  # it is tried once
                        if ports and link.tx_cids == sent:
                            self._opened(job, link, relay, answer.other_address, ports)
                            settled = clock() + SETTLE_SECONDS
                    if sent and clock() > settled and _is_blocked(job, link):
                        if link.route is None or not link.route.opened:
                            return True
                        self._around(job, link, relay, answer.port)  # what was open is closed
                        settled = clock() + SETTLE_SECONDS
        finally:
            if opening is not None:
                opening.cancel()
        return bool(sent)

    def _request(self, job: Job, link: Link, cids: tuple[int, ...] = ()) -> peer_pb2.RelayRequest:
        assert job.own is not None
        ends = dict(host_index=job.own.index, to_index=link.host.index)
        return peer_pb2.RelayRequest(job=job.name, generation=job.generation, connection_ids=cids, **ends)

    def _hello(self, answer: peer_pb2.RelayResponse, relay: Host) -> None:
        """From each socket: so the relay learns where it is, and what stands before this host lets its packets in."""
        for lane, end in enumerate(answer.ends[: self._engine.count]):
            for feedback in (False, True):
                said = hello(answer.key, end, feedback, next(self._numbers))
                try:
                    self._engine.send_hello(lane, feedback, relay.address, answer.port, said)
                except Refused as error:
                    log.debug("hello not sent to=%s reason=%s", relay.place, error)

    def _knock(self, answer: peer_pb2.RelayResponse) -> None:
        """One datagram to each socket of the other side: what lies between keeps the way open, if it was opened."""
        send(self._engine, answer.other_address, _ports(answer), SMALL_BYTES, 1)

    async def _open(self, link: Link, answer: peer_pb2.RelayResponse) -> list[tuple[int, int]]:
        """Sends to the other side while it does the same. The ports there, if datagrams arrive on all of them."""
        for _ in range(OPENINGS):
            self._knock(answer)
            await asyncio.sleep(LOOK_SECONDS / 2)
        place, address = link.host.place, answer.other_address
        try:
            for feedback in (False, True):
                if not all(await self._trial.outward(place, _ports(answer), feedback, to=address)):
                    return []
        except Refused as error:
            log.info("way not tried host=%d reason=%s", link.host.index, error)
            return []
        return _ports(answer)

    def _around(self, job: Job, link: Link, relay: Host, port: int) -> None:
        """Packets to a host go by a relay from here on."""
        if link.route is not None and link.route.relay != relay.index:
            self._lost(job, link, link.route.relay)
        ports = [(port, port)] * self._engine.ports_of(job.number)
        self._engine.peer_route(job.number, link.host.index, relay.address, ports)
        self._routed(job, link, Route(relay.index, opened=False))
        text = f"packets of job {job.name} to {link.host.name} go by relay, {relay.name}"
        log.warning("path relayed job=%s host=%d by=%d: UDP does not get through otherwise", *self._names(job, link))
        self._note("path_relayed", text, job.name, "warning", str(link.host.place))

    def _opened(self, job: Job, link: Link, relay: Host, address: str, ports: list[tuple[int, int]]) -> None:
        """They go straight to where the relay sees the other side."""
        self._engine.peer_route(job.number, link.host.index, address, ports)
        self._routed(job, link, Route(relay.index, opened=True))
        text = f"packets of job {job.name} to {link.host.name} go straight: both hosts opened the way"
        log.info("path opened job=%s host=%d by=%d", *self._names(job, link))
        self._note("path_opened", text, job.name, "info", str(link.host.place))

    def _straight(self, job: Job, link: Link) -> None:
        """They go to the host's own address again."""
        if link.route is None:
            return
        by = link.route.relay
        try:
            if link.up() and not job.over and job.number >= 0:
                self._engine.peer_route(job.number, link.host.index, link.host.address, link.host.ports)
            self._routed(job, link, None)
        except Refused as error:
            log.info("way not tried host=%d reason=%s", link.host.index, error)
        self._lost(job, link, by)

    def _lost(self, job: Job, link: Link, by: int) -> None:
        text = f"packets of job {job.name} to {link.host.name} go no more by host {by}"
        self._note("path_relay_lost", text, job.name, "warning", str(link.host.place))

    def _routed(self, job: Job, link: Link, route: Route | None) -> None:
        link.route = route
        if job.links is None or job.over or job.number < 0:
            return
        routes = {each.host.index: each.route for each in job.links.values() if each.route is not None}
        relayed = {index: each for index, each in routes.items() if not each.opened}
        self._engine.peers_relayed(job.number, relayed, {each.relay for each in relayed.values()})
        if route is not None:
            self._rerouted(job, link.host.index)

    @staticmethod
    def _names(job: Job, link: Link) -> tuple[str, int, int]:
        assert link.route is not None
        return job.name, link.host.index, link.route.relay


def _alive(job: Job, link: Link) -> bool:
    return link.up() and not job.over


def _there(job: Job, host: Host) -> bool:
    """Whether a host of a job still lives the life that it lived."""
    if host is job.own:
        return True
    link = job.links[host.index] if job.links is not None else None
    return link is not None and link.up() and link.host.incarnation == host.incarnation


def _indices(job: Job) -> list[int]:
    return [link.host.index for link in job.links.values()] if job.links is not None else []


def _stands(job: Job, link: Link, relay: Host) -> bool:
    return _alive(job, link) and _there(job, relay)


def _is_blocked(job: Job, link: Link) -> bool:
    """Something between this host and another one is known not to get through, by the way that it goes now."""
    assert job.own is not None
    return {job.own.index, link.host.index} in _blocked(job)


def _goes_straight(job: Job, link: Link) -> bool:
    """Whether packets between two hosts may get through unasked, as far as the hosts themselves know: not between two
    NATs, nor to one, unless they are sealed; then the host before it follows the peer to where its packets come from.
    """
    assert job.own is not None
    natted = [job.own.natted, link.host.natted]
    return not all(natted) if job.own.node else not any(natted)


async def _never() -> list[tuple[int, int]]:
    await asyncio.Event().wait()
    return []


def _blocked(job: Job) -> list[set[int]]:
    """Pairs of hosts between which something is known not to get through."""
    return [{each.from_host, each.to_host} for found in job.unheard.values() for each in found]


def _ports(answer: peer_pb2.RelayResponse) -> list[tuple[int, int]]:
    return [(lane.data_port, lane.feedback_port) for lane in answer.other]
