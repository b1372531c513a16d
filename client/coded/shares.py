# SPDX-License-Identifier: Apache-2.0
"""Lists of data with coefficients: how they are cut, handed down and joined (CR.Allocate, docs/papers.md, section 4.3).

A row (start, stop, coefficient) stands for the data points from start up to, not including, stop, whose gradients are
multiplied by the coefficient. A list of rows is cut as if its points stood one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

Row = tuple[int, int, float]


def points(rows: Iterable[Row]) -> int:
    """How many data points |rows| have."""
    return sum(stop - start for start, stop, _ in rows)


def cut(rows: Iterable[Row], first: int, last: int) -> list[Row]:
    """The points number |first| up to, not including, |last| of |rows|."""
    found, before = [], 0
    for start, stop, coefficient in rows:
        low, high = max(start, start + first - before), min(stop, start + last - before)
        if low < high:
            found.append((low, high, coefficient))
        before += stop - start
    return found


def handed_down(rows: Sequence[Row], encoding: Iterable[float]) -> list[Row]:
    """What a child gets of its parent's |rows|, by its row of the code's matrix: the points are cut into as many nearly
    equal parts as |encoding| has entries, and each part comes with its coefficient multiplied by the entry.
    """
    entries = [float(entry) for entry in encoding]
    total, given = points(rows), []
    for part, entry in enumerate(entries):
        if entry != 0:
            mine = cut(rows, part * total // len(entries), (part + 1) * total // len(entries))
            given += [(start, stop, coefficient * entry) for start, stop, coefficient in mine]
    return given


def kept(rows: Sequence[Row], share: Fraction) -> tuple[list[Row], list[Row]]:
    """What a worker computes itself, the first |share| of |rows| rounded up to a whole point, and the rest."""
    total = points(rows)
    own = -(-total * share.numerator // share.denominator)
    return cut(rows, 0, own), cut(rows, own, total)


def joined(rows: Iterable[Row]) -> list[Row]:
    """|rows| with neighbours of one coefficient made one."""
    found: list[Row] = []
    for start, stop, coefficient in rows:
        if found and found[-1][1:] == (start, coefficient):
            found[-1] = (found[-1][0], stop, coefficient)
        else:
            found.append((start, stop, coefficient))
    return found
