# SPDX-License-Identifier: Apache-2.0
"""The rules by which epochs are decided, one by one. `test_epoch_model.py` tries them all together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ultima.daemon.base.options import Options
from ultima.daemon.base.ranges import STEP_OPS, WINDOW
from ultima.daemon.jobs.decree import BACK_S, BRANCH_S, REST_S, Seat
from ultima.daemon.jobs.epoch import (
    NO_BALLOT,
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
    outvoted,
    quorum,
)
from ultima.daemon.jobs.here import Here
from ultima.daemon.jobs.holding import MOST_S, NEWS_S, Holding

A, B, C, D, E = (Member(slot, 7) for slot in range(5))
ROOT = Epoch(0, 99, 0, (A, B, C), frozenset((A, B, C)))


def child(base: Epoch, *members: Member, start: int = 10, **fields: object) -> Epoch:
    owners = base.owners & {*members} or frozenset(members)
    made = Epoch(base.number + 1, base.id, start, members, owners, base.line)
    return replace(made, **fields)  # type: ignore[arg-type]


def word(serial: int, epoch: Epoch | None, *sees: Member, **fields: object) -> Word:
    return replace(Word(serial, epoch, 5, frozenset(sees)), **fields)  # type: ignore[arg-type]


def test_quorum__is_more_than_half_or_the_half_with_the_oldest() -> None:
    four = replace(ROOT, members=(C, A, B, D), owners=frozenset((A,)))
    assert quorum(ROOT, [A, B])
    assert not quorum(ROOT, [A, D, E]), "others do not count"
    assert quorum(four, [C, D]), "C is the oldest, whatever its slot"
    assert not quorum(four, [A, B])


def test_id__names_all_that_an_epoch_says() -> None:
    others = [
        replace(ROOT, number=1), replace(ROOT, parent=98), replace(ROOT, start=1), replace(ROOT, members=(B, A, C)),
        replace(ROOT, owners=frozenset((A, B))), replace(ROOT, line=(Fork(2, 1, A),)),
        replace(ROOT, options=(1, 0, 0, 0)), replace(ROOT, settings=Options(t_b_ns=-1)),
        replace(ROOT, members=(A, B, Member(2, 8)), owners=frozenset((A, B))),
    ]  # fmt: skip
    assert len({epoch.id for epoch in (ROOT, *others)}) == 10
    assert replace(ROOT).id == ROOT.id < 2**64


def test_better__prefers_the_trunk_that_has_gone_on_and_never_what_its_own_comes_from() -> None:
    branch = Epoch(1, ROOT.id, 0, (C,), frozenset((C,)), (Fork(1, 1, C),))
    heavier = Epoch(1, ROOT.id, 0, (A, B), frozenset((A, B)), (Fork(2, 1, A),))
    later = replace(branch, number=9)
    assert better(branch, ROOT), "it comes from there"
    assert not better(ROOT, later), "a word from before the fork is only old"
    assert better(child(ROOT, A, B), later)
    assert better(heavier, later)
    assert not better(later, heavier), "weights at the fork count, not who is further"
    assert contrary(ROOT, branch)
    assert not contrary(later, child(ROOT, A, B)), "who is on the branch is to leave it itself"


def test_decide__puts_out_whom_nobody_sees_and_says_why() -> None:
    words = {A: word(1, ROOT, B), B: word(1, ROOT, A)}
    new, why = decide(ROOT, A, frozenset((B,)), words, False, 12)
    assert new is not None
    assert (new.number, new.members, new.owners, new.start) == (1, (A, B), frozenset((A, B)), 12)
    assert why == "host 2 is gone"
    words[B] = word(1, ROOT, A, C)
    assert decide(ROOT, A, frozenset((B,)), words, True, 12) == (None, ""), "one of two sees it: no majority is blind"


def test_decide__one_voice_holds_a_dead_host_for_a_while_only() -> None:
    five = replace(ROOT, members=(A, B, C, D, E), owners=frozenset((A, B, C, D, E)))
    sees = frozenset((B, C, D))
    words = {
        A: word(1, five, B, C, D),
        B: word(1, five, A, C, D),
        C: word(1, five, A, B, D),
        D: word(1, five, A, B, C, E),
    }
    assert decide(five, A, sees, words, False, 9)[0] is None
    new, why = decide(five, A, sees, words, True, 9)
    assert new is not None
    assert (new.members, why) == ((A, B, C, D), "host 4 is gone")


def test_decide__who_comes_back_is_a_member_at_once_and_an_owner_after_an_op() -> None:
    again = Member(2, 8)
    words = {A: word(1, ROOT, B, again), B: word(1, ROOT, A, again), again: word(1, None, A, B, opened=False)}
    new, why = decide(ROOT, A, frozenset((B, again)), words, False, 9)
    assert new is not None
    assert (new.members, new.owners, why) == ((A, B, again), frozenset((A, B)), "host 2 is gone, host 2 comes in")
    words[again] = word(2, new, A, B, opened=True)
    whole, why = decide(new, A, frozenset((B, again)), words, False, 9)
    assert whole is not None
    assert (whole.owners, why) == (frozenset((A, B, again)), "host 2 owns a shard")


def test_decide__takes_the_changes_of_all_members_that_hold_the_same_epoch() -> None:
    """Of two for one option the younger member's; who speaks of an older epoch may have what it wants in this one."""
    said = {
        A: word(1, ROOT, B, C, change=(("tau", 5),)),
        B: word(1, ROOT, A, C, change=(("eta", 2), ("tau", 7))),
        C: word(1, child(ROOT, A, B, C), A, B, change=(("quorum", 9),)),
    }
    made, why = decide(ROOT, A, {B, C}, said, False, 10)
    assert made is not None and made.settings == Options(tau=7, eta=2) and made.members == ROOT.members
    assert why == "tau becomes 7, eta becomes 2"
    assert decide(made, A, {B, C}, said, False, 10)[0] is None, "all of them speak of the one before"


def test_decide__an_option_is_what_the_one_wishes_who_wishes_most() -> None:
    words = {m: word(1, ROOT, A, B, C, wishes=(int(m == B), 0, 0, 0)) for m in (A, B, C)}
    new, why = decide(ROOT, A, frozenset((B, C)), words, False, 9)
    assert new is not None
    assert (new.options, why) == ((1, 0, 0, 0), "option 0 becomes 1")


@pytest.mark.parametrize(
    "made, why",
    [
        (child(ROOT, A, B), "host 2 is seen here"),
        (child(ROOT, A, B, C, parent=5), "parent = 0000000000000005: allowed: "),
        (child(ROOT, A, B, C, number=0), "number = 0: allowed: 1 to 1048576"),
        (child(ROOT, A, B, C, line=(Fork(1, 1, A),)), "on its line"),
        (child(ROOT, A, B, C, owners=frozenset((D,))), "owners: allowed: one or more of the members"),
        (child(ROOT, A, B, C, owners=frozenset()), "owners: allowed: one or more of the members"),
        (child(ROOT, A, B, C, start=2**30), "start = 1073741824: allowed: 0 to "),
        (child(ROOT, A, B, C, Member(0, 8)), "members: allowed: one or more, each slot once"),
    ],
)
def test_accepts__says_why_not(made: Epoch, why: str) -> None:
    assert why in accepts(ROOT, made, A, frozenset((B, C)), {}, 5)


def test_accepts__a_host_leaves_when_it_says_so_or_nobody_here_sees_it() -> None:
    assert accepts(ROOT, child(ROOT, A, B), A, frozenset((B,)), {}, 5) == ""
    later = replace(child(ROOT, A, B), start=300 * STEP_OPS)
    assert "start" in accepts(ROOT, later, A, frozenset((B,)), {}, 5)
    assert accepts(ROOT, later, A, frozenset((B,)), {}, 5, WINDOW * STEP_OPS) == "", "steps of a coded job"
    assert accepts(ROOT, child(ROOT, A, B), A, frozenset((B, C)), {C: word(1, ROOT, leaving=True)}, 5) == ""


def proposing(base: Epoch, others: list[Member], **said: object) -> Seat:
    """The oldest member's seat, which wants a host out that nobody sees and has asked for promises; what the others say
    when they give theirs."""
    seat, here = Seat(A, base, 99, 0.0), Here(frozenset(others), 5, round_trip=0.001)
    for m in others:
        seat.hear(m, word(1, base, *({A, *others} - {m})))
    asked = seat.turn(0.0, here)
    assert asked.ask == Ask(Ballot(1, 0)), "it asks for promises first"
    for m in others:
        given = {name: value[m] for name, value in said.items() if m in value}  # type: ignore[operator, index]
        seat.hear(m, word(2, base, *({A, *others} - {m}), promised=Ballot(1, 0), hold=20, **given))
    seat.turn(0.001, here)
    return seat


def test_seat__proposes_what_may_have_been_decided_and_only_that() -> None:
    """C died after B had accepted its child, and may have told that it accepted it too: two of three. Who forgets that
    can make a second child of one epoch. Random worlds do not find it: the next proposal is late, or the same."""
    before = child(ROOT, A, B, C, start=7, options=(1, 0, 0, 0))
    seat = proposing(ROOT, [B], accepted={B: (Ballot(1, 2), before)})
    assert seat.words[A].ask == Ask(Ballot(1, 0), before, True)


def test_seat__is_free_where_nothing_can_have_been_decided() -> None:
    """B alone accepted a child, of five hosts of which four have promised: it was never decided."""
    five = replace(ROOT, members=(A, B, C, D, E), owners=frozenset((A, B, C, D, E)))
    before = child(five, A, B, C, D, E, start=7, options=(1, 0, 0, 0))
    seat = proposing(five, [B, C, D], accepted={B: (Ballot(1, 4), before)})
    ask = seat.words[A].ask
    assert ask is not None
    assert ask.child is not None
    assert (ask.child.members, ask.again, ask.child.start) == ((A, B, C, D), False, 20), "from the largest hold on"


def test_seat__of_two_that_were_accepted_the_newer_ballot_counts() -> None:
    older, newer = (child(ROOT, A, B, C, start=7, options=(n, 0, 0, 0)) for n in (1, 2))
    seat = Seat(A, ROOT, 99, 0.0)
    seat._decree.accepted = Ballot(1, 1), older  # type: ignore[union-attr]
    here = Here(frozenset((B,)), 5, round_trip=0.001)
    seat.hear(B, word(1, ROOT, A))
    ballot = seat.turn(0.0, here).ask.ballot  # type: ignore[union-attr]
    seat.hear(B, word(2, ROOT, A, promised=ballot, accepted=(Ballot(2, 2), newer)))
    seat.turn(0.001, here)
    assert seat.words[A].ask == Ask(ballot, newer, True)


def test_seat__counts_who_accepted_itself() -> None:
    """No proposer's word is needed: a majority of the parent's members under one ballot, and not under two."""
    new = child(ROOT, A, B)
    seat, here = Seat(A, ROOT, 99, 0.0), Here(frozenset((B, C)), 5)
    seat.hear(B, word(1, ROOT, A, C, promised=Ballot(1, 1), accepted=(Ballot(1, 1), new)))
    seat.hear(C, word(1, ROOT, A, B, promised=Ballot(2, 2), accepted=(Ballot(2, 2), new)))
    seat.turn(0.0, here)
    assert seat.epoch is ROOT
    seat.hear(C, word(2, ROOT, A, B, promised=Ballot(2, 2), accepted=(Ballot(1, 1), new)))
    seat.turn(0.0, here)
    assert seat.epoch == new


def test_seat__accepts_no_epoch_that_is_not_a_child_of_its_own() -> None:
    """Not even for having been decided before: what holds here already would be proposed anew for ever."""
    base = child(ROOT, A, B, C)
    seat, here = Seat(B, base, 99, 0.0), Here(frozenset((A, C)), 5)
    for m in (A, C):
        ask = Ask(Ballot(3, 0), base, True) if m == A else None
        seat.hear(m, word(1, base, *{A, B, C} - {m}, promised=Ballot(3, 0), accepted=(Ballot(3, 0), base), ask=ask))
    assert seat.turn(0.0, here).accepted is None


def test_seat__a_hold_ends_by_itself_and_is_not_repeated_at_once() -> None:
    seat, here = Seat(B, ROOT, 99, 0.0), Here(frozenset((A, C)), 5, margin=2, round_trip=0.01)
    seat.hear(A, word(1, ROOT, B, C, ask=Ask(Ballot(1, 0))))
    seat.turn(0.0, here)
    assert seat.hold == (7, pytest.approx(0.02 + NEWS_S))
    assert seat.words[B].hold == 7
    assert seat.wake == seat.hold[1]
    seat.turn(0.2, here)
    assert seat.hold is None
    for serial, at, held in ((2, 0.3, False), (3, 0.3 + REST_S, True)):
        seat.hear(A, word(serial, ROOT, B, C, ask=Ask(Ballot(serial, 0))))
        seat.turn(at, here)
        assert seat.words[B].promised == Ballot(serial, 0), "it promises all the same"
        assert (seat.hold is not None) is held


@pytest.mark.parametrize(
    "took, lasts",
    [([0.02], NEWS_S), ([0.06], 0.18), ([0.06, 0.02], 0.18), ([2.0], MOST_S), ([0.06] + 4 * [0.01], NEWS_S)],
)
def test_holding__lasts_several_times_the_longest_of_the_last_agreements(took: list[float], lasts: float) -> None:
    """Also one that ended after its hold had; 10 ms each way are on top."""
    holding, now = Holding(), 0.0
    for each in took:
        holding.begin(now, 5, 0.01)
        holding.end(now + 1.0, 0.0)
        holding.decided(now + each)
        now += 10
    holding.begin(now, 7, 0.01)
    assert holding.hold == (7, pytest.approx(now + 0.02 + lasts))
    holding.decided(now + 0.01)
    assert holding.hold is None


def test_outvoted__by_several_who_hold_another_epoch_of_the_line() -> None:
    """A host lied: A went on with one child of the first epoch, and B and C with the other."""
    mine, other = child(ROOT, A), child(ROOT, B, C)
    later, with_me = child(mine, A, B, C), child(ROOT, B, C, A)
    assert outvoted(mine, A, {B: other, C: other}) is other
    assert outvoted(mine, A, {B: other}) is None, "one is not believed"
    assert outvoted(mine, A, {B: other, D: other}) is None, "D is not in what it tells of"
    assert outvoted(mine, A, {B: other, C: other, D: mine}) is None, "somebody is with A"
    assert outvoted(mine, A, {B: ROOT, C: ROOT}) is None, "they will hear of it"
    assert outvoted(mine, A, {B: with_me, C: with_me}) is None, "A may have been in it before"
    assert outvoted(mine, A, {B: later, C: later}) is None, "that is followed at once, by the rule for what is better"
    branch = child(ROOT, B, C, line=(Fork(2, 1, B),))
    assert outvoted(mine, A, {B: branch, C: branch}) is None


def test_seat__that_is_outvoted_waits_for_news_and_yields() -> None:
    mine, other = child(child(ROOT, A, B), A), child(ROOT, B, C)
    seat, here = Seat(A, mine, 99, 0.0), Here(frozenset((B, C)), 5)
    for m in (B, C):
        seat.hear(m, word(1, other, *{A, B, C} - {m}))
    seat.turn(0.0, here)
    assert seat.epoch is mine and seat.wake <= BACK_S
    seat.turn(BACK_S, here)
    assert seat.epoch is other


@pytest.mark.parametrize("decided", [False, True])
def test_holding__rests_after_one_in_vain_alone(decided: bool) -> None:
    """Where the epoch came after its hold had ended, the next agreement is as near as ever, and slow again."""
    holding = Holding()
    holding.begin(0.0, 5, 0.0)
    holding.end(NEWS_S, REST_S)
    assert holding.hold is None
    if decided:
        holding.decided(NEWS_S + 0.05)
    holding.begin(NEWS_S + 0.1, 6, 0.0)
    assert (holding.hold is not None) is decided


def test_holding__an_epoch_that_was_not_promised_measures_nothing() -> None:
    holding = Holding()
    holding.begin(0.0, 5, 0.0)
    holding.decided(0.01)
    holding.decided(9.0)
    assert holding.lasts(0.0) == NEWS_S


@pytest.mark.parametrize("answer", [0.04, 0.06])
@pytest.mark.parametrize("comes", [False, True])
def test_seat__what_nobody_waits_for_is_decided_while_all_answer_fast(answer: float, comes: bool) -> None:
    """C is to own a shard, or D to come in. Promises come in time for half of a hold, which is 50 ms, or do not."""
    base = ROOT if comes else replace(ROOT, owners=frozenset((A, B)))
    seat, here = Seat(A, base, 99, 0.0), Here(frozenset((B, C, D)), 5)
    sees = {B: (A, C, D), C: (A, B, D), D: (A, B, C)}
    told = [B, C, D] if comes else [B, C]
    for serial, (at, promised) in enumerate(((0.0, NO_BALLOT), (answer, Ballot(1, 0))), 1):
        for m in told:
            seat.hear(m, word(serial, base if m != D else None, *sees[m], promised=promised, hold=5))
        seat.turn(at, here)
        if promised == NO_BALLOT:
            assert seat.words[A].ask == Ask(Ballot(1, 0))
    ask = seat.words[A].ask
    slow = answer > 0.05 and not comes
    assert (ask is None or ask.child is None) is slow
    if slow:  # and it is not asked for again at once
        seat.turn(answer + 1.0, here)
        assert seat.words[A].ask is None
        seat.turn(answer + REST_S, here)
        assert seat.words[A].ask is not None


def test_seat__ops_before_the_epoch_that_holds_are_not_held_back() -> None:
    """Who is behind its start has yet to come there, and until all have, nothing follows it."""
    base = replace(ROOT, number=1, start=9)
    seat = Seat(B, base, 99, 0.0)
    seat.hear(A, word(1, base, B, C, ask=Ask(Ballot(1, 0))))
    seat.turn(0.0, Here(frozenset((A, C)), 5, margin=2))
    assert seat.hold is not None and seat.hold[0] == 9
    assert seat.words[B].hold == 9


def test_seat__who_leaves_is_not_waited_for_to_propose() -> None:
    """A is the oldest, and proposes nothing any more."""
    for leaving, asks in ((True, True), (False, False)):
        seat = Seat(B, ROOT, 99, 0.0)
        seat.hear(A, word(1, ROOT, B, C, leaving=leaving))
        seat.hear(C, word(1, ROOT, A, B, leaving=True))
        seat.turn(0.0, Here(frozenset((A, C)), 5))
        assert (seat.words[B].ask is not None) is asks


def test_seat__the_younger_of_two_waits_and_goes_on_by_itself() -> None:
    two = replace(ROOT, members=(A, B), owners=frozenset((A, B)))
    old, young = Seat(A, two, 99, 0.0), Seat(B, two, 99, 0.0)
    nobody = Here(frozenset(), 5)
    for _ in range(3):
        old.turn(0.0, nobody)
    assert old.epoch is not None
    assert (old.epoch.members, old.epoch.line) == ((A,), ())
    young.turn(0.0, nobody)
    young.turn(BRANCH_S / 2, nobody)
    assert young.epoch is two
    assert young.wake == BRANCH_S
    young.turn(BRANCH_S, nobody)
    assert young.epoch is not None
    assert (young.epoch.members, young.epoch.line) == ((B,), (Fork(1, 1, B),))
    young.hear(A, word(9, old.epoch))
    young.turn(BRANCH_S + 1, Here(frozenset((A,)), 5))
    assert young.epoch == old.epoch, "the trunk has gone on past the fork"
    assert not young.member, "so it comes in as a host that was away does"


def test_seat__is_called_when_it_may_ask_whatever_the_time_is() -> None:
    """B went another way, which counts when A has wanted it back for a while. Times are sums of floats: a
    difference may be less than what was added."""
    apart, here = child(ROOT, B, C), Here(frozenset((B, C)), 5)
    for i in range(300):
        seat, now = Seat(A, ROOT, 99, 0.0), 1.0 + 0.731 * i
        seat.hear(B, word(1, apart, A, C))
        seat.hear(C, word(1, ROOT, A, B))
        seat.turn(now, here)
        assert seat.words[A].ask is None, now
        assert seat.wake < math.inf, now
        seat.turn(seat.wake, here)
        assert seat.words[A].ask is not None, now


def test_seat__hosts_that_are_far_are_waited_for() -> None:
    """A job begins, and others are seen that have yet to speak: on a long way with losses that takes its time."""
    seat, here = Seat(C, ROOT, 99, 0.0), Here(frozenset((A, B)), 0, round_trip=0.9, patience=3.6)
    seat.turn(0.0, here)
    assert seat.wake == 3.6
    seat.turn(3.5, here)
    assert seat.epoch is ROOT
    seat.hear(A, word(1, ROOT, B, C))
    seat.turn(3.6, here)
    assert seat.epoch is ROOT, "two of three are a majority"
    late = Seat(C, ROOT, 99, 0.0)
    for now in (0.0, 3.6):
        late.turn(now, here)
    assert late.epoch is not None and late.epoch.members == (C,)


def test_seat__one_word_of_another_epoch_is_not_believed_against_an_honest_one() -> None:
    """A liar tells of an epoch that nobody decided; another host that is seen tells what this one knows."""
    false = child(ROOT, A, C, number=50)
    seat, here = Seat(A, ROOT, 99, 0.0), Here(frozenset((B, C)), 5)
    seat.hear(B, word(1, ROOT, A, C))
    seat.hear(C, word(1, false, A, B))
    seat.turn(0.0, here)
    assert seat.epoch is ROOT
    guest = Seat(Member(0, 8), None, 99, 0.0)
    guest.hear(B, word(1, ROOT, C))
    guest.hear(C, word(1, false, B))
    guest.turn(0.0, here)
    assert guest.epoch is None, "one says this, one says that"


def test_seat__an_older_word_is_no_news() -> None:
    seat = Seat(A, ROOT, 99, 0.0)
    assert seat.hear(B, word(5, ROOT))
    assert not seat.hear(B, word(5, ROOT))
    assert not seat.hear(B, word(4, ROOT))
    assert not seat.hear(A, word(9, ROOT)), "nor is what somebody else says in its name"
    assert seat.hear(Member(1, 8), word(1, None))
    assert B not in seat.words, "of one host only the newest life"


def test_seat__follows_a_job_whose_steps_have_many_numbers() -> None:
    """A host of a coded job that is two steps and an epoch behind takes the one that the others hold."""
    new = child(child(ROOT, A, B, C), A, B, C, start=300 * STEP_OPS)
    for stride, epoch in ((1, ROOT), (STEP_OPS, new)):
        seat = Seat(C, ROOT, 99, 0.0)
        for m, other in ((A, B), (B, A)):
            seat.hear(m, word(1, new, other, C))
        seat.turn(0.0, Here(frozenset((A, B)), 5, stride=stride))
        assert seat.epoch == epoch
