# SPDX-License-Identifier: Apache-2.0
"""Worlds of `epoch_world.py` in which one host goes and comes back again and again, and nothing else happens.

Its daemon crashes and is started again, or its paths are cut and healed. All other hosts stay, so what is counted is
the doing of this one: how often it is taken in.
"""

from __future__ import annotations

from tests.daemon.jobs.epoch_way import QUIET_S
from tests.daemon.jobs.epoch_world import Host, World
from ultima.daemon.jobs.epoch import Epoch, Member

FLAPS = 8


class FlapWorld(World):
    """See the module."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace=trace)
        rng = self.rng
        self.crashes = rng.random() < 0.5
        self.victim = rng.choice([*self.hosts]).slot
        self.stands_s, self.away_s = rng.uniform(0.5, 1.8), rng.uniform(0.3, 1.5)
        self.taken_in: list[float] = []
        """When an epoch was decided in which it comes in."""
        self.gone_at: list[float] = []
        self.queue = [each for each in self.queue if each[2] not in ("fault", "heal")]
        at = 0.5
        for _ in range(FLAPS):
            self.later(at, "fault", None)
            self.last_fault = at
            at += (self.stands_s + self.away_s) * rng.uniform(0.99, 1.01)
        self.later(self.last_fault + self.away_s, "heal", None)
        self.end = self.last_fault + self.away_s + QUIET_S

    def fault(self) -> None:
        """The host goes once more."""
        self.gone_at.append(self.now)
        me = next(m for m in self.hosts if m.slot == self.victim)
        if self.crashes:
            self.kill(me, vanish=False)
            return
        others = [m.slot for m in self.hosts if m != me]
        self.cut = {(a, b) for slot in others for a, b in ((slot, self.victim), (self.victim, slot))}
        self.note(self.hosts[me], "is cut off")
        self.links_changed()
        self.later(self.away_s, "back", me)

    def kill(self, m: Member, vanish: bool) -> None:
        """A crash of the one host, which comes back after a while."""
        if m.slot != self.victim:  # no proposer dies here
            return
        self.note(self.hosts[m], "crashes")
        del self.hosts[m]
        self.died[m] = self.now
        for host in self.hosts.values():
            self.later(self.way.hangs_up(host.me, m), "stream", (host.me, m))
        self.later(self.away_s, "back", m)

    def back(self, gone: Member) -> None:
        """The host is back, or its paths are."""
        if self.crashes:
            super().back(gone)
        else:
            self.cut = set()
            self.note(self.hosts[gone], "is reached again")
            self.links_changed()

    def holds(self, host: Host, before: Epoch | None, epoch: Epoch) -> None:
        """An epoch holds for a host: does the one come in by it?"""
        fresh, base = epoch.id not in self.decided, self.epochs.get(epoch.parent)
        super().holds(host, before, epoch)
        came = {m.slot for m in epoch.members} - {m.slot for m in base.members} if base is not None else set()
        if fresh and self.victim in came:
            self.taken_in.append(self.now)

    def at_the_end(self) -> None:
        """It is in, and was taken in once while it flapped, and once when it had ended."""
        super().at_the_end()
        # Where paths are cut it is not noticed at once, nor always after the same time: periods seem to differ.
        most = 2 if self.crashes else 4
        if len(self.taken_in) > most:
            times = ", ".join(f"{at:.2f}" for at in self.taken_in)
            self.bad(None, f"host {self.victim}, which went {FLAPS} times, was taken in {len(self.taken_in)}: {times}")
