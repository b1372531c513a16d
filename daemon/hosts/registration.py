# SPDX-License-Identifier: Apache-2.0
"""What the coordinator knows as values: one rank that wants in, one job whose ranks are all known, and their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ultima.daemon.base.errors import FailedPrecondition, PermissionDenied, ResourceExhausted
from ultima.daemon.base.options import DEFAULTS, Options, differing
from ultima.daemon.base.waiting import numbers
from ultima.daemon.hosts.host import Elastic, Host, Place, State, order
from ultima.v1.limits import HOSTS_MAX, LOCAL_RANKS_MAX

Title = tuple[str, bytes]
"""What a job is known by: its name, and its secret or b"". The same name under another secret is another job, so that
nobody without the secret can be in the way of those who hold it."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One rank that wants to be in a job. `host.ranks` holds just this rank; where hosts come and go, the places of all
    ranks of the host, from 0, and each of them says the same."""

    job: str
    rank: int
    world_size: int
    host: Host
    bucket_bytes_max: int
    left_generation: int
    options: Options = DEFAULTS
    source: str = ""
    """The address from which it was called; "" for a rank on this host."""
    uid: int = 0
    """The user of the rank, on its daemon's word."""
    secret: bytes = b""
    """The job's, which the rank's daemon has shown to know; empty if the job has none."""
    next_op_seq: int = 0
    """The op that the rank calls next, if it was in this job before."""
    elastic: Elastic | None = None
    """Of a job whose hosts come and go: then `rank` is only a place in the order of those that wait."""
    only_known: bool = False
    """It wants a seat of a job that is known, and begins none."""
    taken: frozenset[int] = frozenset()
    """Seats that hosts of the job say are another host's: it gets none of them."""

    @property
    def title(self) -> Title:
        """What the rank has a right to: the job of that name among those who hold its secret."""
        return self.job, self.secret

    @property
    def seats(self) -> int:
        """Hosts that a job can have whose hosts come and go; of another one, its ranks."""
        return self.world_size // self.elastic.each if self.elastic else self.world_size

    @property
    def account(self) -> str:
        """On whose quota it goes: the node's where callers are authenticated, else the address's; "" for this host."""
        return (self.host.node or self.source) if self.source else ""


@dataclass(slots=True)
class Forming:
    """A job whose ranks are not all known."""

    account: str
    """Of the first rank that came."""
    waiting: dict[int, Registration] = field(default_factory=dict)
    gave_up: dict[int, float] = field(default_factory=dict)
    """When ranks gave up waiting, on the loop's clock."""
    conflict: str = ""


@dataclass(slots=True)
class Record:
    """A job whose ranks are all known."""

    generation: int
    world_size: int
    bucket_bytes_max: int
    hosts: list[Host]
    states: list[State]
    confirmed: bool = False
    next_op_seq: int = 0
    formed_at: float = 0.0
    """On the loop's clock."""
    options: Options = DEFAULTS
    lanes: int = 1
    portions: int = 1
    restored_by: str | None = None
    """The account of who told it, if it did not form here: its node or its address."""
    uid: int = 0
    secret: bytes = b""
    """Which a rank has shown here; b"" until then, and if the job has none."""
    vouched: Callable[[bytes], bool] | None = None
    """Whether who told of the job, if it did not form here, has shown that he knows a secret; None if he has shown
    nothing, and once a rank has shown the secret."""
    elastic: Elastic | None = None
    founders: tuple[Host, ...] = ()
    """Of an elastic job: its hosts and free seats when it began."""
    taken_at: dict[int, float] = field(default_factory=dict)
    """When seats were given that nobody had before, on the loop's clock."""

    def is_of(self, secret: bytes) -> bool:
        """Whether it is the job of those who hold `secret`, or of those who hold none."""
        return self.secret == secret if self.vouched is None else bool(secret) and self.vouched(secret)

    def index_of(self, rank: int) -> int:
        """The host that has `rank`."""
        return next(host.index for host in self.hosts if rank in host.ranks)

    @property
    def over(self) -> bool:
        """All its hosts are gone, or never came up."""
        return all(state is State.ABSENT for state in self.states)


@dataclass(frozen=True, slots=True)
class Voucher:
    """Who tells of a job that he remembers."""

    node: str
    """By his certificate; empty among insecure daemons."""
    uid: int
    """Of the job's trainers there."""
    vouched: Callable[[bytes], bool] | None
    """Whether he has shown that he knows a secret; None if he has shown nothing."""


STRANGER = Voucher("", 0, None)


def disagreement(new: Registration, waiting: Mapping[int, Registration]) -> str:
    """What `new` and those who wait contradict each other in, naming ranks and values; "" if they agree."""
    for rank in sorted(waiting):
        other = waiting[rank]
        if other.elastic != new.elastic:
            here, there = (str(each or "fixed") for each in (new.elastic, other.elastic))
            return f"job {new.job!r}: world differs: rank {new.rank} says {here}, rank {rank} says {there}"
        if other.world_size != new.world_size:
            return (
                f"job {new.job!r}: world_size differs: rank {new.rank} says {new.world_size}, "
                f"rank {rank} says {other.world_size}"
            )
        if difference := differing(new.options, other.options):
            name, here, there = difference
            return f"job {new.job!r}: {name} differs: rank {new.rank} says {here}, rank {rank} says {there}"
    return ""


def check_owner(new: Registration, uid: int) -> None:
    """Raises PermissionDenied unless a job of a rank's title is its user's. A secret is proof enough;
    insecure daemons know no users."""
    if new.host.node and not new.secret and new.uid != uid:
        raise PermissionDenied(
            f"job {new.job!r}: belongs to uid {uid}, which joined first; rank {new.rank} on node {new.host.node!r} is "
            f"of uid {new.uid}: allowed: the same user on all hosts, or a job secret"
        )


def check_options(job: str, rank: int, options: Options, asked: Options) -> None:
    """Raises FailedPrecondition if a rank of a job that is known says something else than the job was formed with."""
    if difference := differing(options, asked):
        name, here, there = difference
        raise FailedPrecondition(
            f"job {job!r}: {name} differs: rank {rank} says {here}, the job that is under way began with {there}"
        )


def common_wires(hosts: Iterable[Host]) -> tuple[str, ...]:
    """The forms of few bits that a job's ranks can use: those that all its hosts know. Free seats say nothing."""
    known = [host.wires for host in hosts if not host.vacant]
    return tuple(wire for wire in known[0] if all(wire in each for each in known)) if known else ()


def check_wires(new: Registration, hosts: Iterable[Host]) -> None:
    """Raises FailedPrecondition unless a host that comes into a job under way knows each form that the job's ranks
    were told that they can use."""
    lacks = [wire for wire in common_wires(hosts) if wire not in new.host.wires]
    if lacks:
        raise FailedPrecondition(
            f"job {new.job!r}: wires = {', '.join(new.host.wires) or 'none'} on {new.host.address}: allowed: those "
            f"that know {', '.join(lacks)}, too, as the job that is under way does: update the daemon there"
        )


def form(registrations: Iterable[Registration]) -> list[Host]:
    """The hosts of a complete set of registrations, in order. Raises ResourceExhausted over the engine's limits."""
    places: dict[Place, Host] = {}
    ranks_most = LOCAL_RANKS_MAX
    for registration in registrations:
        ranks_most = 1 if registration.options.coded else LOCAL_RANKS_MAX  # agreed by now: the same in all
        known = places.get(registration.host.place, replace(registration.host, ranks=()))
        places[registration.host.place] = replace(known, ranks=tuple(sorted({*known.ranks, registration.rank})))
    if len(places) > HOSTS_MAX:
        raise ResourceExhausted(f"hosts_per_job = {HOSTS_MAX}: the ranks have joined on {len(places)} hosts")
    for host in places.values():
        if len(host.ranks) > ranks_most:
            where = " in a coded job" if ranks_most == 1 else ""
            text = f"ranks_per_host = {ranks_most}{where}: ranks {numbers(host.ranks)} are on one host"
            raise ResourceExhausted(text)
    return order(places.values())
