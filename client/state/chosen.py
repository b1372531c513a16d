# SPDX-License-Identifier: Apache-2.0
"""Whose state is taken, and when: rules of what ranks say of themselves, the same on all of them.

A state is that before an op. So a choice is made while all ranks stand before one op, and nobody is in it. A rank that
has the newest state and stands before an earlier op goes on first; who is to take another state anyway may stand there.
Of those who only give, if there are some, else of all, the states of the highest revision count; of these the one that
most ranks have, and of two that equally many have the one of the oldest rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Word(NamedTuple):
    """What a rank says."""

    op_seq: int
    """The op that it calls next."""
    asks: bool
    """It waits until it has the state that was chosen."""
    takes: bool
    """It takes what others give; who does not is one of those whose state is chosen."""
    root: bytes
    """Of what it has to give; empty for nothing, or nothing yet."""
    size: int
    revision: int
    follows: int = 0
    """Above 0: it is in no op yet, and takes the state and results of this rank less one."""

    @property
    def wants(self) -> bool:
        """Others are to stand still for it: it asks, or will once it has read what it has itself."""
        return self.asks or (self.takes and not self.root)


class Rank(NamedTuple):
    """A rank of the newest view."""

    rank: int
    life: int
    word: Word | None
    """None: it says nothing."""
    place: str = ""
    """ "host:port" of the daemon of its host."""


class Turn(NamedTuple):
    """What a rank hears when it has said its word."""

    table: int
    """Number of what follows, for the next turn."""
    ranks: tuple[Rank, ...]
    """Of the newest view, the oldest first; this one is among them."""
    next_op: int
    """The number that follows the newest op that any host is known to have begun."""
    wish: int = 0
    """Another host asks for a part of the state here; 0: none does."""
    part: int = 0
    kind: int = 0
    """What of it (`ultima.state.results.Kind`), and the op from which on results are asked for."""
    op_seq: int = 0
    followers: int = 0
    """Ranks that follow this one, in answer to who gives to them."""
    place: str = ""
    """ "host:port" of the daemon here."""


def op_of(ranks: Sequence[Rank]) -> int:
    """The op before which all are to stand."""
    return max((each.word.op_seq for each in ranks if each.word is not None), default=0)


def is_behind(word: Word, ranks: Sequence[Rank]) -> bool:
    """Whether a rank that says this has to go on before there can be a choice."""
    op = op_of(ranks)
    there = [each.word.revision for each in ranks if each.word is not None and each.word.op_seq == op]
    return word.op_seq < op and (not word.takes or (bool(word.root) and word.revision > max(there)))


def waits_for(ranks: Sequence[Rank], next_op: int) -> tuple[int, ...]:
    """Ranks without whom there is no choice yet; all of them while somebody is in the op."""
    words = [each.word for each in ranks if each.word is not None]
    silent = tuple(
        each.rank
        for each in ranks
        if each.word is None or is_behind(each.word, ranks) or not (each.word.root or each.word.asks)
    )
    if not silent and words and next_op > op_of(ranks):
        return tuple(each.rank for each in ranks)
    return silent


def choose(ranks: Sequence[Rank]) -> Rank | None:
    """The oldest rank that has the state to take. None: nobody has any."""
    given = [each for each in ranks if each.word is not None and each.word.root]
    among = [each for each in given if not each.word.takes] or given  # type: ignore[union-attr]
    newest = max((each.word.revision for each in among), default=0)  # type: ignore[union-attr]
    among = [each for each in among if each.word.revision == newest]  # type: ignore[union-attr]
    votes = Counter(each.word.root for each in among)  # type: ignore[union-attr]
    return max(among, key=lambda each: votes[each.word.root], default=None)  # type: ignore[union-attr]


def holders(ranks: Sequence[Rank], root: bytes) -> tuple[int, ...]:
    """Who has it."""
    return tuple(each.rank for each in ranks if each.word is not None and each.word.root == root)


def differing(ranks: Sequence[Rank], root: bytes) -> tuple[int, ...]:
    """Who gives, and has another one."""
    return tuple(
        each.rank
        for each in ranks
        if each.word is not None and not each.word.takes and each.word.root not in (b"", root)
    )
