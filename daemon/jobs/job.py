# SPDX-License-Identifier: Apache-2.0
"""One job as it lives on this host: who is in it here, and how it stands with the other hosts.

It forms (`membership` is None), connects (`ready` is False), runs, and is over when the last local trainer is gone. Its
`incarnation` is drawn anew for each such life, so that the other hosts never take one for another.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ultima.daemon.base.errors import AlreadyExists, FailedPrecondition, PermissionDenied, Refused
from ultima.daemon.base.options import DEFAULTS, InForce, Options
from ultima.daemon.engine.engine import JobConfig
from ultima.daemon.engine.host_engine import HostEngine, HostSnapshot
from ultima.daemon.hosts.host import Elastic, Host, Membership, Place, State, fresh_number
from ultima.daemon.hosts.registration import Title, check_options
from ultima.daemon.jobs.links import Links
from ultima.daemon.jobs.readiness import Readiness
from ultima.daemon.jobs.unheard import Unheard
from ultima.daemon.observe.late import Late, LateHosts
from ultima.daemon.observe.partial_stats import PartialStats
from ultima.daemon.observe.record import JobRecord, Life
from ultima.daemon.observe.stats import OpStats, ProbeStats, ViewStats
from ultima.daemon.trainers.attach import Trainer
from ultima.v1 import peer_pb2, records_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """What a trainer asks for, checked."""

    job: str
    rank: int
    world_size: int
    rendezvous: Place | None
    """Where the coordinator listens; None when all ranks are on this host."""
    advertise: str
    """The address under which the client says that this host is found; may be empty."""
    bucket_bytes_max: int
    rate_bytes_per_s: int
    options: Options = DEFAULTS
    secret: bytes = b""
    """Of the job; empty if it has none."""
    next_op_seq: int | None = None
    """Of a rank that comes back because its daemon was told to stop: the op that it calls next."""
    elastic: Elastic | None = None
    """Hosts of the job come and go; world_size is the number of its seats, and `rank` of no meaning."""
    others: tuple[Place, ...] = ()
    """Further daemons at which its hosts may meet, then."""
    follow: bool = False
    """Of such a job, if it is under way: the rank is in no op before it says that it has caught up."""

    @property
    def places(self) -> list[Place]:
        """Where it may be registered, if not here: the first that can be reached."""
        return [*([self.rendezvous] if self.rendezvous else []), *self.others]


class View(NamedTuple):
    """Who is in a job whose hosts come and go, as its trainers are told."""

    number: int
    start: int
    """The op from which it holds."""
    ranks: tuple[int, ...]
    why: str


class Standing(NamedTuple):
    """Which hosts are in the ops of a job by the agreement on epochs, and what is known of those that are not."""

    number: int
    start: int
    why: str
    slots: frozenset[int]
    """Indices of the hosts that are in."""
    left: frozenset[int]
    """Of those that said that they leave."""
    flaps: dict[int, str]
    """Why a host that is there is not taken in yet, because it goes and comes back again and again."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What a trainer gets to know when it is in."""

    hosts: list[tuple[Host, State]]
    host_index: int
    next_op_seq: int
    session: int
    bucket_bytes_max: int
    options: Options
    lanes: int
    portions: int
    """Into which a large op is split."""
    rank: int = 0
    view: View | None = None
    """Where hosts come and go."""


@dataclass(frozen=True, slots=True)
class Joiner:
    """A rank on its way in."""

    trainer: Trainer
    spec: JoinSpec


@dataclass(frozen=True, slots=True)
class Session:
    """A rank that is in: `number` is the engine's."""

    number: int
    trainer: Trainer


@dataclass(eq=False)
class Job:
    """See the module. Ranks are those of this host."""

    name: str
    uid: int
    """Its owner: the user of the trainer that was admitted first."""
    secret: bytes = b""
    """What its trainers gave to prove that other hosts are in it; empty if it has none."""
    incarnation: int = field(default_factory=fresh_number)
    membership: Membership | None = None
    own: Host | None = None
    number: int = -1
    """The engine's, once there is a membership."""
    in_force: InForce | None = None
    links: Links | None = None
    ready: bool = False
    """Connected: sessions may be added."""
    follows: bool = False
    """The rank here takes state and results of others, and the host does not ask to be taken in yet."""
    over: bool = False
    failed: Refused | None = None
    """Why the job cannot begin."""
    memory_bytes: int = 0
    """What it was debited for the engine, apart from its trainers' arenas."""
    joining: dict[int, Joiner] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    entry_op: int = 0
    """The op with which the ranks here begin, where hosts come and go: all with the same."""
    seen: set[int] = field(default_factory=set)
    """Ranks that have had a session here: one that comes again joins where the job stands by then."""
    left: set[int] = field(default_factory=set)
    """Ranks that left in good order: they want the next life of the job, not this one."""
    stats: OpStats = field(default_factory=OpStats)
    moves: ViewStats = field(default_factory=ViewStats)
    record: JobRecord = field(default_factory=JobRecord)
    """What the flight recorder has of its ops here."""
    partial: PartialStats | None = None
    """Of a partial job, once there is a membership."""
    late: LateHosts | None = None
    """Of another job, once there is a membership."""
    readiness: Readiness = field(default_factory=Readiness)
    """Of its local ranks, if it is partial."""
    probes: ProbeStats = field(default_factory=ProbeStats)
    """Of what this daemon has asked as the job's controller."""
    unheard: dict[int, frozenset[Unheard]] = field(default_factory=dict)
    """What does not get through over UDP, by the host that found it out."""
    ailment: types_pb2.Ailment | None = None
    """What that comes to."""
    forwarded: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes that this host has forwarded between two others, by sender and receiver."""
    back_within_s: float = 0.0
    """Above 0: this daemon was told to stop, and for so long the other hosts are to wait for the ranks here."""
    word: peer_pb2.EpochWord | None = None
    """What this host has to say for the agreement on epochs."""
    state_words: dict[int, types_pb2.StateWord] = field(default_factory=dict)
    """What each rank here says of the state that it gives or takes."""
    standing: Standing | None = None
    """What holds by the agreement on epochs; None if this host was told nothing."""
    taken: set[int] = field(default_factory=set)
    """Seats that this host was given, and another one has."""
    former: set[int] = field(default_factory=set)
    """Its incarnations in those."""
    waiting_for: str = ""
    """Whom it waits for while it forms, in words."""
    began: float = field(default_factory=time.monotonic)

    def take_place(self, number: int, memory_bytes: int, membership: Membership, own: Host) -> None:
        """It has a membership, and is the engine's `number`."""
        self.number, self.memory_bytes, self.membership, self.own = number, memory_bytes, membership, own
        self.follows = membership.under_way and any(joiner.spec.follow for joiner in self.joining.values())

    def take_seat(self, spec: JoinSpec, told: Membership) -> JoinSpec:
        """What a rank asked for, with the seat that it has got where hosts come and go."""
        own = next((host for host in told.hosts if host.incarnation == self.incarnation), None)
        if told.elastic is None or own is None:
            return spec
        return self._at(spec, told.elastic.ranks_of(own.index)[spec.rank % told.elastic.each])

    @property
    def unseated(self) -> bool:
        """Another host has the seat that this one was given."""
        return not self.ready and self.links is not None and self.links.seat_taken

    def gives_way(self, rival: int) -> bool:
        """Whether this host leaves its seat to another life that claims it. A life that has its paths to all hosts does
        not; of two that have not, the smaller one goes on, so that one of them does."""
        if self.elastic is None or self.links is None or self.ready or rival >= self.incarnation:
            return False
        self.links.seat_taken = True
        return True

    def give_up_seat(self) -> None:
        """Its ranks are to register again, as another life of this host."""
        assert self.own is not None
        self.taken.add(self.own.index)
        self.former.add(self.incarnation)
        self.unform()
        self.incarnation = fresh_number()

    def _at(self, spec: JoinSpec, rank: int) -> JoinSpec:
        moved = replace(spec, rank=rank)
        self.joining[rank] = replace(self.joining.pop(spec.rank), spec=moved)
        return moved

    def place_of(self, trainer: Trainer) -> int:
        """The rank as which a trainer is on its way in."""
        return next(rank for rank, joiner in self.joining.items() if joiner.trainer is trainer)

    def unform(self) -> None:
        """Takes back that it has a membership: its links end, and the engine knows it no more."""
        if self.links is not None:
            self.links.close()
        self.membership = self.own = self.in_force = self.links = self.partial = self.late = None
        self.unheard.clear()
        self.number, self.memory_bytes = -1, 0

    def life(self) -> Life:
        """What the flight recorder must know of it, once there is a membership."""
        assert self.membership is not None and self.own is not None
        hosts = records_pb2.JobLife(hosts=[host.to_proto() for host in self.membership.hosts])
        return Life(
            number=self.incarnation,
            job=self.name,
            uid=self.uid,
            generation=self.membership.generation,
            world_size=self.membership.world_size,
            host_index=self.own.index,
            lanes=self.membership.lanes,
            addresses=tuple(host.address for host in self.membership.hosts),
            nodes=tuple(host.node for host in self.membership.hosts),
            hosts=hosts.SerializeToString(),
            began_ns=time.time_ns(),
        )

    @property
    def title(self) -> Title:
        """What it is known by."""
        return self.name, self.secret

    @property
    def account(self) -> str:
        """On whose share of the memory of one job it goes: a namesake without the secret has another one."""
        return f"{self.name} of uid {self.uid}" if self.secret else self.name

    @property
    def generation(self) -> int:
        """Number of the job's life among all its hosts; 0 while it forms."""
        return self.membership.generation if self.membership else 0

    @property
    def empty(self) -> bool:
        """Nobody is in it here, nor on the way."""
        return not self.sessions and not self.joining

    @property
    def all_in(self) -> bool:
        """Every local rank that is on its way has its session: no op starts without one of them."""
        return all(rank in self.sessions for rank in self.joining)

    def check_failed(self) -> None:
        """Raises why the job cannot begin, if it cannot."""
        if self.failed is not None:
            raise type(self.failed)(str(self.failed))

    def check_secret(self, spec: JoinSpec) -> None:
        """Raises PermissionDenied if a rank that joins gives another secret than those that are here."""
        if not hmac.compare_digest(self.secret, spec.secret):
            how = "another" if self.secret and spec.secret else "no" if self.secret else "a"
            raise PermissionDenied(
                f"job {self.name!r}: rank {spec.rank} has {how} secret, unlike the ranks that are here: give all ranks "
                "of a job the same ULTIMA_JOB_SECRET or ULTIMA_JOB_SECRET_FILE"
            )

    def has_node(self, node: str) -> bool:
        """Whether one of its hosts is that node."""
        return any(host.node == node for host, _ in self.hosts())

    def check_place(self, spec: JoinSpec) -> None:
        """Raises AlreadyExists or FailedPrecondition unless the rank has a free place here that it can take."""
        if self.elastic or spec.elastic:
            self._check_seat(spec)
            return
        if spec.rank in self.joining or spec.rank in self.sessions:
            raise AlreadyExists(
                f"rank = {spec.rank}: already runs in job {self.name!r} on this host; do two processes have this rank?"
            )
        if self.own is None or self.membership is None:
            return
        if spec.world_size != self.membership.world_size:
            raise FailedPrecondition(
                f"job {self.name!r}: world_size differs: rank {spec.rank} says {spec.world_size}, "
                f"the job that is under way has {self.membership.world_size}"
            )
        if spec.rank not in self.own.ranks:
            host = next((h for h in self.membership.hosts if spec.rank in h.ranks), self.own)
            raise AlreadyExists(f"rank = {spec.rank}: has its place in job {self.name!r} on {host.name}")
        check_options(self.name, spec.rank, spec.options, self.membership.options)

    @property
    def elastic(self) -> Elastic | None:
        """Its rules, if hosts come and go."""
        known = [each.spec.elastic for each in self.joining.values()]
        return self.membership.elastic if self.membership is not None else next(iter(known), None)

    def _check_seat(self, spec: JoinSpec) -> None:
        """Raises AlreadyExists, as a host has one seat in a job whose hosts come and go: all its ranks join before the
        first of them is in."""
        rules = self.elastic
        if self.empty:
            return
        if rules is None or spec.elastic is None:
            raise AlreadyExists(
                f"job {self.name!r}: a rank of it is on this host: allowed: the same world on all ranks"
            )
        if rules.each == 1:
            raise AlreadyExists(f"job {self.name!r}: a rank of it is on this host: allowed: one rank on each host")
        if spec.elastic != rules:
            text = f"this rank says {spec.elastic}, another one on this host {rules}"
            raise FailedPrecondition(f"job {self.name!r}: world differs: {text}")
        if spec.rank in {rank % rules.each for rank in (*self.joining, *self.sessions)}:
            raise AlreadyExists(
                f"local_rank = {spec.rank}: already runs in job {self.name!r} on this host; do two processes have it?"
            )

    @property
    def gathered(self) -> bool:
        """All ranks of this host are there without whom a job does not begin whose hosts come and go."""
        rules = self.elastic
        return rules is None or len(self.joining.keys() | self.sessions.keys()) >= rules.each

    def quarantine_s(self, index: int) -> float:
        """Seconds for which no path to a host is made yet, because its packets broke the protocol; 0 for none."""
        if self.links is None or index not in self.links:
            return 0.0
        return self.links[index].quarantine(asyncio.get_running_loop().time())

    def hosts(self) -> list[tuple[Host, State]]:
        """All hosts and how they look from here, in order of their index."""
        if self.membership is None or self.links is None or self.own is None:
            return []
        rows = [(link.host, link.state) for link in self.links.values()]
        rows.append((self.own, State.UP if self.ready else State.CONNECTING))
        return sorted(rows, key=lambda row: row[0].index)

    def present(self) -> list[tuple[Host, State]]:
        """The same without those who are gone, where hosts come and go: nobody waits for them."""
        gone = State.ABSENT if self.elastic else None
        return [(host, state) for host, state in self.hosts() if state is not gone]

    @property
    def world_size(self) -> int:
        """Ranks of the job, where hosts come and go those that are there; 0 while it forms."""
        if self.membership is None:
            return 0
        return sum(len(host.ranks) for host, _ in self.present()) if self.elastic else self.membership.world_size

    def live(self) -> list[Host]:
        """The hosts that have ranks in the job now, as far as this one knows."""
        if self.links is None or self.own is None:
            return []
        hosts = [link.host for link in self.links.values() if link.up() and not link.leaving]
        return [*hosts, self.own] if self.ready and not self.empty and not self.over else hosts

    def latest(self, engine: HostEngine, now: HostSnapshot) -> tuple[Host, Late] | None:
        """The host for which the others wait while ops stay whole, and how long; None if there is none. While a host is
        gone or UDP is blocked that is what ops wait for, and times say nothing of who calls late."""
        if self.late is None or self.membership is None:
            return None
        if self.ailment is not None or any(state is State.ABSENT for _, state in self.hosts()):
            return None
        self.late.read(engine.series(self.number))
        found = self.late.worst(lambda host: now.peer_stats(self.number, host).srtt_ns // 1000)
        return (self.membership.hosts[found.host], found) if found is not None else None

    def controller(self) -> Host | None:
        """The host whose daemon is the controller under PROBE: of those that live, the one with the lowest rank.

        Whether that very rank is alive is not asked, as the hosts hear of it at different times.
        """
        return min(self.live(), key=lambda host: host.ranks, default=None)

    def tells(self, place: Place) -> bool:
        """Whether the daemon at that place is to know how this host is."""
        return place in self.meet() or self.sees(place)

    def meet(self) -> frozenset[Place]:
        """Where its hosts meet, if they come and go, and if that is not this daemon."""
        return self.membership.meet if self.membership is not None else frozenset()

    def sees(self, place: Place) -> bool:
        """Whether the daemon at that place has a host in this job."""
        return any(host.place == place for host, _ in self.hosts() if host is not self.own)

    def news(self) -> peer_pb2.WatchResponse:
        """What the other hosts are told of this one."""
        assert self.own is not None
        state = types_pb2.HOST_STATE_ABSENT if self.over or self.unseated else types_pb2.HOST_STATE_UP
        return peer_pb2.WatchResponse(
            job=self.name,
            generation=self.generation,
            host_index=self.own.index,
            state=state,
            ranks=sorted(self.sessions),
            incarnation=self.incarnation,
            back_within_ms=round(self.back_within_s * 1e3),
            unheard=[peer_pb2.Unheard(**each._asdict()) for each in sorted(self.unheard.get(self.own.index, ()))],
        )

    def epoch_news(self) -> peer_pb2.WatchResponse:
        """What the other hosts are told of epochs."""
        assert self.own is not None
        return peer_pb2.WatchResponse(
            job=self.name,
            generation=self.generation,
            host_index=self.own.index,
            incarnation=self.incarnation,
            word=self.word,
        )

    def state_news(self, rank: int) -> peer_pb2.WatchResponse:
        """What the other hosts are told of the state that a rank here gives or takes."""
        assert self.own is not None
        return peer_pb2.WatchResponse(
            job=self.name,
            generation=self.generation,
            host_index=self.own.index,
            incarnation=self.incarnation,
            state_word=self.state_words[rank],
        )


def engine_config(
    membership: Membership, own: Host, rate_asked: int, rate_limit: int, sealed: bool = False
) -> JobConfig:
    """A job as the engine needs it; of the rates, in bytes per second, 0 is none and the lower one holds."""
    return JobConfig(
        hosts=len(membership.hosts),
        self_index=own.index,
        local_ranks=len(own.ranks),
        packet_bytes=min(host.packet_bytes for host in membership.hosts),
        world=membership.world_size,
        bucket_bytes_max=membership.bucket_bytes_max,
        rate_bytes_per_s=min(rate_asked or rate_limit, rate_limit or rate_asked),
        first_op_seq=membership.next_op_seq,
        options=membership.options.seeded(membership.generation),
        ranks_of=tuple(len(host.ranks) for host in membership.hosts),
        sealed=sealed,
    )
