# SPDX-License-Identifier: Apache-2.0
"""One host's seat in the agreement on epochs: what it promised, accepted and proposes, and which epoch holds for it.

The child of an epoch is one decree of Paxos among the members of that epoch. There is one kind of message, the `Word`,
which holds all that a host has to say. A newer one replaces it, so one that is lost, doubled or overtaken does no
harm.

* A proposer *asks* for a ballot. Members *promise* it: they heed no lower one, say which child they accepted before,
  and hold back ops from a little ahead on. Then it asks them to accept a child, which holds from the largest such op.
* An epoch holds here when a majority of its parent's members was heard to have *accepted* it under one ballot, or to
  hold it. Each host counts that itself; nobody need be believed.
* A child that may have been decided, as far as those can know who promised, is proposed again, and only that one.
* Hosts that went another way are followed if their line is the better one and enough of those that are seen tell so.

Times are seconds of any clock. Nothing here waits or sends: `turn` is called on each change, and when `wake` is past.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ultima.daemon.base.options import DEFAULTS, Options
from ultima.daemon.base.ranges import WINDOW
from ultima.daemon.jobs.attempts import Attempts, answer_s
from ultima.daemon.jobs.epoch import (
    HEIR,
    NO_BALLOT,
    PATIENCE_S,
    WISHES_NONE,
    Ask,
    Ballot,
    Epoch,
    Fork,
    Member,
    Word,
    accepts,
    better,
    contrary,
    decide,
    described,
    left_behind,
    may_have_been_decided,
    outvoted,
    quorum,
    unhurried,
    wants_in,
)
from ultima.daemon.jobs.flaps import Flaps
from ultima.daemon.jobs.here import Here
from ultima.daemon.jobs.holding import Holding, least

BRANCH_S = 1.0  # at least, without a majority, before those who see each other go on by themselves
BACK_S = 2.0  # at least, in which nobody of the better line is seen, before a host that is out of it goes back
REST_S = 2.0  # after a hold that ended in vain, before ops are held again; so pauses cannot add up
SETTLE_S = 2.0  # after an epoch, before another one changes what follows from measurements, and that alone
REACH_OPS = 64  # what a promise may hold ahead of the proposer's own next op: hosts are few ops apart


@dataclass(slots=True)
class _Decree:
    """The child of one epoch, as far as this host has to do with it."""

    base: Epoch
    promised: Ballot = NO_BALLOT
    accepted: tuple[Ballot, Epoch] | None = None


class Seat:
    """See the module."""

    def __init__(self, me: Member, first: Epoch | None, number: int, now: float, settings: Options = DEFAULTS) -> None:
        """first: the epoch that the job began with; None for a host that comes to a job which is under way. number: of
        the job's life, and settings: its options at first, for the first epoch of a job whose hosts have all
        forgotten."""
        self.me, self._number, self._settings = me, number, settings
        self.words: dict[Member, Word] = {}
        """The newest of each host, and this one's own."""
        self.holding = Holding()
        self.wake = math.inf
        """When `turn` is to be called, if nothing happens before."""
        self.why = ""
        """Why the epoch that holds came about, as far as this host knows."""
        self.flaps, self.damped = Flaps(), frozenset[Member]()
        self.left = left_behind(None, None, first) if first is not None else None
        """Hosts that the branch left in which this one is; None if it cannot know."""
        self.trouble = ""
        """Why this host does not accept what is proposed."""
        self._decree = _Decree(first) if first is not None else None
        self._former: _Decree | None = None
        self._votes: dict[tuple[Ballot, int], tuple[Epoch, set[Member]]] = {}
        self._ask: Ask | None = None
        self._attempts = Attempts(me.slot)
        self._lonely: float | None = None
        self._outvoted: float | None = None
        self._met_at = now  # when somebody of the line that this host is out of was seen
        self._changed = self._settled = now
        self._reasons: dict[int, str] = {}
        self._serial = 0
        self._newest = first.number if first is not None else 0
        self._here, self._now = Here(frozenset(), 0), now

    @property
    def epoch(self) -> Epoch | None:
        """The newest that holds as far as this host knows."""
        return self._decree.base if self._decree is not None else None

    @property
    def hold(self) -> tuple[int, float] | None:
        """The op from which ops are held back, and until when."""
        return self.holding.hold

    @property
    def member(self) -> bool:
        """Whether this host is in it."""
        return self._decree is not None and self.me in self._decree.base.members

    def hear(self, who: Member, word: Word) -> bool:
        """Takes another host's word; whether it is news."""
        known = self.words.get(who)
        if who == self.me or (known is not None and known.serial >= word.serial):
            return False
        for other in [m for m in self.words if m.slot == who.slot and m != who and m != self.me]:
            del self.words[other]
        self.words[who] = word
        return True

    def turn(self, now: float, here: Here) -> Word:
        """Does all that is to be done; returns what this host has to tell."""
        self._now, self._here, self.wake = now, here, math.inf
        self.holding.end(now, REST_S)
        self._look_who_flaps()
        word = self._speak()
        while True:
            self._answer()
            self._count()
            self._follow()
            self._go_alone()
            self._propose()
            before, word = word, self._speak()
            if word is before:
                break
        if self.hold is not None:
            self._at(self.hold[1])
        return word

    def held_from(self, op: int) -> Word:
        """Ops could be held back only from `op` on, as the ones before had been opened when the hold began. Returns the
        word that says so in place of the one that `turn` returned."""
        assert self.hold is not None
        self.holding.hold = op, self.hold[1]
        self.words[self.me] = word = replace(self.words[self.me], hold=op)
        return word

    # ---- words ----

    def seen(self) -> dict[Member, Word]:
        """The words of the other hosts that are alive."""
        return {m: word for m, word in self.words.items() if m in self._here.sees}

    def _speak(self) -> Word:
        decree, here = self._decree, self._here
        hold = self.hold[0] if self.hold is not None else here.next_op + here.margin
        promised = decree.promised if decree is not None else NO_BALLOT
        old = self.words.get(self.me)
        word = Word(
            serial=self._serial,
            epoch=self.epoch,
            next_op=here.next_op,
            sees=here.sees,
            newest=self._newest,
            opened=here.opened,
            leaving=here.leaving,
            wishes=here.wishes,
            change=self._unmet(here.change),
            promised=promised,
            hold=hold if promised != NO_BALLOT else 0,
            accepted=decree.accepted if decree is not None else None,
            ask=self._ask,
            damped=self.damped,
        )
        if old is not None and word.same_as(replace(old, hold=word.hold)):
            return old
        self._serial += 1
        self.words[self.me] = word = replace(word, serial=self._serial)
        return word

    def _look_who_flaps(self) -> None:
        inside, here = self.epoch.members if self.epoch is not None else (), self._here
        leaving = {m.slot for m, word in self.words.items() if word.leaving}
        self.flaps.look(self._now, least(here.round_trip), here.sees, inside, leaving)
        self.damped = frozenset(m for m, when in self.flaps.until().items() if not (here.short or self._at(when)))

    def _unmet(self, change: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        """What of a change is not so in the epoch that holds."""
        have = self.epoch.settings if self.epoch is not None else self._settings
        return tuple((name, value) for name, value in change if getattr(have, name) != value)

    def _at(self, when: float) -> bool:
        """Whether that time has come; if not, `turn` is called then."""
        if self._now >= when:
            return True
        self.wake = min(self.wake, when)
        return False

    # ---- a member ----

    def _answer(self) -> None:
        """Promises and accepts."""
        decree, self.trouble = self._decree, ""
        if decree is None or not self.member:
            return
        asks = [
            (m, w.ask) for m, w in self._peers(decree.base).items() if w.ask is not None and w.ask.ballot.slot == m.slot
        ]
        for m, ask in sorted(asks, key=lambda each: each[1].ballot, reverse=True):
            if ask.ballot < decree.promised:
                return
            if ask.child is not None and not (decree.accepted and decree.accepted[0] == ask.ballot):
                here = self._here
                ahead = WINDOW * here.stride
                why = accepts(decree.base, ask.child, self.me, here.sees, self.words, here.next_op, ahead)
                if why and ask.again and self._may_hold(ask.child):
                    why = ""
                if why:
                    self.trouble = f"host {m.slot} proposes what this one does not accept: {why}"
                    continue
                decree.accepted = ask.ballot, ask.child
            if ask.ballot > decree.promised:
                decree.promised = ask.ballot
                # Ops before the epoch that holds go on: who is behind its start could come to it no more.
                op = max(self._here.next_op + self._here.margin, decree.base.start)
                self.holding.begin(self._now, op, self._here.round_trip)

    def _peers(self, base: Epoch) -> dict[Member, Word]:
        """The members that are seen, this one included, and hold the same epoch: its child is theirs to decide."""
        return {
            m: w
            for m, w in self.words.items()
            if m in base.members
            and (m == self.me or m in self._here.sees)
            and w.epoch is not None
            and w.epoch.id == base.id
        }

    def _may_hold(self, child: Epoch) -> bool:
        """Whether the child may have been decided, by what this host heard itself."""
        assert self._decree is not None
        base = self._decree.base
        peers = self._peers(base)  # who went another way may have accepted it before, and says no more of it
        unheard = [m for m in base.members if m != self.me and m not in peers]
        return base.bears(child) and may_have_been_decided(base, self._acceptors(child) | self._holders(child), unheard)

    # ---- what holds ----

    def _holders(self, child: Epoch) -> set[Member]:
        return {m for m, w in self.seen().items() if w.epoch is not None and w.epoch.id == child.id}

    def _count(self) -> None:
        """Counts who accepted what, and takes the child that is decided."""
        if self._decree is None:
            return
        base = self._decree.base
        for m, word in self._peers(base).items():
            if word.accepted is not None and base.bears(word.accepted[1]):
                ballot, child = word.accepted
                self._votes.setdefault((ballot, child.id), (child, set()))[1].add(m)
        for child in self._held_children(base):
            # It is decided, says who holds it; under which ballots it was accepted does not matter then.
            if quorum(base, self._holders(child) | self._acceptors(child)):
                self._take(child)
                return
            if self.member and self._may_hold(child):
                self._decree.accepted = self._decree.promised, child
        for child, voters in self._votes.values():
            if quorum(base, voters):
                self._take(child)
                return

    def _held_children(self, base: Epoch) -> list[Epoch]:
        epochs = {w.epoch.id: w.epoch for w in self.seen().values() if w.epoch is not None}
        return [epoch for epoch in epochs.values() if base.bears(epoch)]

    def _acceptors(self, child: Epoch) -> set[Member]:
        return {m for (_, number), (_, voters) in self._votes.items() if number == child.id for m in voters}

    def _follow(self) -> None:
        """Takes what others hold, if it is better and enough of them tell so."""
        seen = {m: w.epoch for m, w in self.seen().items() if w.epoch is not None}
        told = {epoch.id: epoch for epoch in seen.values()}
        best: tuple[int, Epoch] | None = None
        for epoch in told.values():
            tellers = [m for m, other in seen.items() if other.id == epoch.id]
            if not any(m in epoch.members for m in tellers):
                continue  # those who are out of it only say what was
            tell = len(tellers)
            against = sum(m in other.members and contrary(other, epoch) for m, other in seen.items())
            if self._is_our_branch(epoch) or (self._goes_beyond(epoch) and (tell > against or tell >= max(2, against))):
                best = max(filter(None, (best, (tell, epoch))), key=lambda each: each[0])
        rival = outvoted(self._decree.base, self.me, seen) if self._decree is not None else None
        self._outvoted = None if rival is None else self._now if self._outvoted is None else self._outvoted
        back = max(BACK_S, self._here.patience)
        if best is not None:
            self._take(best[1])
        elif rival is not None and self._outvoted is not None and self._at(self._outvoted + back):
            self._take(rival)
        elif self._decree is not None and not self.member:
            self._go_back(seen)

    def _goes_beyond(self, epoch: Epoch) -> bool:
        """Whether an epoch is to be preferred to the one that holds here, and near enough to be believed."""
        if self.me in epoch.members and epoch.number <= self._newest:
            return False  # its number is to be above all that were in use here
        if self.epoch is None:
            return True
        ahead = WINDOW * self._here.stride
        near = epoch.number <= self.epoch.number + WINDOW and epoch.start <= self._here.next_op + ahead
        return near and epoch.id != self.epoch.id and better(epoch, self.epoch)

    def _go_back(self, seen: dict[Member, Epoch]) -> None:
        """To what this host gave up for a better line, if anything, when nobody of that line is left."""
        assert self._decree is not None
        line = self._decree.base.line
        if self._here.leaving or any(m in epoch.members and epoch.line == line for m, epoch in seen.items()):
            self._met_at = self._now
        if self._at(self._met_at + max(BACK_S, self._here.patience)):
            self._decree, self._former = self._former, None
            self.left = left_behind(None, None, self._decree.base) if self._decree is not None else None
            self._begun("nobody of the better line is left")

    def _take(self, epoch: Epoch) -> None:
        """An epoch holds."""
        known = described(self.epoch, epoch, self.words) if self.epoch is not None else ""
        why, was = self._reasons.get(epoch.id, known), self._base()
        if self.me not in epoch.members:
            if self.member:
                self._former = self._decree
            self._met_at = self._now
        else:
            self._former, self._newest = None, epoch.number
            self.left = left_behind(self.left, was, epoch)
        tuned = self.epoch is not None and self.epoch.settings != epoch.settings
        self._decree = _Decree(epoch)
        self._begun(why, settles=not tuned)

    def _begun(self, why: str, settles: bool = True) -> None:
        self.why = why
        self._votes.clear()
        self._reasons.clear()
        self._ask = self._lonely = None
        self._attempts.over()
        self.holding.decided(self._now)
        self._changed = self._now
        if settles:
            self._settled = self._now
        self._look_who_flaps()

    # ---- without a majority ----

    def _base(self) -> Epoch | None:
        """The epoch that this host is in."""
        return self._decree.base if self._decree is not None and self.member else None

    def _alone(self) -> bool:
        """Whether this host sees no majority that holds its epoch; or is in none, and sees nobody who is in one."""
        base = self._base()
        if base is not None:
            return not quorum(base, {*self._peers(base), self.me})
        seen = self.seen().items()
        return self._former is None and all(w.epoch is None or m not in w.epoch.members for m, w in seen)

    def _company(self) -> list[Member]:
        """Those who would go on together, the oldest first; where nobody is a member, all who want to be."""
        base = self._base()
        if base is None:
            return sorted({self.me, *(m for m, w in self.seen().items() if wants_in(m, w))})
        return [m for m in base.members if m == self.me or m in self._peers(base)]

    def _is_our_branch(self, epoch: Epoch) -> bool:
        """Whether a host that has no majority is to be in this branch: the oldest of its company made it."""
        base = self._base()
        parent, line = (base.id, base.line) if base is not None else (self._number, ())
        made = self.me in epoch.members and epoch.parent == parent and epoch.line[:-1] == line and epoch.line != line
        return made and self._lonely is not None and epoch.line[-1].maker == self._company()[0]

    def _go_alone(self) -> None:
        """Makes a branch of the hosts that see each other."""
        if self._here.leaving or not self._alone():
            self._lonely = None
            return
        self._lonely = self._now if self._lonely is None else self._lonely
        base, company = self._base(), self._company()
        patience = max(self._here.patience, BRANCH_S if base is not None else BACK_S)
        if company[0] != self.me or not self._at(self._lonely + patience):
            return
        fork, line = (base.number + 1, base.line) if base is not None else (0, ())  # any line that went on is better
        owners = base.owners.intersection(company) if base is not None else frozenset()
        branch = Epoch(
            max(self.words[m].newest for m in company) + 1,
            base.id if base is not None else self._number,
            max([self._here.next_op, *(w.next_op for m, w in self.words.items() if m in company)]) + 1,
            tuple(company),
            owners or frozenset(company),
            (*line, Fork(len(company), fork, self.me)),
            (*base.options[:HEIR], 0) if base is not None else WISHES_NONE,
            base.settings if base is not None else self._settings,
        )
        self._reasons[branch.id] = "no majority of its hosts was seen for a while: these go on by themselves"
        self._take(branch)

    # ---- a proposer ----

    def _propose(self) -> None:
        """Asks for the child that this host wants, step by step."""
        decree = self._decree
        if decree is None or not self.member or self._here.leaving or self._lonely is not None:
            self._ask = None
            self._attempts.over()
            return
        base, peers = decree.base, self._peers(decree.base)
        if self._ask is not None and (
            decree.promised > self._ask.ballot or any(w.promised > self._ask.ballot for w in peers.values())
        ):
            self._give_up()
        if self._ask is not None:
            self._go_on(self._ask, base, peers)
            return
        attempts = self._attempts
        want, _ = self._want(base, attempts.waited(self._now))
        attempts.want(self._now, want is not None or self._want(base, True)[0] is not None)
        if attempts.wanted is None:
            return
        if want is None:
            self._at(attempts.wanted + PATIENCE_S)
            return
        gone = {m for m, w in self.words.items() if w.leaving} - {self.me}
        elder = [m for m in base.members if (m in self._here.sees or m == self.me) and m not in gone].index(self.me)
        same_hosts = {*want.members} == {*base.members} and want.owners == base.owners
        rest = -math.inf
        if unhurried(base, want):
            rest = attempts.slow + REST_S
        if same_hosts and want.settings != base.settings:
            rest = self._changed + PATIENCE_S  # who wants another change all the time must not hold up every op
        elif same_hosts and unhurried(base, want) and want.options != base.options:
            rest = max(rest, self._settled + SETTLE_S)
        if self._at(max(attempts.ready(elder, self._here.round_trip), rest)):
            newest = max(decree.promised.round, *(w.promised.round for w in peers.values()), 0)
            self._ask, attempts.asked_at = Ask(Ballot(newest + 1, self.me.slot)), self._now

    def _want(self, base: Epoch, waited: bool, start: int = 0) -> tuple[Epoch | None, str]:
        return decide(base, self.me, self._here.sees, {**self.seen(), self.me: self.words[self.me]}, waited, start)

    def _give_up(self) -> None:
        self._ask = None
        self._attempts.fail(self._now, self._here.round_trip)

    def _go_on(self, ask: Ask, base: Epoch, peers: dict[Member, Word]) -> None:
        trip, asked_at = self._here.round_trip, self._attempts.asked_at
        wait_s, calm_s = answer_s(trip), least(trip) / 2
        if ask.child is not None:
            if self._at(asked_at + 2 * wait_s):
                self._give_up()
            return
        promises = {m: w for m, w in peers.items() if w.promised == ask.ballot}
        child, again = self._child(base, promises)
        # What nobody waits for is decided while all answer fast alone, so that no hold ends before that is told: else
        # one op might be opened by two epochs.
        calm = child is not None and not again and unhurried(base, child)
        everybody = promises.keys() == peers.keys()
        if not everybody and not self._at(asked_at + (max(wait_s, calm_s) if calm else wait_s)):
            return
        if calm and not (everybody and self._now < asked_at + calm_s):
            child, self._attempts.slow = None, self._now
        if child is None:
            self._give_up()
            return
        self._ask, self._attempts.asked_at = Ask(ask.ballot, child, again), self._now
        self._at(self._now + 2 * wait_s)

    def _child(self, base: Epoch, promises: dict[Member, Word]) -> tuple[Epoch | None, bool]:
        """What is proposed to those who promised, and whether it may have been decided before; None: nothing now."""
        if not quorum(base, promises):
            return None, False
        before = [w.accepted for w in promises.values() if w.accepted is not None and base.bears(w.accepted[1])]
        if before:
            newest = max(before, key=lambda each: each[0])[1]
            told = [m for m, w in promises.items() if w.accepted is not None and w.accepted[1].id == newest.id]
            if may_have_been_decided(base, told, [m for m in base.members if m not in promises]):
                return newest, True
        behind = [m for m, w in promises.items() if w.next_op < base.start]
        beyond = [m for m, w in promises.items() if w.next_op > base.start]
        if behind and beyond and not self._attempts.waited(self._now, 2 * PATIENCE_S):
            return None, False  # soon two entries are enough for each: the epoch that holds, and its child
        reach = self._here.next_op + 2 * self._here.margin + REACH_OPS * self._here.stride
        start = base.start if behind and not beyond else max(min(w.hold, reach) for w in promises.values())
        child, why = self._want(base, self._attempts.waited(self._now), max(start, base.start))
        if child is not None:
            self._reasons[child.id] = why
        return child, False
