# SPDX-License-Identifier: Apache-2.0
"""Whose state is taken, and when."""

from ultima.state.chosen import Rank, Word, choose, holders, is_behind, waits_for

GIVER = Word(7, False, False, b"a", 1, 5)
NEWCOMER = Word(7, True, True, b"n", 1, 0)


def ranks(*words: Word | None) -> list[Rank]:
    """Ranks 10, 11, ..., the oldest first."""
    return [Rank(10 + at, 900 + at, word) for at, word in enumerate(words)]


def chosen(*words: Word | None) -> int | None:
    found = choose(ranks(*words))
    return None if found is None else found.rank


def test_choose__the_newest_then_the_popular_then_that_of_the_oldest() -> None:
    other, third = GIVER._replace(root=b"b"), GIVER._replace(root=b"c")
    assert chosen(NEWCOMER, GIVER) == 11, "the highest revision"
    assert chosen(GIVER, other, other._replace(takes=True), NEWCOMER) == 10, "who takes decides nothing beside givers"
    assert chosen(GIVER, other, other) == 11, "two of three"
    assert chosen(third, GIVER, other) == 10, "the oldest of as many"
    assert chosen(GIVER._replace(revision=4), GIVER._replace(revision=4), other) == 12, "revision before number"
    assert chosen(NEWCOMER._replace(root=b""), None) is None


def test_choose__a_giver_is_taken_although_another_rank_says_a_higher_revision() -> None:
    """A giver never takes, so all are the same only if it is one of theirs."""
    assert chosen(NEWCOMER._replace(revision=99), GIVER) == 11


def test_waits_for__all_stand_before_one_op() -> None:
    assert waits_for(ranks(GIVER, NEWCOMER), 7) == ()
    assert waits_for(ranks(GIVER, None, NEWCOMER), 7) == (11,), "it says nothing yet"
    assert waits_for(ranks(GIVER, GIVER._replace(root=b""), NEWCOMER), 7) == (11,), "it sums up its state"
    assert waits_for(ranks(GIVER, NEWCOMER._replace(root=b"")), 7) == (), "it has none to give"
    assert waits_for(ranks(GIVER, NEWCOMER), 8) == (10, 11), "somebody is in op 7"
    ahead = GIVER._replace(op_seq=8)
    assert waits_for(ranks(GIVER, ahead, NEWCOMER), 8) == (10,), "who only gives goes on first; who takes may stay"


def test_is_behind__who_has_the_newest_state_goes_on_and_who_takes_stays() -> None:
    table = ranks(GIVER, NEWCOMER._replace(op_seq=9))
    assert is_behind(GIVER, table)
    assert not is_behind(GIVER._replace(takes=True, revision=0), table), "as old as the others, it takes one of theirs"
    assert is_behind(GIVER._replace(takes=True), table), "its state is the one that the newcomer needs, before op 9"
    assert not is_behind(NEWCOMER, ranks(GIVER._replace(op_seq=8), NEWCOMER))
    assert not is_behind(NEWCOMER._replace(root=b"", revision=50), ranks(GIVER._replace(op_seq=8), NEWCOMER))


def test_holders__are_all_who_have_it() -> None:
    assert holders(ranks(GIVER, NEWCOMER, GIVER, None), b"a") == (10, 12)
