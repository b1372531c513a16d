# SPDX-License-Identifier: Apache-2.0
"""Ops that trainers split over the engines of a host: what is told of their portions, until all of them have been.

The portions of an op have numbers in a row, from a multiple of how many they are; the op has that of the first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

Told = TypeVar("Told")
OPEN_MAX = 64
"""Ops of which some portions are known: what is missing of older ones will not come."""


class Portion(NamedTuple):
    """Which of how many portions, from 0."""

    at: int = 0
    portions: int = 1


def portion_of(byte: int) -> Portion:
    """Of the byte in which the core says it (core/base/portion.h); 0 for an op that is not split."""
    return Portion(byte & 15, byte >> 4) if byte else Portion()


class Portions(Generic[Told]):
    """What has been told of some portions of ops."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, dict[int, Told]] = OrderedDict()

    def add(self, op_seq: int, byte: int, told: Told) -> list[Told] | None:
        """Takes what is told of one op; of all portions of an op, in their order, if this was the last one."""
        portion = portion_of(byte)
        if portion.portions == 1:
            return [told]
        first = op_seq - portion.at
        rest = self._open.setdefault(first, {})
        rest[portion.at] = told
        if len(rest) < portion.portions:
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
            return None
        del self._open[first]
        return [rest[at] for at in range(portion.portions)]
