# SPDX-License-Identifier: Apache-2.0
"""One life of the fake's job: engines, who sits at them, and what a test has done to them.

Everything here is called under the fake daemon's lock. Times are ns of the fake's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ultima.base.receipt import Host
from ultima.base.reference import picks
from ultima.base.words import POLICY_BY_CODE
from ultima.testing.call import Call
from ultima.testing.lan import Lan
from ultima.testing.seat import Seat
from ultima.testing.stand_in import Peer, StandIn, brought
from ultima.testing.trainer import Trainer
from ultima.v1.job_options import PROBES

STAND_IN_ARENAS = 4
"""Memory of a stand-in, in arenas of the rank that connected first: its values are kept apart from its results, and a
sparse contribution that is dense takes twice the room."""


class Cluster:
    """See the module. `options`: numbers by the fields of JobOptions; `gone`: ranks that were here in an earlier life
    and are not waited for."""

    def __init__(
        self,
        hosts: Sequence[Host],
        options: Mapping[str, int],
        bucket_bytes_max: int,
        next_op_seq: int,
        gone: set[int],
        peer: Peer | None,
        arena_bytes: int,
        now_ns: int,
    ) -> None:
        self._hosts = tuple(hosts)
        self._world_size = sum(len(host.ranks) for host in hosts)
        self._policy = POLICY_BY_CODE[options["policy"]]
        self.partial = self._policy != "none"
        self._seed, self._probes = options["policy_seed"], options["probes"] or PROBES
        self._peer = peer
        self._lan = Lan(hosts, options, bucket_bytes_max, next_op_seq, 1 + next_op_seq)
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
        self._now_ns = now_ns
        for rank in sorted(set(range(self._world_size)) - gone):
            self._sit(rank, STAND_IN_ARENAS * arena_bytes if peer is not None else 1)
            if peer is not None:
                self._stand_ins[rank] = StandIn(self._seats[rank], peer, len(self._hosts), self._policy == "coded")

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
            self._lan.host_closes(seat.host, self._now_ns)

    def trainers(self) -> list[Trainer]:
        """All that are attached."""
        return list(self._trainers.values())

    def _host_of(self, rank: int) -> Host:
        return next(host for host in self._hosts if rank in host.ranks)

    def _sit(self, rank: int, arena_bytes: int) -> None:
        host = self._host_of(rank)
        if host.index not in self._lan.open_hosts:
            self._lan.host_opens(host.index, self._now_ns)
        self._seats[rank] = Seat(self._lan, host, rank, arena_bytes, self._hosts, self._world_size, self.partial)
        self._cut_seats()

    def _rise(self, rank: int) -> None:
        seat = self._seats.pop(rank)
        self._lan.session_remove(seat.host, seat.session, self._now_ns)
        self._leaving.append(seat)

    # Time

    def run(self, now_ns: int) -> int:
        """Lets everything happen that is due; returns when to call again, NEVER for not until somebody asks."""
        self._now_ns = now_ns
        while (seat := min(self._seats.values(), key=Seat.due_ns, default=None)) and seat.due_ns() <= now_ns:
            self._release(seat, now_ns)
            self._lan.run(now_ns)
        wake_ns = self._lan.run(now_ns)
        while self._start_probed(now_ns):
            wake_ns = self._lan.run(now_ns)
        for key in self._lan.woken():
            if key in self._trainers:
                self._trainers[key].wake()
        for stand_in in self._stand_ins.values():
            stand_in.forget()
        self._leaving = [seat for seat in self._leaving if not self._lan.has_let_go(seat.host)]
        return min([wake_ns, *(seat.due_ns() for seat in self._seats.values())])

    def _release(self, seat: Seat, now_ns: int) -> None:
        """Its engine hears what it asked for first, and stand-ins hear it, too: they call at the same moment."""
        call = seat.next()
        if self._stand_ins and seat.rank not in self._stand_ins:
            mine = brought(call, seat.arena_map.bytes, len(self._hosts))
            op_seq = call.seq
            if self.partial:
                op_seq = call.wanted if self._policy == "coded" else self._lan.next_op_seq()
            for stand_in in self._stand_ins.values():
                if stand_in.seat.rank not in self._cut:
                    stand_in.hear(call, op_seq, mine, now_ns)
                    while stand_in.seat.due_ns() <= now_ns:
                        self._put(stand_in.seat, stand_in.seat.next())
        self._put(seat, call)

    def _put(self, seat: Seat, call: Call) -> None:
        seat.rings.submit(call)
        self._lan.ring(seat.host, seat.session)

    def _start_probed(self, now_ns: int) -> bool:
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
                return self._lan.activate(host.index, coming, now_ns)
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
