# SPDX-License-Identifier: Apache-2.0
"""What travels in a round: one vector, whose sum over the ranks also says who is in it, range by range.

    head of each rank | marks, data of range 0 | marks, data of range 1 | ... | marks

A receipt tells whether a rank is in all of a sum or in some of it, and not in which part. So each range of the data
stands between two groups of marks, in which each rank that gives has an element of its own: it gives a mark there, and
the others 0. A range is shorter than a packet's values. So a packet of this rank that did not come takes at least one
mark with it, unless it is the short last one of an owner's part; a range counts as this rank's if both marks around it
do.

Where values travel in few bits, an element is rounded by the largest of its block, and a zero stays a zero. How large
marks are there, and what may stand beside them, says marks.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from ultima.local.round_kernels import Bools, Floats, Rows

# By form: elements from the marks of one range to those of the next. A packet of an MTU of 1280 bytes holds some 300
# values of four bytes, 600 of two, 1,200 of one and 2,340 of a half (docs/quantised). Sparse packets
# hold values of two bytes, dense where that is shorter.
_STRIDES = {"float32": 288, "int16": 576, "int8": 1152, "int4": 2304, "topk": 576}
FEW_BITS = ("int16", "int8", "int4")
BLOCK = 64  # elements that share a scale, at most
_PART = 1 << 15  # elements: a few arrays of so many stay in a core's cache
HEAD = 280  # elements of a rank's head: no block of the form holds bits of two heads, or of one and of marks
_BITS = (("listens", 1), ("gave", 1), ("mend", 16), ("fragment", 16), ("turn", 32), ("weight", 32), ("digest", 32),
         ("layout", 24), ("who", 24))  # fmt: skip
_TEXT_BITS = sum(bits for _, bits in _BITS)
_CHECK_BITS = 32


@dataclass(frozen=True, slots=True)
class Head:
    """What a rank says of itself in a round: whole numbers, as bits that are 0 or 1 in elements of its own."""

    listens: bool
    """It may be behind: it gives nothing, and wants the state."""
    gave: bool
    """It gives data."""
    mend: int
    """0 in a round; in the passing on of the state the number of the piece, from 1."""
    fragment: int
    """That the round is of, or the next one will be."""
    turn: int
    """How many results it has had: ranks with the same number have seen the same, and have the same state."""
    weight: float
    """float32, above 0."""
    digest: int
    """32 bits that depend on the whole state of the fragment, before the round."""
    layout: int
    """See `Layout.hash`."""
    who: int = 0
    """Drawn by each `Outer`: where hosts come and go, a rank may be another host's afterwards."""

    def bits(self) -> Floats:
        """HEAD elements."""
        number = 0
        for name, bits in _BITS:
            value = getattr(self, name)
            whole = int(np.float32(value).view(np.uint32)) if name == "weight" else int(value)
            number = number << bits | whole & (1 << bits) - 1
        check = zlib.crc32(number.to_bytes(-(-_TEXT_BITS // 8), "big"))
        text = f"1{number:0{_TEXT_BITS}b}{check:0{_CHECK_BITS}b}"
        told = np.zeros(HEAD, np.float32)
        told[: len(text)] = np.frombuffer(text.encode(), np.uint8) - ord("0")
        return told


def head_of(elements: Floats) -> Head | None:
    """What `Head.bits` became on its way; None if the rank is not in it, or a part of it did not come."""
    # A zero stays a zero, in whatever form.
    text = "".join("1" if value > 0 else "0" for value in elements[: 1 + _TEXT_BITS + _CHECK_BITS].tolist())
    number, check = int(text[1 : 1 + _TEXT_BITS], 2), int(text[1 + _TEXT_BITS :], 2)
    if text[0] == "0" or zlib.crc32(number.to_bytes(-(-_TEXT_BITS // 8), "big")) != check:
        return None
    told: dict[str, int] = {}
    for name, bits in reversed(_BITS):
        told[name], number = number & (1 << bits) - 1, number >> bits
    weight = float(np.array(told.pop("weight"), np.uint32).view(np.float32))
    assert {each.name for each in fields(Head)} == {*told, "weight"}
    return Head(bool(told.pop("listens")), bool(told.pop("gave")), weight=weight, **told)


class Vector:
    """Where everything lies in the vector, for `size` elements of data among `ranks` ranks, in a form."""

    def __init__(self, size: int, ranks: int, wire: str) -> None:
        self.ranks = ranks
        self._begin = ranks * HEAD
        self.range = max(64, _STRIDES[wire] - ranks)
        """Elements of data in a range."""
        self.near = min(2 * (BLOCK - 1), self.range) if wire in FEW_BITS else 0
        """Elements at either side of a group of marks that may share a block with it in the result, or in a
        contribution with one that does."""
        self.ranges = max(1, -(-size // self.range))
        self._row = ranks + self.range
        self.count = self._begin + self.ranges * self._row + ranks
        """Elements of the vector."""

    def clear(self, vector: Floats, rank: int, head: Head, size: float = 1.0, keep: int = 0) -> None:
        """Makes it that of a rank that gives no data; size: of a bit that is 1. keep: so many elements of the data are
        left as they are, as others are about to be put there."""
        body, whole = self._body(vector), keep // self.range
        vector[: self._begin] = 0
        vector[rank * HEAD : (rank + 1) * HEAD] = head.bits() * np.float32(size)
        body[:, : self.ranks] = 0
        if whole < self.ranges:
            body[whole, self.ranks + keep - whole * self.range :] = 0
            body[whole + 1 :] = 0
        vector[vector.size - self.ranks :] = 0

    def rows(self, vector: Floats) -> Rows:
        """Where its data is."""
        return Rows(vector, self._begin + self.ranks, self.range, self._row)

    def parts(self, size: int) -> Iterator[tuple[slice, slice]]:
        """The first `size` elements of the data in parts that stay in a core's cache: ranges, and their elements."""
        rows = max(1, _PART // self.range)
        for first in range(0, -(-size // self.range), rows):
            end = min(first + rows, -(-size // self.range))
            yield slice(first, end), slice(first * self.range, min(end * self.range, size))

    def put(self, vector: Floats, data: Floats) -> None:
        """Puts data in, at most as much as there is room for."""
        body = self._body(vector)
        whole = data.size // self.range
        body[:whole, self.ranks :] = data[: whole * self.range].reshape(whole, self.range)
        if whole < self.ranges:
            rest = data[whole * self.range :]
            body[whole, self.ranks : self.ranks + rest.size] = rest

    def mark(self, vector: Floats, rank: int, marks: Floats | None = None) -> None:
        """Puts this rank's marks in: above 0, 1 each for None."""
        marks = np.ones(self.ranges + 1, np.float32) if marks is None else marks
        self._body(vector)[:, rank] = marks[:-1]
        vector[vector.size - self.ranks + rank] = marks[-1]

    def data(self, vector: Floats, size: int) -> Floats:
        """A copy of the first `size` elements of the data."""
        return np.ascontiguousarray(self._body(vector)[:, self.ranks :]).reshape(-1)[:size]

    def heads(self, vector: Floats) -> dict[int, Head]:
        """By rank, of those that are in the sum."""
        found = {rank: head_of(vector[rank * HEAD : (rank + 1) * HEAD]) for rank in range(self.ranks)}
        return {rank: head for rank, head in found.items() if head is not None}

    def holds(self, vector: Floats) -> Bools:
        """For each range and each rank, whether the rank is in the sum."""
        marks = self._came(vector)
        return np.asarray(marks[:-1] & marks[1:])

    def touches(self, vector: Floats) -> Bools:
        """For each rank, whether any mark of it came."""
        return np.asarray(self._came(vector).any(axis=0))

    def keep_marks_out(self, residual: Floats) -> None:
        """Zeroes what is not data, in what rounding took."""
        residual[: self._begin] = 0
        residual[residual.size - self.ranks :] = 0
        self._body(residual)[:, : self.ranks] = 0

    def take_back(self, residual: Floats, before: Floats, lacking: Bools) -> None:
        """Restores what rounding took in the ranges that are `lacking`: what was sent there reached nobody."""
        self._body(residual)[lacking] = self._body(before)[lacking]

    def _came(self, vector: Floats) -> Bools:
        """For each group of marks and each rank, whether its mark is in the sum."""
        last = vector[vector.size - self.ranks :][None]
        return np.asarray(np.concatenate([self._body(vector)[:, : self.ranks], last]) > 0)

    def _body(self, vector: Floats) -> Floats:
        return vector[self._begin : self._begin + self.ranges * self._row].reshape(self.ranges, self._row)
