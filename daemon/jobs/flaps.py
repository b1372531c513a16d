# SPDX-License-Identifier: Apache-2.0
"""Hosts that go and come back again and again, and for how long such a host must stand before it is taken in.

To put a host out of a job and to take it in again are two epochs, and each may hold ops back. A host that went once is
taken in as soon as it is back. One *flaps* if it goes again so soon that its epochs could hold ops back for more than
one part in HELD_PART of the time. It is taken in when it has stood for the longest time between two of its departures
since it began to flap: who goes on as before stays out, and who has come to rest waits for one of his own periods.

Each host keeps its own account of the others, and a majority of accounts decides (`decide` in epoch.py): one host that
knows nothing of the past lets nobody in, and one that lies keeps nobody out. Times are seconds of any clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

from ultima.daemon.jobs.epoch import Member

HELD_PART = 50  # ops are held back for at most one part in so many of the time because of one host


@dataclass(slots=True)
class Account:
    """What is known of the host of one slot."""

    life: Member | None = None
    """That is seen."""
    since: float = 0.0
    """When that was first seen, without a break since."""
    inside: bool = False
    """A life of it is in the epoch that holds."""
    went: float = -math.inf
    """When it went last."""
    departures: int = 0
    """Since it began to flap."""
    must_stand: float = 0.0
    """For so long, before it is taken in; 0 unless it flaps."""


class Flaps:
    """See the module."""

    def __init__(self) -> None:
        self.accounts: dict[int, Account] = {}

    def look(
        self, now: float, held_s: float, seen: Set[Member], inside: Iterable[Member], leaving: Set[int] = frozenset()
    ) -> None:
        """Takes note of who is seen, and who is in the epoch that holds. held_s: for how long one epoch may hold ops
        back, in seconds. leaving: the slots of hosts that said that they leave: that is no flap."""
        lives, slots = {m.slot: m for m in sorted(seen)}, {m.slot for m in inside}
        for slot in self.accounts.keys() | lives.keys() | slots:
            a = self.accounts.setdefault(slot, Account())
            life, is_in = lives.get(slot), slot in slots
            went = not is_in and (a.inside or (a.life is not None and life != a.life))
            if life != a.life:
                a.life, a.since = life, now
            a.inside = is_in
            if went and slot in leaving:
                self.forget(slot)
            elif went:
                gap, a.went = now - a.went, now
                soon = gap < 2 * held_s * HELD_PART
                a.must_stand = max(a.must_stand, gap) if soon else 0.0
                a.departures = a.departures + 1 if soon else 1

    def forget(self, slot: int) -> None:
        """What is known of the past of a slot is about another host, or does not matter."""
        a = self.accounts.get(slot)
        if a is not None:
            self.accounts[slot] = Account(a.life, a.since, a.inside)

    def until(self) -> dict[Member, float]:
        """When each host may be taken in that is seen and is not in."""
        accounts = self.accounts.values()
        return {a.life: a.since + a.must_stand for a in accounts if a.life is not None and not a.inside}

    def told(self, slot: int) -> str:
        """In words, why a host is not taken in."""
        a = self.accounts[slot]
        return (
            f"it went {a.departures} times, at most {a.must_stand:.1f} s apart, and is taken in when it has stood "
            "for as long"
        )
