# SPDX-License-Identifier: Apache-2.0
"""What a host that lies tells the others of the worlds of `epoch_world.py`."""

from __future__ import annotations

import random
from dataclasses import replace

from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import Ask, Ballot, Member, Word


def lie(
    rng: random.Random, word: Word, to: Member, me: Member, seat: Seat, everybody: set[Member]
) -> tuple[Word, set[int]]:
    """What it tells `to` in place of its word, and of which epochs it says that they are decided, or may be.

    It sees the dead, promises all, accepts all, and never accepted anything before. It tells one that another one is
    out: as its proposal, or as an epoch that holds, now and then one that is far ahead.
    """
    epoch, asks = word.epoch, [w.ask for w in seat.words.values() if w.ask is not None]
    word = replace(word, sees=frozenset(everybody))
    ask = max(asks, key=lambda each: each.ballot, default=None)
    if ask is not None:
        word = replace(word, promised=ask.ballot, accepted=(ask.ballot, ask.child) if ask.child else None)
    if epoch is None or me not in epoch.members or to not in epoch.members:
        return word, set()
    victim, what = rng.choice(epoch.members), rng.choice(["ask", "hold", "far", "nothing"])
    if victim in (me, to) or what == "nothing":
        return word, set()
    rest = tuple(m for m in epoch.members if m != victim)
    ahead = 1000 if what == "far" else 1
    false = replace(epoch, number=epoch.number + ahead, parent=epoch.id, members=rest, owners=frozenset(rest))
    if what == "ask":
        again = rng.random() < 0.5
        ballot = Ballot(word.promised.round + 1, me.slot)
        return replace(word, ask=Ask(ballot, false, again)), {false.id} if again else set()
    return replace(word, epoch=false, hold=2**40), {false.id}
