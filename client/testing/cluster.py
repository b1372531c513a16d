# SPDX-License-Identifier: Apache-2.0
"""One life of the fake's job: engines, who sits at them, and what a test has done to them.

Everything here is called under the fake daemon's lock. Times are ns of the fake's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ultima.base.receipt import Host
from ultima.base.reference import picks
from ultima.base.words import POLICY_BY_CODE
from ultima.testing.lan import Lan
from ultima.testing.seat import Seat
from ultima.testing.stand_in import Peer, StandIn, brought
from ultima.testing.trainer import Trainer
from ultima.v1.job_options import PROBES

STAND_IN_ARENAS = 4
"""Memory of a stand-in, in arenas of the rank that connected first: its values are kept apart from its results, and a
sparse contribution that is dense takes twice the room."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What stays the same from one life of the job to the next."""

    hosts: tuple[Host, ...]
    options: Mapping[str, int]
    """Numbers by the fields of JobOptions."""
    bucket_bytes_max: int
    peer: Peer | None
    """Stands for the ranks that nobody connects."""
    arena_bytes: int
    """Of the rank that connected first."""


class Cluster:
    """See the module. `gone`: ranks that were here in an earlier life and are not waited for."""

    def __init__(self, terms: Terms, next_op_seq: int, gone: set[int], now_ns: int) -> None:
        self._hosts = terms.hosts
        self._world_size = sum(len(host.ranks) for host in terms.hosts)
        self._policy = POLICY_BY_CODE[terms.options["policy"]]
        self._seed, self._probes = terms.options["policy_seed"], terms.options["probes"] or PROBES
        self._seats: dict[int, Seat] = {}
        """By rank; of ranks that nobody has connected too, which are waited for."""
        self._trainers: dict[tuple[int, int], Trainer] = {}
        """By host and session."""
        self._stand_ins: dict[int, StandIn] = {}
        self._leaving: list[Seat] = []
        """An op may still read what they gave."""
        self._ready: dict[int, tuple[int, int]] = {}
        """Of each host the op that ranks of it are ready for, and a mask of them."""
        self._cut: set[int] = set()
        self._lan = Lan(terms.hosts, terms.options, terms.bucket_bytes_max, next_op_seq, 1 + next_op_seq)
        try:
            self._lan.run(now_ns)
            for rank in sorted(set(range(self._world_size)) - gone):
                self._sit(rank, STAND_IN_ARENAS * terms.arena_bytes if terms.peer is not None else 1)
                if terms.peer is not None:
                    self._stand_ins[rank] = StandIn(self._seats[rank], terms.peer, len(self._hosts), self._policy)
            self._lan.agree()
        except BaseException:
            self._lan.close()
            raise

    def change(self, changes: Mapping[str, int]) -> None:
        """Options become other ones from the next op on. Raises InvalidArgument, and changes nothing."""
        self._lan.change(changes)
        self._policy = POLICY_BY_CODE[changes["policy"]] if "policy" in changes else self._policy
        self._probes = (changes["probes"] or PROBES) if "probes" in changes else self._probes

    def close(self) -> int:
        """Ends at once; returns the number of the op that nobody knows of."""
        next_op_seq = self._lan.next_op_seq()
        self._lan.close()
        return next_op_seq

    # Ranks

    def attach(self, rank: int, arena_bytes: int) -> Trainer:
        """A trainer takes his seat, which nobody else has."""
        if rank in self._seats:
            self._stand_ins.pop(rank, None)
            self._rise(rank)
        self._sit(rank, arena_bytes)
        self._lan.agree()
        seat = self._seats[rank]
        trainer = Trainer(seat)
        self._trainers[seat.host, seat.session] = trainer
        return trainer

    def detach(self, trainer: Trainer) -> None:
        """A trainer is gone."""
        seat = trainer.seat
        del self._trainers[seat.host, seat.session]
        trainer.hang_up()
        self._rise(seat.rank)
        if not any(other.host == seat.host for other in self._seats.values()):
            self._lan.host_closes(seat.host)
            self._lan.agree()

    def trainers(self) -> list[Trainer]:
        """All that are attached."""
        return list(self._trainers.values())

    def _host_of(self, rank: int) -> Host:
        return next(host for host in self._hosts if rank in host.ranks)

    def _sit(self, rank: int, arena_bytes: int) -> None:
        host = self._host_of(rank)
        if host.index not in self._lan.open_hosts:
            self._lan.host_opens(host.index)
        self._seats[rank] = Seat(self._lan, host, rank, arena_bytes)
        self._cut_seats()

    def _rise(self, rank: int) -> None:
        seat = self._seats.pop(rank)
        self._lan.session_remove(seat.host, seat.session)
        self._leaving.append(seat)

    # Time

    def run(self, now_ns: int, skipped_ns: int) -> int:
        """Lets everything happen that is due; returns when to call again, NEVER for not until somebody asks. The clock
        is so far ahead of the ranks'."""
        for seat in self._seats.values():
            seat.look()
        while (first := min(self._seats.values(), key=Seat.due_ns, default=None)) and first.due_ns() <= now_ns:
            self._hand_over(first, skipped_ns)
            self._lan.run(now_ns)
        wake_ns = self._lan.run(now_ns)
        while self._start_probed():
            wake_ns = self._lan.run(now_ns)
        for key in self._lan.woken():
            if key in self._trainers:
                self._trainers[key].wake()
        for stand_in in self._stand_ins.values():
            stand_in.forget()
        self._leaving = [seat for seat in self._leaving if not self._lan.has_let_go(seat.host)]
        return min([wake_ns, *(seat.due_ns() for seat in self._seats.values())])

    def _hand_over(self, seat: Seat, skipped_ns: int) -> None:
        """The engine hears what the rank asked for first, and stand-ins hear it, too: they call at the same moment."""
        call = seat.next(skipped_ns)
        self._lan.ring(seat.host, seat.session)
        there = [one for rank, one in self._stand_ins.items() if rank not in self._cut]
        if there:
            op_seq = call.op_seq
            if self._policy != "none":
                op_seq = call.wanted if self._policy == "coded" else self._lan.next_op_seq()
            mine = brought(call, seat.arena_map.bytes, len(self._hosts))
            for stand_in in there:
                if stand_in.hear(call, op_seq, mine):
                    self._lan.ring(stand_in.seat.host, stand_in.seat.session)

    def _start_probed(self) -> bool:
        """Does what the daemon with the controller's role does for policy "probe": of the ranks drawn for an op the
        first that is ready starts it. True if one did."""
        for told in self._lan.ready():
            self._ready[told.host] = told.op_seq, told.places
        if self._policy != "probe":
            return False
        coming = self._lan.next_op_seq()
        alive = {rank for rank in self._seats if rank not in self._cut}
        for rank in picks(self._seed, coming, self._world_size, self._probes, alive):
            host = self._host_of(rank)
            op_seq, places = self._ready.get(host.index, (-1, 0))
            if op_seq == coming and places >> host.ranks.index(rank) & 1:
                del self._ready[host.index]
                return self._lan.activate(host.index, coming)
        return False

    # Faults

    def set_faults(self, way_ns: int, lost: float, left_out: set[int]) -> None:
        """From now on each way between two hosts takes `way_ns`, loses such a share of its packets, and nothing of the
        ranks `left_out` reaches anyone."""
        self._cut = set(left_out)
        whole = {host.index for host in self._hosts if left_out.issuperset(host.ranks)}
        self._lan.set_paths(way_ns, lost, whole)
        self._cut_seats()

    def _cut_seats(self) -> None:
        """A rank that is left out alone among those of its host is not heard by its engine."""
        for rank, seat in self._seats.items():
            seat.cut_off = rank in self._cut and not self._cut.issuperset(self._host_of(rank).ranks)
