# SPDX-License-Identifier: Apache-2.0
"""Who is where: what the heads of a result say of the ranks, and what the next op is for.

All ranks that get a result get the same bytes, and decide by them alone. So ranks that have had the same results have
the same outer model, and `turn` counts results. A rank that had an exception where others had a result is behind, and
finds it out by the others' turn. From then on it *listens*: it gives nothing, until the others have passed on the
state, piece by piece, in ops of the same form as rounds.

A result in which ranks of different turns gave, or one of which no head came, is *void*: nobody steps. What was given
stays where it was, in the ranks' own parameters.

Where hosts come and go (company.py) ranks are seats: some are free, `members` are those of a result. There the state is
not passed on in ops: `mend` stays 0, and who listens takes it from the daemons of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ultima.local.vector import Head

_TURN_BITS = 22  # of a turn that a head of the state tells, beside ten of a rank
_TURN_MASK = (1 << _TURN_BITS) - 1
ROUND, MEND, LEARN, VOID = "round", "mend", "learn", "void"
THETA, MOMENTUM = 0, 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Of the state, in the order in which it is passed on. Forms of few bits need several passes, each of what the
    passes before it left."""

    fragment: int
    part: int
    """THETA or MOMENTUM."""
    number: int
    """Of the pass, from 0."""
    last: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a result is."""

    kind: str
    """ROUND: step. MEND: take the piece. LEARN: the same, in a rank that is behind. VOID: nothing."""
    why: str = ""
    """Of VOID."""
    piece: Piece | None = None
    divisor: float = 0.0
    """Of ROUND: the weight of all members."""
    weight: float = 0.0
    """Of ROUND: that of the ranks that gave."""
    differ: tuple[int, ...] = ()
    """Ranks whose outer model is another than that of the weightier part."""
    whole: bool = False
    """Of LEARN: this was the last piece, and all came."""


@dataclass(slots=True)
class Turns:
    """What one rank knows. quorum: how many ranks a round needs that gave."""

    rank: int
    ranks: int
    fragments: int
    passes: int
    quorum: int
    turn: int = 1
    """How many results it has had, and 1; 0 if its state is known to be wrong."""
    fragment: int = 0
    """Of the next round."""
    who: int = 0
    """See `Head`."""
    members: tuple[int, ...] | None = None
    """Where hosts come and go: the ranks that the newest result was to have. None: all, and always."""
    mend: int = 0
    """The piece that the next op passes on, from 1; 0 for a round."""
    listens: bool = False
    weights: list[float] = field(default_factory=list)
    """By rank, what it told last; NaN where it never did."""
    taken: bool = False
    """Of a rank that is behind: all that it gave for the op without a result is in the others' sum, as they say."""
    _taken: list[int] = field(default_factory=list)
    """By rank, the turn of the last round in which all was that it gave; 0 for none."""
    _who: list[int] = field(default_factory=list)
    """By rank, who gave that."""
    _behind: tuple[int, ...] = ()
    """The ranks that listened in the last result."""
    _failed: int = 0
    """The turn at which this rank was last in step with the others, if it is not."""
    _roots: list[int] = field(default_factory=list)
    _voids: int = 0
    _had: int = 0
    _followed: bool = False

    def __post_init__(self) -> None:
        self.weights = self.weights or [float("nan")] * self.ranks
        self._roots = list(range(self.ranks))
        self._taken, self._who = [0] * self.ranks, [0] * self.ranks

    @property
    def pieces(self) -> int:
        """Of the whole state."""
        return 2 * self.fragments * self.passes

    @property
    def root(self) -> bool:
        """Whether this rank gives the next piece: the first that was there last, or the next one if that fails."""
        return self.mend > 0 and not self.listens and self._roots[self._voids % len(self._roots)] == self.rank

    @property
    def urgent(self) -> bool:
        """Whether the next op is not to wait for its time."""
        return self.mend > 0 or (self.listens and self._followed)

    def piece(self, number: int) -> Piece:
        """The piece with a number from 1."""
        place, each = divmod(number - 1, self.passes)
        return Piece(place // 2, place % 2, each, each == self.passes - 1)

    def head(self, weight: float, gave: bool, digest: int, layout: int) -> Head:
        """What this rank says in the next op."""
        if self.mend and self._behind:  # in the place of a digest: of one that is behind, when it was in a round
            rank = self._behind[self.mend % len(self._behind)]
            digest = rank << _TURN_BITS | self._taken[rank] & _TURN_MASK
        return Head(self.listens, gave, self.mend, self.fragment, self.turn, weight, digest, layout, self.who)

    def failed(self) -> None:
        """This rank has no result of an op, and others may have one."""
        if not self.listens:
            self._failed, self.taken = self.turn, False
        self.listens, self._followed = True, False

    def judge(self, heads: Mapping[int, Head], touched: Sequence[bool], whole: Sequence[bool]) -> Verdict:
        """What the result is that holds `heads`, and goes on to the next op.

        touched, whole: by rank, whether some of its data is in the sum, and whether all of it is.
        """
        heads = {rank: head for rank, head in heads.items() if rank in self._seats()}
        if not heads:
            return Verdict(VOID, "no rank is in it with its head")
        top = max(head.turn for head in heads.values() if not head.listens or self._all_listen(heads))
        if self.turn < top:
            return self._follow(heads, top, touched, whole)
        self.listens = self._followed = False
        self.turn += 1
        here = [rank for rank, head in sorted(heads.items()) if head.turn == top and not head.listens]
        astray = [rank for rank in range(self.ranks) if touched[rank] and rank not in here]
        behind = any(head.turn < top for head in heads.values())
        for rank in range(self.ranks):
            if rank in heads:
                self.weights[rank] = heads[rank].weight
            elif rank not in self._seats():
                self.weights[rank] = float("nan")
        self._behind = tuple(rank for rank, head in sorted(heads.items()) if head.listens or head.turn < top)
        if self.mend:
            verdict = self._mended(heads, astray, touched, whole)
        else:
            verdict = self._round(heads, here, astray, touched)
            if verdict.kind == ROUND:
                for rank in filter(whole.__getitem__, here):
                    self._taken[rank], self._who[rank] = top, heads[rank].who
                self.fragment = (self.fragment + 1) % self.fragments
            if (behind or verdict.differ) and self.members is None:
                self.mend = 1
        self._voids = self._voids + 1 if verdict.kind == VOID else 0
        there = here or [rank for rank, head in sorted(heads.items()) if head.turn == top]
        self._roots = [rank for rank in there if rank not in verdict.differ]
        if self.rank in verdict.differ:
            self.turn, self.listens, self._followed, self.mend = 0, True, self.members is None, 0
        return verdict

    def _round(
        self, heads: Mapping[int, Head], here: Sequence[int], astray: Sequence[int], touched: Sequence[bool]
    ) -> Verdict:
        gave = [rank for rank in here if touched[rank]]
        if astray:
            return Verdict(VOID, f"what ranks {astray} gave is for another round, or their heads did not come")
        if len(gave) < self.quorum:
            absent = [rank for rank in self._seats() if rank not in gave]
            return Verdict(VOID, f"{len(gave)} of {self.quorum} ranks gave; ranks {absent} did not")
        parts: dict[int, float] = {}
        for rank in here:
            parts[heads[rank].digest] = parts.get(heads[rank].digest, 0.0) + heads[rank].weight
        best = max(parts.values())
        right = next(heads[rank].digest for rank in here if parts[heads[rank].digest] == best)
        return Verdict(
            ROUND,
            divisor=self.members_weight(),
            weight=sum(heads[rank].weight for rank in gave),
            differ=tuple(rank for rank in here if heads[rank].digest != right),
        )

    def _mended(
        self, heads: Mapping[int, Head], astray: Sequence[int], touched: Sequence[bool], whole: Sequence[bool]
    ) -> Verdict:
        number, root = self.mend, self._roots[self._voids % len(self._roots)]
        others = any(touched[rank] for rank in range(self.ranks) if rank != root)
        if astray or others or root not in heads or not whole[root]:
            return Verdict(VOID, f"a piece of the state did not come from rank {root}")
        if number == self.pieces:
            self._settle_weights(heads)
        self.mend = (number + 1) % (self.pieces + 1)
        return Verdict(MEND, piece=self.piece(number))

    def _follow(self, heads: Mapping[int, Head], top: int, touched: Sequence[bool], whole: Sequence[bool]) -> Verdict:
        """This rank is behind: it takes the state as others pass it on."""
        self.listens, self._followed = True, self.members is None
        self.mend = 0
        here = {rank: head for rank, head in heads.items() if head.turn == top}
        number = next(iter(here.values())).mend
        if not number:
            self._had = 0
            return Verdict(VOID, "this rank is behind, and waits for the state")
        if self.rank << _TURN_BITS | self._failed & _TURN_MASK in {head.digest for head in here.values()}:
            self.taken = self._failed > 0
        gave = [rank for rank in range(self.ranks) if touched[rank]]
        if number == 1:
            self._had = 0
        if number != self._had + 1 or len(gave) != 1 or gave[0] not in here or not whole[gave[0]]:
            return Verdict(VOID, "this rank is behind, and no piece of the state came that it needs")
        self._had, done = number, number == self.pieces
        if done:
            first = here[gave[0]]
            self.turn, self.fragment, self.listens = top + 1, first.fragment, False
            self._followed, self._had, self._voids = False, 0, 0
            self._roots = sorted(rank for rank, head in here.items() if not head.listens)
            self._settle_weights(heads)
        return Verdict(LEARN, piece=self.piece(number), whole=done)

    def _settle_weights(self, heads: Mapping[int, Head]) -> None:
        """A rank that took the state does not know what absent ranks told before: so nobody does any more."""
        self.weights = [heads[rank].weight if rank in heads else float("nan") for rank in range(self.ranks)]

    def members_weight(self) -> float:
        """The weight of all members; one that never told its own counts as the mean of the others, or as 1."""
        known = [weight for weight in self.weights if not np.isnan(weight)] or [1.0]
        count = len(self._seats())
        return sum(known) / len(known) * count if len(known) < count else sum(known)

    def shared(self) -> dict[str, Any]:
        """What all ranks with the same results know alike, as arrays."""
        return {
            "turn": np.array([self.turn, self.fragment], np.int64),
            "weights": np.array(self.weights, np.float64),
            "taken": np.array([self._who, self._taken], np.int64),
            "members": np.isin(np.arange(self.ranks), self._seats()).astype(np.int64),
        }

    def learn(self, shared: Mapping[str, Any]) -> bool:
        """Takes over what another rank had `shared`, where hosts come and go. Whether all that this rank gave last, of
        which it had no result, is in the others' sum."""
        mine = self.listens and self._failed > 0
        self.turn, self.fragment = shared["turn"].tolist()
        self.weights = shared["weights"].tolist()
        self._who, self._taken = shared["taken"].tolist()
        self.members = tuple(np.flatnonzero(shared["members"]).tolist())
        self.listens = self._followed = False
        failed, self._failed = self._failed, 0
        return mine and (self.who, failed) in zip(self._who, self._taken, strict=True)

    def _seats(self) -> Sequence[int]:
        return range(self.ranks) if self.members is None else self.members

    @staticmethod
    def _all_listen(heads: Mapping[int, Head]) -> bool:
        return all(head.listens for head in heads.values())
