# SPDX-License-Identifier: Apache-2.0
"""Worlds of `epoch_world.py` whose hosts are far apart and whose words are lost, `FarWay` says how.

In a third of them a job begins and nothing happens: its first epoch must hold to the end on all hosts, for however long
their first words are under way. In a third one host crashes and comes back, once or twice, and a majority stays: nobody
goes on by itself. The rest has all faults. Words are lost until the last fault is a few seconds ago.
`python -m tests.daemon.jobs.epoch_far --seed 17` tells one world.
"""

from __future__ import annotations

import argparse
import random

from tests.daemon.jobs.epoch_way import FarthestWay, FarWay
from tests.daemon.jobs.epoch_world import Host, World
from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import Epoch, Word

CALM, RETURNS, FAULTS = "calm", "returns", "faults"
CALM_S = 6.0  # more than any patience
STANDS_S = 5.0  # beside the quiet time, between two crashes: who comes back soon is no host that flaps


class FarWorld(World):
    """See the module."""

    def __init__(self, seed: int, trace: bool = False, seat: type[Seat] = Seat) -> None:
        self.kind = kind_of(seed)
        way = FarthestWay if self.kind == CALM else FarWay
        super().__init__(seed, trace=trace, seat=seat, way=way)
        if self.kind == RETURNS and len(self.hosts) < 3:
            self.kind = CALM  # of two hosts the one that stays may be no majority
        if self.kind == FAULTS:
            return
        self.queue = [each for each in self.queue if each[2] not in ("fault", "heal")]
        for k in range(self.rng.randint(1, 2) if self.kind == RETURNS else 0):
            self.last_fault = 0.3 + k * (self.way.quiet + STANDS_S)
            self.later(self.last_fault - self.now, "fault", None)
        if self.kind == RETURNS:
            self.later(self.last_fault + STANDS_S - self.now, "heal", None)
        self.end = self.last_fault + (CALM_S if self.kind == CALM else self.way.quiet + STANDS_S)

    def fault(self) -> None:
        """In a world with one kind of them a host crashes, which comes back."""
        if self.kind == FAULTS:
            super().fault()
            return
        me = self.rng.choice([*self.hosts])
        self.note(self.hosts[me], "crashes")
        del self.hosts[me]
        self.died[me] = self.now
        for host in self.hosts.values():
            self.later(self.way.hangs_up(host.me, me), "stream", (host.me, me))
        self.later(self.rng.choice([0.01, 0.2, 0.8]), "back", me)

    def tell(self, host: Host, word: Word) -> None:
        """Nobody dies while it asks but in worlds with all faults."""
        if self.kind == FAULTS:
            super().tell(host, word)
            return
        for m in [m for m in self.hosts if m != host.me]:
            self.send(host, m)

    def holds(self, host: Host, before: Epoch | None, epoch: Epoch) -> None:
        """No epoch comes without a cause."""
        super().holds(host, before, epoch)
        if self.kind == CALM:
            self.bad(host, f"another epoch than the first, though nothing happened: {host.seat.why}")
        if self.kind == RETURNS and epoch.line:
            self.bad(host, f"goes on without the others, though a majority stays: {host.seat.why}")


def kind_of(seed: int) -> str:
    """Of a world, as it is drawn."""
    return random.Random(f"{seed} far").choice((CALM, RETURNS, FAULTS))


def main() -> None:
    """Prints what worlds found, or what happens in one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.count) if asked.seed is None else [asked.seed]
    found: list[str] = []
    for seed in seeds:
        world = FarWorld(seed, trace=asked.seed is not None).run()
        found += [f"{world.kind}: {each}" for each in world.found[:3]]
    print(f"{len(seeds)} worlds, {len(found)} violations")
    print("\n".join(found[:30]))


if __name__ == "__main__":
    main()
