# SPDX-License-Identifier: Apache-2.0
"""Who is in a job, from which op on, and by which rules that changes: values and rules without a clock or a socket.

An *epoch* says which hosts are members, which of them sum up a shard (owners), and what they agreed on besides. Each
epoch but the first is the child of another one, and is decided by a majority of that one's members; of two halves the
one with its oldest member is the majority. So an epoch has one child on its *line*. Where no majority can be met, the
members that see each other go on under a *branch*, a line of their own. `decree.py` says how a child is decided.

Options of the job that somebody wants changed are a *change* in his host's word, until an epoch has it. The child has
the changes of all members. Where two contradict each other, it has that of the younger member; the older one's host
still wants its own, and so the next child has that. Each of the two was in force, and one stays, everywhere.

A *member* is one life of a host. Its *slot* is the index of the host; a host that was restarted is another member.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple

from ultima.daemon.base.options import DEFAULTS, NAMES, Options, word
from ultima.daemon.base.ranges import WINDOW

PATIENCE_S = 0.3
"""Seconds for which the next oldest member leaves a change to the one before, and for which one voice is heeded."""
UINT64 = 2**64 - 1
OPTIONS = 4  # agreed values of an epoch; each is the largest that a member wishes for
HEIR = 3  # of them, and not the engine's: 1 for a branch that waits for nobody, as those that it left live no more
WISHES_NONE = (0,) * OPTIONS


class Member(NamedTuple):
    """One life of a host."""

    slot: int
    life: int


class Fork(NamedTuple):
    """Where a line left another one: how many hosts it had then, the number of its first epoch, and who made it."""

    weight: int
    number: int
    maker: Member


class Ballot(NamedTuple):
    """Orders the proposals for one child. No two members ever use the same."""

    round: int
    slot: int


NO_BALLOT = Ballot(0, -1)


@dataclass(frozen=True, slots=True)
class Epoch:
    """See the module. Two epochs with the same id are equal."""

    number: int
    """Above the parent's; the first has 0."""
    parent: int
    """The parent's id; of the first one the number of the job's life."""
    start: int
    """The op from which it holds."""
    members: tuple[Member, ...]
    """The oldest first."""
    owners: frozenset[Member]
    line: tuple[Fork, ...] = ()
    """() is the main line."""
    options: tuple[int, ...] = WISHES_NONE
    settings: Options = DEFAULTS
    """How the job behaves."""
    id: int = field(init=False)

    def __post_init__(self) -> None:
        words = [self.number, self.parent, self.start, len(self.members), len(self.line), len(self.options)]
        for member in self.members:
            words += [*member, member in self.owners]
        for fork in self.line:
            words += [fork.weight, fork.number, *fork.maker]
        words += self.options
        words += (value & UINT64 for value in astuple(self.settings))
        digest = hashlib.blake2b(struct.pack(f"<{len(words)}Q", *words), digest_size=8).digest()
        object.__setattr__(self, "id", int.from_bytes(digest, "little"))

    def bears(self, child: Epoch) -> bool:
        """Whether the other one says that it comes after this one, on its line."""
        return child.parent == self.id and child.line == self.line


class Ask(NamedTuple):
    """What a proposer asks of the members of the epoch that it holds: to promise a ballot, or to accept a child."""

    ballot: Ballot
    child: Epoch | None = None
    again: bool = False
    """The child may have been decided before, and nothing else may be."""


@dataclass(frozen=True, slots=True)
class Word:
    """All that one host tells the others; the newest replaces what it told before, so none of them is ever missed."""

    serial: int
    """Counts the words of one life of a host."""
    epoch: Epoch | None
    """The newest that holds as far as it knows, whether it is a member or not. The three fields of the decree that
    follow are about the child of this one."""
    next_op: int
    """That it opens next."""
    sees: frozenset[Member]
    newest: int = 0
    """The highest number of an epoch that it was in."""
    opened: bool = True
    """It has opened an op, and may own a shard."""
    leaving: bool = False
    wishes: tuple[int, ...] = WISHES_NONE
    promised: Ballot = NO_BALLOT
    """It heeds no ballot below this one."""
    hold: int = 0
    """It opens no op from this one on for the time that the promise takes."""
    accepted: tuple[Ballot, Epoch] | None = None
    ask: Ask | None = None
    change: tuple[tuple[str, int], ...] = ()
    """What is to become of options of the job, by name, and is not so in `epoch`."""
    damped: frozenset[Member] = frozenset()
    """Hosts that it sees and does not want in yet, because they flap."""

    def same_as(self, other: Word) -> bool:
        """Whether the other one tells nothing new. That ops go on is not news."""
        return self == replace(other, serial=self.serial, next_op=self.next_op)


def quorum(base: Epoch, hosts: Iterable[Member]) -> bool:
    """Whether these may decide the child of `base`: more than half of its members, or a half with the oldest."""
    have = {*hosts}.intersection(base.members)
    twice = 2 * len(have)
    return twice > len(base.members) or (twice == len(base.members) and base.members[0] in have)


def forked_off(mine: Epoch, other: Epoch) -> Fork | None:
    """The fork by which `mine` left what it has in common with `other`; None if it did not."""
    for at, fork in enumerate(mine.line):
        if at >= len(other.line) or other.line[at] != fork:
            return fork
    return None


def better(new: Epoch, old: Epoch) -> bool:
    """Whether a host that holds `old` is to prefer `new`: the same line later on, or a better line.

    The trunk is preferred to a branch if it has gone on past the fork; a word from before the fork is only old. Of two
    branches the one is preferred that was heavier when they parted: weights that changed later would turn preferences
    round.
    """
    if new.line == old.line:
        return (new.number, new.id) > (old.number, old.id)
    ours, theirs = forked_off(old, new), forked_off(new, old)
    if theirs is None:
        return ours is not None and new.number >= ours.number
    if ours is None:
        return old.number < theirs.number
    return theirs > ours


def contrary(other: Epoch, told: Epoch) -> bool:
    """Whether a host that is in `other` speaks against `told`: not if its own line is a branch that `told` is not on,
    for it is to leave that one itself."""
    return other.id != told.id and forked_off(other, told) is None


def outvoted(mine: Epoch, me: Member, seen: Mapping[Member, Epoch]) -> Epoch | None:
    """What several members of it hold, and `me` is not in, while nobody who is seen holds `mine`, which is neither
    before nor behind it.

    An epoch has one child on its line, so two such epochs are the work of a host that lied. Several hosts do not
    believe one, and one can believe several. `seen`: by host, what it holds. Back to an epoch that it was in a host
    never goes: its core has seen later ones.
    """
    if mine.id in {epoch.id for epoch in seen.values()}:
        return None
    rivals = [e for m, e in seen.items() if m in e.members and e.line == mine.line and e.id != mine.parent]
    rivals = [e for e in rivals if e.parent != mine.id and me not in e.members]
    several = [e for e in rivals if sum(other.id == e.id for other in rivals) > 1]
    return max(several, key=lambda e: (e.number, e.id), default=None)


def decide(
    base: Epoch, me: Member, sees: Set[Member], words: Mapping[Member, Word], waited: bool, start: int
) -> tuple[Epoch | None, str]:
    """The child of `base` that a member wants, and why in a sentence; None if it wants none.

    words: the newest of each host that is seen, and `me`'s own. waited: it has wanted one for PATIENCE_S. start: the op
    from which the child is to hold.
    """
    live = [m for m in base.members if m == me or m in sees]
    views = {m: sees if m == me else words[m].sees for m in live if m == me or m in words}
    damped = {m: words[m].damped for m in live if m in words}
    lives = {m.slot: m for m in sorted({*sees, me})}

    def gone(m: Member) -> bool:
        if m in live:
            return False
        blind = {x for x, view in views.items() if m not in view}
        reborn = m.slot in lives and lives[m.slot].life != m.life
        return reborn or len(blind) == len(views) or (waited and quorum(base, blind))

    def welcome(m: Member) -> bool:
        return m in sees and quorum(base, (x for x, v in views.items() if m in v and m not in damped.get(x, ())))

    out = [m for m in base.members if gone(m)]
    leave = [m for m in live if m in words and words[m].leaving]
    stay = [m for m in base.members if m not in out and m not in leave]
    taken = {m.slot for m in stay}
    guests = (m for m in sorted(words) if m not in base.members and m.slot not in taken and wants_in(m, words[m]))
    come = [m for m in guests if welcome(m)]
    apart = [m for m in words if m != me and m in sees and _went_apart(base, m, words[m].epoch, waited)]
    members = (*stay, *come)
    if not stay:
        return None, "nobody would be left"
    working = {m for m in stay if m in words and words[m].opened and m in live}
    owners = ((base.owners | working) & {*members}) or frozenset(members)
    wishes = [words[m].wishes for m in members if m in words]
    options = tuple(max(each) for each in zip(*wishes, strict=True)) if wishes else base.options
    known = [words[m].newest for m in (*members, *apart) if m in words]
    number = max([base.number, *(each for each in known if each < base.number + WINDOW)]) + 1
    child = Epoch(number, base.id, start, members, owners, base.line, options, _changed(base, members, words))
    why = [described(base, child, words), *(f"{_name(m)} had gone another way" for m in apart)]
    return (child, ", ".join(filter(None, why))) if any(why) else (None, "")


def _changed(base: Epoch, members: Iterable[Member], words: Mapping[Member, Word]) -> Options:
    """The options of `base` with what these want changed, save who speaks of another epoch: this may have it."""
    settings = base.settings
    for m in members:
        told = words.get(m)
        if told is not None and told.epoch is not None and told.epoch.id == base.id and told.change:
            settings = replace(settings, **dict(told.change))
    return settings


def unhurried(base: Epoch, child: Epoch) -> bool:
    """Whether nobody waits for what changes: neither a host nor a person, but owners and what is measured."""
    same = child.options[HEIR] == base.options[HEIR] and child.settings == base.settings
    return same and {*child.members} == {*base.members}


def left_behind(before: frozenset[Member] | None, base: Epoch | None, epoch: Epoch) -> frozenset[Member] | None:
    """The hosts that were in lines which `epoch`'s branch left, and are not in it: none on the main line; None if a
    host cannot know them. before: the same of `base`, in which it was until then; None if it was in none."""
    if not epoch.line:
        return frozenset()
    if base is None or before is None or base.line not in (epoch.line, epoch.line[:-1]):
        return None
    forked = frozenset() if base.line == epoch.line else frozenset(base.members)
    return (before | forked) - frozenset(epoch.members)


def described(base: Epoch, child: Epoch, words: Mapping[Member, Word]) -> str:
    """What changes from one epoch to another, in a sentence; empty if nothing does."""
    out = [m for m in base.members if m not in child.members]
    left = {m for m in out if m in words and words[m].leaving}
    options = enumerate(zip(child.options, base.options, strict=True))
    said = [
        *(f"{_name(m)} {'leaves' if m in left else 'is gone'}" for m in out),
        *(f"{_name(m)} comes in" for m in child.members if m not in base.members),
        *(f"{_name(m)} owns a shard" for m in child.members if m in child.owners - base.owners and m in base.members),
        *(f"option {number} becomes {new}" for number, (new, old) in options if new != old and number != HEIR),
        *["the hosts that were left live no more: these go on"] * (child.options[HEIR] > base.options[HEIR]),
        *(f"{name} becomes {word(name, new)}" for name, new in differences(base.settings, child.settings).items()),
    ]
    return ", ".join(said)


def differences(before: Options, after: Options) -> dict[str, int]:
    """The options in which `after` differs, by name."""
    return {name: getattr(after, name) for name in NAMES if getattr(after, name) != getattr(before, name)}


def accepts(
    base: Epoch,
    child: Epoch,
    me: Member,
    sees: Set[Member],
    words: Mapping[Member, Word],
    next_op: int,
    ahead: int = WINDOW,
) -> str:
    """ "" if a member accepts `child` after `base`, else why not. A host leaves only in the eyes of those who do not
    see it, or when it says so itself. It begins at most so far `ahead` of this host's next op."""
    slots = [m.slot for m in child.members]
    if not base.bears(child):
        return f"parent = {child.parent:016x}: allowed: {base.id:016x}, on its line"
    if not base.number < child.number <= base.number + WINDOW:
        return f"number = {child.number}: allowed: {base.number + 1} to {base.number + WINDOW}"
    if len({*slots}) != len(slots) or not slots:
        return "members: allowed: one or more, each slot once"
    if not child.owners or not child.owners <= {*child.members}:
        return "owners: allowed: one or more of the members"
    if not base.start <= child.start <= max(next_op, base.start) + ahead:
        return f"start = {child.start}: allowed: {base.start} to {max(next_op, base.start) + ahead}"
    for m in base.members:
        leaving = m in words and words[m].leaving
        if m not in child.members and (m in sees or m == me) and not leaving:
            return f"{_name(m)} is seen here"
    return ""


def may_have_been_decided(base: Epoch, acceptors: Collection[Member], unheard: Collection[Member]) -> bool:
    """Whether a child that these accepted can have been decided, as far as one knows who has not heard the others."""
    return bool(acceptors) and quorum(base, {*acceptors, *unheard})


def wants_in(member: Member, word: Word) -> bool:
    """Whether a host asks to become a member. One that is a member of a branch is to leave that first."""
    return not word.leaving and (word.epoch is None or member not in word.epoch.members)


def _went_apart(base: Epoch, member: Member, other: Epoch | None, waited: bool) -> bool:
    """Whether a host holds an epoch that does not come from `base` and cannot leave it, before `base` has a child with
    a higher number. Who is only ahead of this host will have been followed by the time that this one has waited."""
    if other is None:
        return False
    fork, ours = forked_off(other, base), forked_off(base, other)
    if fork is None:
        return ours is None and other.number > base.number and waited
    too_high = member in base.members and base.number <= other.number
    return (base.number < fork.number or too_high) if ours is None else (ours > fork and too_high)


def _name(member: Member) -> str:
    return f"host {member.slot}"
