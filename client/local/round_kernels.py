# SPDX-License-Identifier: Apache-2.0
"""The C kernels of a round (`transport_c/kernels/outer.h`) over numpy arrays: one short function each.

Arrays are C-contiguous and one-dimensional, of float32 where nothing else is said. Callers see to that, and to sizes:
these functions do not. They keep no array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ultima.base.native import ffi, lib

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


def _at(array: Floats, writable: bool = False) -> Any:
    return ffi.from_buffer("float[]", array, require_writable=writable)


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the data of a vector lies: `range` elements from `first` on, and again after `row` elements."""

    vector: Floats
    first: int
    range: int
    row: int

    def _of(self, size: int, skip: int = 0) -> Any:
        """`size` elements of the data, without the first `skip` rows."""
        rows = ffi.new("ut_outer_rows *")
        rows.data = _at(self.vector, True) + self.first + skip * self.row
        rows.range, rows.row, rows.n = self.range, self.row, size
        return rows

    def give(self, theta: Floats, sent: Floats, weight: float) -> None:
        """Puts weight (theta - sent) in."""
        lib.ut_outer_give(self._of(theta.size), _at(theta), _at(sent, True), weight, ffi.NULL)

    def give_bounded(self, theta: Floats, sent: Floats, weight: float, bounds: Floats, near: int, most: float) -> None:
        """The same, with no element above `most`, and the `near` elements at either side of the k-th group of marks not
        above bounds[k]: `sent` changes such that what was not given is done by nobody yet."""
        within = ffi.new("ut_outer_bounds *")
        within.bounds, within.near, within.most = _at(bounds), near, most
        lib.ut_outer_give(self._of(theta.size), _at(theta), _at(sent, True), weight, within)

    def step(self, theta: Floats, momentum: Floats, rule: Rule, skip: int = 0) -> None:
        """An outer step of these elements by the sums in the rows from `skip` on."""
        told = ffi.new("ut_outer_rule *")
        told.divisor, told.lr, told.momentum, told.plain_from = rule.divisor, rule.lr, rule.momentum, rule.plain_from
        lib.ut_outer_step(self._of(theta.size, skip), _at(theta, True), _at(momentum, True), told)


@dataclass(frozen=True, slots=True)
class Rule:
    """Of an outer step. plain_from: elements from here on are averaged alone."""

    divisor: float
    lr: float
    momentum: float
    plain_from: int


def follow(
    local: Floats, sent: Floats | None, before: Floats, theta: Floats, size: int, first: int, mine: Bools, keep: float
) -> None:
    """Elements `first` on of a rank's own parameters follow the outer model, which was `before`.

    Where `mine` says so of `size` elements, what they did since `sent`, times `keep`, is added to the outer model; else
    they move as that did.
    """
    given = ffi.NULL if sent is None else _at(sent)
    where = ffi.from_buffer("bool[]", mine)
    lib.ut_outer_follow(_at(local, True), given, _at(before), _at(theta), local.size, size, first, where, keep)


def squares(values: Floats, size: int) -> NDArray[np.float64]:
    """Of each `size` elements the sum of their squares, in float64."""
    found = np.zeros(-(-values.size // size), np.float64)
    lib.ut_outer_squares(_at(values), values.size, size, ffi.from_buffer("double[]", found, require_writable=True))
    return found


def first_nonfinite(values: Floats) -> int | None:
    """Where the first NaN or infinity is; None if there is none."""
    found = int(lib.ut_outer_nonfinite(_at(values), values.size))
    return found if found < values.size else None
