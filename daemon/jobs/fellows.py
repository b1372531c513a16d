# SPDX-License-Identifier: Apache-2.0
"""The other hosts of the jobs that are here: what their daemons ask and say, and which of them are watched.

Nobody is believed beyond what is his to say: news of a host counts only from the daemon at that host's place, and a
daemon that nobody here shares a job with is not called, whatever others say of it.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from ultima.daemon.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    Refused,
    Unavailable,
)
from ultima.daemon.base.waiting import Changes
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.coordinator import Coordinator
from ultima.daemon.hosts.distance import exchange
from ultima.daemon.hosts.host import Host, Membership, Place, State
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.hosts.registration import Title, Voucher
from ultima.daemon.jobs.council import Council
from ultima.daemon.jobs.early_words import EarlyWords
from ultima.daemon.jobs.job import Job, JoinSpec
from ultima.daemon.jobs.returning import Returning
from ultima.daemon.jobs.state_desk import StateDesk
from ultima.daemon.jobs.vanishing import Silence
from ultima.daemon.jobs.watchers import Watchers
from ultima.daemon.trust import job_secret
from ultima.v1 import peer_pb2, types_pb2

log = logging.getLogger("ultimad.fellows")

FORMING_SECONDS = 2.0  # for a coordinator to say whom a job waits for
SAME_SECRET = "give all ranks of a job the same ULTIMA_JOB_SECRET or ULTIMA_JOB_SECRET_FILE"


class Fellows:
    """See the module."""

    def __init__(
        self,
        jobs: Mapping[Title, Job],
        engine: HostEngine,
        coordinator: Coordinator,
        watchers: Watchers,
        changes: Changes,
        address: str,
        node: str = "",
    ) -> None:
        """`jobs` are all jobs of this host, as they are at any time; `address` is what peers are told,
        and `node` this daemon's own."""
        self._jobs, self._engine, self._coordinator = jobs, engine, coordinator
        self._watchers, self._changes = watchers, changes
        self._address, self._node = address, node
        self._grpc_port = 0
        self._peers: Peers | None = None
        self._closing = False
        self._withdrawn = frozenset[str]()
        self.violations: Counter[str] = Counter()
        """How often packets broke the protocol, by the address of the host in whose name they came."""
        self.returning = Returning(engine)
        self.council = Council(engine, watchers, changes)
        self.states = StateDesk(engine, watchers, changes, self.council)
        self._early = EarlyWords()
        self.silence = Silence(engine, self._host_absent, self.stands, self._watch_anew, self._round_trip)
        self.on_unheard: Callable[[Job, peer_pb2.WatchResponse], None] = lambda job, news: None
        """Is told what another host of a job found not to get through."""
        self.laid: Callable[[Job], Awaitable[None]] = _at_once
        """Returns when packets get to the other hosts of a job that is connected, as far as is known."""

    def start(self, grpc_port: int, peers: Peers) -> None:
        """The daemon's own port is known, and others can be called."""
        self._grpc_port, self._peers = grpc_port, peers
        self.council.start(peers)
        self.states.start(peers)

    def close(self) -> None:
        """Watches nobody any more."""
        self._closing = True
        self.silence.close()
        self.watch()

    # ---- what others ask ----

    def job(self, name: str, generation: int) -> Job | None:
        """That life of the job of this name on this host."""
        return next((job for job in self._named(name) if job.generation == generation), None)

    def _named(self, name: str) -> list[Job]:
        """The jobs of this name here: one for each secret that their ranks gave."""
        return [job for job in self._jobs.values() if job.name == name]

    async def check_secret(self, request: peer_pb2.RegisterRequest, host: Host, deadline: float) -> bytes:
        """The secret of the job that a host registers for, which it has shown to know; empty if it shows none.

        The ranks of this host know it: a proof waits for the first of them, whoever else uses the name meanwhile. One
        user's ranks that differ have made a mistake, and are told at once. Raises Refused.
        """
        name, proof, node = request.job, request.proof, self._node
        if not node:
            return b""  # nobody is authenticated here

        def proved() -> bytes:
            known = (job.secret for job in self._named(name) if job.secret)
            return next((each for each in known if job_secret.proves(each, proof, name, 0, host.node, node)), b"")

        def same_user() -> list[Job]:
            return [job for job in self._named(name) if job.uid == request.uid and not job.empty]

        if proof.mac:
            await self._changes.until(lambda: bool(proved() or same_user()), deadline)
        secret, here = proved(), same_user()
        if secret or not (proof.mac or here):
            return secret
        who = f"rank {host.ranks[0]} on node {host.node!r}"
        if not here:
            raise DeadlineExceeded(
                f"job {name!r}: rank 0 has not joined on node {node!r} with the secret that {who} shows: {SAME_SECRET}"
            )
        if bool(here[0].secret) is not bool(proof.mac):
            has = "has" if here[0].secret else "has no"
            raise PermissionDenied(f"job {name!r}: {has} secret on node {node!r}, unlike {who}: {SAME_SECRET}")
        if proof.mac:
            raise PermissionDenied(f"job {name!r}: {who} has another secret: {SAME_SECRET}")
        return b""

    async def check_address(self, host: Host, name: str, source: str) -> None:
        """Raises Unavailable unless a host that calls from `source` is where it says, so that nobody is sent to others.
        `name` is the field that tells of it."""
        assert self._peers is not None
        try:
            await self._peers.proofs.check(host.place, source)
        except Unavailable as error:
            raise Unavailable(f"{name}.address = {error}") from None

    async def connect(
        self, request: peer_pb2.ConnectRequest, caller: Host, deadline: float
    ) -> peer_pb2.ConnectResponse:
        """Another host of a job calls. Waits until this one has its membership. Raises Refused."""

        def job_here() -> Job | None:
            job = self.job(request.job, request.generation)
            return job if job is not None and job.links is not None else None

        if any(request.to_incarnation in job.former for job in self._named(request.job)):
            raise FailedPrecondition(f"job {request.job!r}: to_index = {request.to_index}: it gave up that seat")
        life = request.to_incarnation
        if request.doubt and life and all(job.incarnation != life for job in self._named(request.job)):
            raise NotFound(f"job {request.job!r}: to_incarnation = {life}: no job here has it, or will")
        if not await self._changes.until(lambda: job_here() is not None, deadline):
            raise DeadlineExceeded(f"job {request.job!r} generation {request.generation}: has not begun here")
        job = job_here()
        assert job is not None and job.own is not None and job.links is not None
        if request.to_index != job.own.index or request.to_incarnation not in (0, job.incarnation):
            raise FailedPrecondition(
                f"job {job.name!r}: to_index = {request.to_index}, to_incarnation = {request.to_incarnation}: "
                f"here is {job.own.name}, incarnation {job.incarnation}"
            )
        proved = (job.name, job.generation, caller.node, self._node)
        if job.secret and not job_secret.proves(job.secret, request.proof, *proved):
            raise PermissionDenied(
                f"job {job.name!r}: {caller.name} on node {caller.node!r} does not know its secret: {SAME_SECRET}"
            )
        job.links.check_node(caller)
        if request.rival and job.gives_way(request.rival):
            self._changes.notify()
            raise FailedPrecondition(f"job {job.name!r}: {job.own.name} gives up its seat")
        links = job.links
        seal = request.seal if request.HasField("seal") else None
        offered = tuple(request.connection_ids)
        if request.renew:
            job.links.renewed(caller, offered, seal)
            cids: tuple[int, ...] = ()
        else:
            cids = await job.links.called(caller, offered, request.offer, request.doubt, seal)
        if job.links is not links:
            raise Unavailable(f"job {job.name!r}: {links.own.name} gave up its seat meanwhile")
        return peer_pb2.ConnectResponse(
            connection_ids=cids,
            incarnation=job.incarnation,
            next_op_seq=self._engine.next_op_seq(job.number),
            oldest_op_seq=self._engine.job_place(job.number).floor,
            proof=job_secret.answer(job.secret, request.proof, *proved) if job.secret else None,
            seal=job.links.seal_offered(caller.index) if cids else None,
            hosts=[] if request.doubt or request.renew else links.known(caller),
        )

    def membership_now(self, membership: Membership, job: str) -> Membership:
        """The coordinator's answer with what this host knows of how far the job is."""
        here = self.job(job, membership.generation)
        if here is None or here.membership is None:
            return membership
        return replace(membership, next_op_seq=max(membership.next_op_seq, self._engine.next_op_seq(here.number)))

    def restore(self, request: peer_pb2.RestoreRequest, told: Membership, source: str, node: str) -> None:
        """A host of a job, at `source`, tells what this daemon knew of it in a former life. Raises Refused."""
        here, first = Place(self._address, self._grpc_port, self._node), told.hosts[0]
        is_here = (first.grpc_port, first.node) == here[1:] and self._address in ("", first.address)
        if not is_here and told.elastic is None:  # hosts that come and go may meet at any daemon
            raise FailedPrecondition(f"hosts[0] = {first.place}: allowed: this daemon, {here}")
        name, proof, own = request.job, types_pb2.JobProof.FromString(request.proof.SerializeToString()), self._node

        @functools.lru_cache(maxsize=8)
        def vouched(secret: bytes) -> bool:
            return job_secret.proves(secret, proof, name, told.generation, node, own)

        self._coordinator.restore(name, told, source, Voucher(node, request.uid, vouched if proof.mac else None))

    # ---- what others say ----

    def heard(self, place: Place, news: peer_pb2.WatchResponse) -> None:
        """Another daemon tells how one of its hosts is."""
        if news.HasField("word") or news.HasField("state_word"):
            self._heard_word(place, news)
            return
        state = State(news.state) if news.state in map(int, State) else State.CONNECTING
        self._coordinator.host_is(place, news.job, news.generation, news.host_index, news.incarnation, state)
        job = self.job(news.job, news.generation)
        if job is None or job.links is None or news.host_index not in job.links:
            return
        link = job.links[news.host_index]
        if link.host.incarnation != news.incarnation or link.host.place != place:
            return  # of a life that is over, or that has not called us yet
        self.on_unheard(job, news)
        self.returning.announced(job, link, news.back_within_ms)
        if state is State.ABSENT:
            if not news.back_within_ms:
                self.returning.left(job, link)
            self._host_absent(job, news.host_index, "all its trainers have left or died")
        elif state is State.UP:
            link.leaving = not news.ranks
            leaves = (job.elastic is not None and link.leaving) or link.left == news.incarnation
            if link.state is State.ABSENT and not leaves:
                job.links.call(link, give_up=False)
            self._changes.notify()

    def _heard_word(self, place: Place, news: peer_pb2.WatchResponse) -> None:
        job = self.job(news.job, news.generation)
        if job is None or not self._hand_on(job, place, news):
            self._early.keep(place, news)

    def _hand_on(self, job: Job, place: Place, news: peer_pb2.WatchResponse) -> bool:
        """Hands on what a host says of epochs, or of state. False: it is to be kept, because the job here is still
        forming, or because it comes from a life of the host that has not called this one yet."""
        if job.links is None:
            return False
        if news.host_index not in job.links or job.links[news.host_index].host.place != place:
            return True  # it does not speak for that host
        link = job.links[news.host_index]
        if link.host.incarnation != news.incarnation:
            return False
        if not news.HasField("state_word"):
            return self.council.heard(job, link, news.word)
        try:
            self.states.heard(job, link, news.state_word)
        except Refused as error:
            log.warning("state word refused job=%s host=%d reason=%s", job.name, news.host_index, error)
        return True

    def lost(self, place: Place, stood: bool) -> None:
        """A daemon that was watched is gone; or (not `stood`) one that could not be watched, whatever paths to it say.

        The latter breaks only paths that are up: one that is still being made has its own ways to fail.
        """
        self._coordinator.place_lost(place, coming=stood)
        self._early.forget(place)
        for job in list(self._jobs.values()):
            for link in job.links.values() if job.links is not None else []:
                if link.host.place == place and link.up():
                    self.silence.lost(job, link)
                elif link.host.place == place and stood:
                    self._host_absent(job, link.host.index, "its daemon is gone")

    def found(self, place: Place) -> None:
        """A daemon can be watched. If it is a coordinator, it may have forgotten its jobs: it may have died even before
        the first watch stood, which nobody noticed then."""
        for job in list(self._jobs.values()):
            if job.ready and place in (job.meet() if job.elastic else (job.hosts()[0][0].place,)):
                self._restore(job, place)

    def tell_where_hosts_meet(self, job: Job) -> None:
        """This host has come into a job whose hosts come and go: the daemons at which they meet are to know who has its
        seat, those that did not give it, too. Of those that are away, `found` tells when they are back."""
        for place in job.meet():
            if self.stands(place):
                self._restore(job, place)

    def _restore(self, job: Job, place: Place) -> None:
        if self._peers is None or job.membership is None:
            return
        # Of a host that leaves an elastic job the path may still stand; nobody else would say that its seat is free.
        left = job.standing.left if job.elastic and job.standing else frozenset[int]()
        request = peer_pb2.RestoreRequest(
            job=job.name,
            world_size=job.membership.world_size,
            generation=job.generation,
            bucket_bytes_max=job.membership.bucket_bytes_max,
            hosts=[host.to_proto(State.ABSENT if host.index in left else state) for host, state in job.hosts()],
            next_op_seq=self._engine.next_op_seq(job.number),
            options=job.membership.options.to_proto(),
            lanes=job.membership.lanes,
            portions=job.membership.portions,
            uid=job.uid,
            least=job.elastic.least if job.elastic else 0,
            split_waits=bool(job.elastic and job.elastic.split_waits),
        )
        if job.secret:
            proved = (job.name, job.generation, self._node, place.node)
            request.proof.CopyFrom(job_secret.prove(job.secret, *proved))
        self._peers.restore(place, request)

    async def forming(self, spec: JoinSpec, uid: int) -> peer_pb2.FormingResponse:
        """What the coordinator of a rank's job says of who has come. Raises Refused."""
        if spec.rendezvous is None:
            world_size, ranks = self._coordinator.forming(spec.job)
            return peer_pb2.FormingResponse(world_size=world_size, ranks=ranks)
        assert self._peers is not None
        return await self._peers.forming(spec.rendezvous, spec.job, FORMING_SECONDS, f"uid {uid}")

    def patience(self, job: Job) -> float:
        """For the farthest host of a job to ask for something once more, and to get it, in seconds."""
        assert self._peers is not None and job.links is not None
        trips = (self._peers.round_trip(link.host.place) for link in job.links.values() if link.up())
        return max((exchange(trip) for trip in trips if trip.measured), default=0.0)

    def unwatched(self, place: Place) -> None:
        """A daemon watches this one no more. Of a job that is only coordinated here nobody else tells it is gone."""
        if not self._closing:
            self.watch()
            if self._peers is not None and place not in self._peers.watched():
                self._coordinator.place_lost(place)

    def violated(self, job: Job, index: int) -> float | None:
        """The engine saw that host break the protocol, or somebody who forged its packets: a new path is made.

        Returns after how many seconds; None if there was no path.
        """
        if job.links is None or job.over:
            return None
        if index in job.links:
            self.violations[job.links[index].host.address] += 1
        try:
            return job.links.violated(index)
        except Refused as error:
            log.error("engine refused job=%s host=%d reason=%s", job.name, index, error)
            return None

    def part_with(self, nodes: frozenset[str]) -> None:
        """These nodes are withdrawn from now on, and no others: the jobs here go on without their hosts at once."""
        self._withdrawn = nodes
        self._watchers.part_with(nodes)
        for job in list(self._jobs.values()):
            for link in list(job.links.values()) if job.links is not None else []:
                if link.host.node in nodes:
                    self._coordinator.place_lost(link.host.place)
                    self._host_absent(job, link.host.index, f"node {link.host.node!r} was withdrawn")
        self.watch()

    # ---- who is watched ----

    def review(self, job: Job) -> None:
        """The paths of a job have changed."""
        self.watch()
        for place, news in self._early.take(job.name, job.generation):
            if not self._hand_on(job, place, news):
                self._early.keep(place, news)
        self.council.review(job)

    def watch(self) -> None:
        """Watches all daemons that share a job with the ranks here.

        Of jobs that this daemon only coordinates, it watches those that watch it: nobody else's word makes it call
        anyone.
        """
        if self._peers is None:
            return
        own, answered = {Place(self._address, self._grpc_port, self._node)}, set()
        places = self._coordinator.places() & self._watchers.proven()
        for job in self._jobs.values():
            if job.links is not None and job.own is not None:
                own.add(job.own.place)
                places |= {link.host.place for link in job.links.values() if not link.host.vacant}
                answered |= {link.host.place for link in job.links.values() if link.up()}
                places |= job.meet()
        places = {place for place in places if place.node not in self._withdrawn}
        outward, held = lines_of(self._jobs.values())
        self._peers.lines.know(outward)
        self._peers.outgoing.hold(set() if self._closing else held)
        self._peers.watch(set() if self._closing else places - own, answered)

    def _watch_anew(self, place: Place) -> None:
        if self._peers is not None:
            self._peers.watch_anew(place)

    def stands(self, place: Place) -> bool:
        return self._peers is not None and self._peers.stands(place)

    def _round_trip(self, place: Place) -> float:
        return self._peers.round_trip(place).most if self._peers is not None else 0.0

    def _host_absent(self, job: Job, index: int, why: str) -> None:
        assert job.links is not None
        try:
            job.links.absent(index, self.returning.went(job, job.links[index]) or why)
        except Refused as error:
            log.error("engine refused job=%s host=%d reason=%s", job.name, index, error)


async def _at_once(job: Job) -> None:
    return


def lines_of(jobs: Iterable[Job]) -> tuple[dict[Place, list[Place]], set[Place]]:
    """Of all jobs here: the other hosts' daemons that only go out, each with those by which it may be reached; and
    those at which this daemon attends, where it is one of them."""
    outward: dict[Place, list[Place]] = {}
    held: set[Place] = set()
    for job in jobs:
        others = [host for host, _ in job.hosts() if host is not job.own and not host.vacant]
        dialled = [host.place for host in others if not host.outward]
        for host in others:
            if host.outward:
                outward.setdefault(host.place, []).extend(dialled)
        if job.own is not None and job.own.outward:
            held.update(dialled)
    return outward, held
