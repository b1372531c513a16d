# SPDX-License-Identifier: Apache-2.0
"""What travels in a round: one vector, whose sum over the ranks also says who is in it, range by range.

    head of each rank | marks, data of range 0 | marks, data of range 1 | ... | marks

A receipt tells whether a rank is in all of a sum or in some of it, and not in which part. So each range of the data
stands between two groups of marks, in which each rank that gives has an element of its own: it gives 1 there, and the
others 0. A range is shorter than a packet's values. So a packet of this rank that did not come takes at least one mark
with it, unless it is the short last one of an owner's part; a range counts as this rank's if both marks around it do.

Where values travel in few bits, an element is rounded by the largest of its block. There the marks have a block of
zeros at either side, so that no block holds marks and data.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ultima.local.rules import Floats

Bools = NDArray[np.bool_]
# By form: elements from the marks of one range to those of the next, and zeros at either side of marks. A packet of an
# MTU of 1280 bytes holds some 300 values of four bytes, 600 of two, 1,200 of one and 2,340 of a half (docs/quantised).
_STRIDES = {"float32": (288, 0), "int16": (576, 64), "int8": (1152, 64), "int4": (2304, 32)}
HEAD = 192  # elements of a rank's head: three blocks, or six
_BITS = (("listens", 1), ("gave", 1), ("mend", 16), ("fragment", 16), ("turn", 32), ("weight", 32), ("digest", 32),
         ("layout", 24))  # fmt: skip
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
    text = "".join("1" if value > 0.5 else "0" for value in elements[: 1 + _TEXT_BITS + _CHECK_BITS].tolist())
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
        stride, self._pad = _STRIDES[wire]
        self.ranks = ranks
        self._marks = 2 * self._pad + ranks
        self.range = max(64, stride - self._marks)
        """Elements of data in a range."""
        self.ranges = max(1, -(-size // self.range))
        self._row = self._marks + self.range
        self.count = ranks * HEAD + self.ranges * self._row + self._marks
        """Elements of the vector."""

    def clear(self, vector: Floats, rank: int, head: Head) -> None:
        """Makes it that of a rank that gives no data."""
        vector[:] = 0
        vector[rank * HEAD : (rank + 1) * HEAD] = head.bits()

    def give(self, vector: Floats, rank: int, data: Floats) -> None:
        """Puts data in, at most as much as there is room for, and this rank's marks."""
        body = self._body(vector)
        whole = data.size // self.range
        body[:whole, self._marks :] = data[: whole * self.range].reshape(whole, self.range)
        if whole < self.ranges:
            rest = data[whole * self.range :]
            body[whole, self._marks : self._marks + rest.size] = rest
        body[:, self._pad + rank] = 1
        vector[vector.size - self._marks + self._pad + rank] = 1

    def data(self, vector: Floats, size: int) -> Floats:
        """A copy of the first `size` elements of the data."""
        return np.ascontiguousarray(self._body(vector)[:, self._marks :]).reshape(-1)[:size]

    def heads(self, vector: Floats) -> dict[int, Head]:
        """By rank, of those that are in the sum."""
        found = {rank: head_of(vector[rank * HEAD : (rank + 1) * HEAD]) for rank in range(self.ranks)}
        return {rank: head for rank, head in found.items() if head is not None}

    def holds(self, vector: Floats) -> Bools:
        """For each range and each rank, whether the rank is in the sum."""
        last = vector[vector.size - self._marks :][None, self._pad : self._pad + self.ranks]
        marks = np.concatenate([self._body(vector)[:, self._pad : self._pad + self.ranks], last]) > 0.5
        return np.asarray(marks[:-1] & marks[1:])

    def touches(self, vector: Floats) -> Bools:
        """For each rank, whether any mark of it came."""
        last = vector[vector.size - self._marks :][self._pad : self._pad + self.ranks] > 0.5
        return np.asarray((self._body(vector)[:, self._pad : self._pad + self.ranks] > 0.5).any(axis=0) | last)

    def keep_marks_out(self, residual: Floats) -> None:
        """Zeroes what is not data, in what rounding took."""
        residual[: self.ranks * HEAD] = 0
        residual[residual.size - self._marks :] = 0
        self._body(residual)[:, : self._marks] = 0

    def take_back(self, residual: Floats, before: Floats, lacking: Bools) -> None:
        """Restores what rounding took in the ranges that are `lacking`: what was sent there reached nobody."""
        self._body(residual)[lacking] = self._body(before)[lacking]

    def _body(self, vector: Floats) -> Floats:
        begin = self.ranks * HEAD
        return vector[begin : begin + self.ranges * self._row].reshape(self.ranges, self._row)
