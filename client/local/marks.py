# SPDX-License-Identifier: Apache-2.0
"""How large marks and heads are where values travel in few bits, so that none is lost among the data beside it.

There a block of elements has one scale, by its largest, and an element far below it becomes 0; and blocks far below the
largest of their packet do, too. Marks share blocks with data. So they are as large as the data of their neighbourhood
usually are, by the momentum, which all ranks know alike; and what a rank gives is bounded by multiples of them, so that
the sum over all ranks cannot hide one. What is beyond a bound is not lost: it stays in the rank's parameters, as the
steps that are made meanwhile do, and is in the next round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ultima.local.round_kernels import Floats, squares
from ultima.local.turns import Turns
from ultima.local.vector import Vector

# By form: the largest whole number of a contribution, and of a result.
_LEVELS = {"int16": (32767, 32767), "int8": (127, 127), "int4": (7, 127)}
# Blocks of a packet have scales within a factor of 2^15 (docs/quantised): of that 2^8 for marks among each other, 2^6
# for data above the largest of them, and the rest for what ranks that are behind take for usual.
_LEAST, _MOST = 2.0**-8, 2.0**6
_THETA_SHARE = 1 / 16  # of an element of a model that no round has moved yet: about what a round moves it, at most
_MU_SHARE_MIN = 0.1
_BEHIND = 1 / 16  # the head of a rank that is behind, to what it takes for usual
_PACKET = 18432  # elements, at most


class Sizes(NamedTuple):
    """Of one rank in one op."""

    marks: Floats
    """Of each group of marks."""
    near: Floats
    """The most that an element beside each of them may be."""
    far: float
    """The most that any may be."""
    head: float


def of_round(
    vectors: Vector, wire: str, theta: Floats, momentum: Floats, mu: float, weight: float, behind: bool
) -> Sizes:
    """In a round. theta, momentum: of its fragment. weight: of all members.

    An element beside a mark is bounded such that the mark is at least one and a half steps of the form above 0, in the
    contribution and in the sum over all ranks, wherever blocks begin in either. Where nothing is known, as of a model
    of zeros before its first round, nothing is given there.
    """
    usual = _around(vectors, momentum) * np.float32(max(1 - mu, _MU_SHARE_MIN) * weight)
    if not usual.all():
        still = _around(vectors, theta) * np.float32(_THETA_SHARE * weight / vectors.ranks)
        usual = np.where(usual > 0, usual, still)
    known = bool(usual.any())
    top = float(usual.max()) if known else 1.0
    marks = np.maximum(usual, np.float32(top * _LEAST), dtype=np.float32)
    own, answer = _LEVELS[wire]
    bound = min(own / 2, answer / (2 * vectors.ranks)) if known else 0.0
    head = float(marks[0]) * (_BEHIND if behind else 1.0)
    return Sizes(marks, marks * np.float32(bound), top * _MOST / vectors.ranks, head)


def of_piece(vectors: Vector, data: Floats, head: float) -> Sizes:
    """In the passing on of a piece of the state, of which one rank gives data. head: as in a round."""
    largest = float(np.abs(data).max(initial=0)) or 1.0
    marks = np.full(vectors.ranges + 1, largest, np.float32)
    first = marks[: _PACKET // (vectors.range + vectors.ranks) + 2]  # they may be in a packet with heads
    np.maximum(first, np.float32(head / 64), out=first)
    return Sizes(marks, marks, float("inf"), head)


def sized(
    vectors: Vector, wire: str, theta: Floats, momentum: Floats, mu: float, turns: Turns, piece: Floats | None
) -> Sizes:
    """In the next op. piece: of the state, that this rank gives."""
    sizes = of_round(vectors, wire, theta, momentum, mu, turns.members_weight(), turns.listens)
    return sizes if piece is None else of_piece(vectors, piece, sizes.head)


def _around(vectors: Vector, values: Floats) -> Floats:
    """The root of the mean square of the elements at both sides of each mark."""
    sums = np.zeros(vectors.ranges)
    known = squares(values, vectors.range)
    sums[: known.size] = known
    counts = np.full(vectors.ranges, float(vectors.range))
    counts[-1] = max(1, values.size - (vectors.ranges - 1) * vectors.range)
    both = np.concatenate([[0.0], sums]) + np.concatenate([sums, [0.0]])
    of = np.concatenate([[0.0], counts]) + np.concatenate([counts, [0.0]])
    return np.asarray(np.sqrt(both / of), np.float32)
