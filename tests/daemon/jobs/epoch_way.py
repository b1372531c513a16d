# SPDX-License-Identifier: Apache-2.0
"""How long words, and the ends and beginnings of streams, take between the hosts of `epoch_world.py`."""

from __future__ import annotations

import random

from ultima.daemon.hosts.distance import HANDSHAKES, LOST_TWICE, RoundTrip, exchange
from ultima.daemon.jobs.epoch import Member

GIVEN_UP_S = (0.3, 1.0)  # after which a stream ends whose other side does not answer
STEADY_S = 0.25  # for which a host must have been seen, before it may not be put out
QUIET_S = 5.0  # without a fault, within which all must agree again, beside the time that hosts must stand which flap
PLACES = range(9)  # slots


class Way:
    """Between hosts of one place: words overtake each other, and one that is lost is told anew. Times are seconds."""

    steady, quiet = STEADY_S, QUIET_S
    slots = len(PLACES)
    """That the hosts of the world have, from 0 on."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.loss, self.udp_loss = rng.choice([0, 0, 0.02, 0.1]), rng.choice([0, 0.01, 0.1])
        self.delay = rng.choice([(0.0003, 0.002), (0.0003, 0.002), (0.001, 0.008), (0.005, 0.025)])

    def round_trip(self, me: Member) -> float:
        """From a host to the farthest one and back."""
        return 2 * self.delay[1]

    def patience(self, me: Member) -> float:
        """In which hardly any word of another host fails to come."""
        return 0.0

    def words(self, a: Member, b: Member, now: float) -> list[float]:
        """After which a word is there, once for each of its copies; [] if it is lost."""
        if self.rng.random() < self.loss:
            return []
        copies = 2 if self.rng.random() < 0.02 else 1
        return [(10 if self.rng.random() < 0.01 else 1) * self.rng.uniform(*self.delay) for _ in range(copies)]

    def again(self) -> float:
        """After which the newest word is told in the place of one that was lost."""
        return self.rng.uniform(0.05, 0.2)

    def connects(self, a: Member, b: Member) -> float:
        """Until a stream stands, where there is a way again."""
        return self.rng.uniform(0.005, 0.2)

    def gives_up(self, a: Member, b: Member) -> float:
        """Until a stream ends whose other side does not answer."""
        return self.rng.uniform(*GIVEN_UP_S)

    def hangs_up(self, a: Member, b: Member) -> float:
        """Until a stream ends whose other side has ended."""
        return self.rng.uniform(*self.delay)


class FarWay(Way):
    """Between hosts in up to three places, as far apart as a rack and two continents, on streams of TCP.

    Words come in order. A packet that is lost is sent again after one time-out, and after two more if it is lost again;
    no third try is lost, because that is what patience covers (`daemon/hosts/distance.py`).
    """

    losses: tuple[float, ...] = (0, 0.02, 0.1)
    far = -3.0, -0.82
    """Logarithms of the shortest and the longest way between two places, in seconds."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.loss = rng.choice(self.losses)
        near, far = 10 ** rng.uniform(-4.7, -3), 10 ** rng.uniform(*self.far)
        places = [rng.randrange(3) for _ in PLACES]
        self._one_way = {(a, b): near if places[a] == places[b] else far for a in PLACES for b in PLACES}
        self._last: dict[tuple[Member, Member], float] = {}
        """When the newest word of a stream arrives."""
        longest = max(exchange(self._trip(0, b)) for b in PLACES if b)
        self.steady, self.quiet = STEADY_S + longest, QUIET_S + 8 * longest

    def round_trip(self, me: Member) -> float:
        return max(self._trip(me.slot, b).most for b in range(self.slots) if b != me.slot)

    def patience(self, me: Member) -> float:
        return max(exchange(self._trip(me.slot, b)) for b in range(self.slots) if b != me.slot)

    def words(self, a: Member, b: Member, now: float) -> list[float]:
        at = max(now + self._passes(a, b), self._last.get((a, b), now))
        self._last[a, b] = at
        return [at - now]

    def connects(self, a: Member, b: Member) -> float:
        return sum(2 * self._passes(a, b) for _ in range(HANDSHAKES))

    def gives_up(self, a: Member, b: Member) -> float:
        return exchange(self._trip(a.slot, b.slot)) * self.rng.uniform(0.5, 1.0)

    def hangs_up(self, a: Member, b: Member) -> float:
        return self._passes(b, a)

    def _trip(self, a: int, b: int) -> RoundTrip:
        seconds = 2 * self._one_way[a, b]
        return RoundTrip(1.05 * seconds, 0.05 * seconds)

    def _passes(self, a: Member, b: Member) -> float:
        """Seconds until a packet that is sent now has arrived."""
        lost = 0
        while lost < 2 and self.rng.random() < self.loss:
            lost += 1
        waits = (0, 1, LOST_TWICE)[lost] * self._trip(a.slot, b.slot).timeout
        return waits + self._one_way[a.slot, b.slot] * self.rng.uniform(1.0, 1.1)


class FarthestWay(FarWay):
    """Between continents, where most words are late."""

    losses = (0.1, 0.7)
    far = -1.0, -0.82
