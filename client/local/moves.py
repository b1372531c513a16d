# SPDX-License-Identifier: Apache-2.0
"""How a rank's own parameters follow the outer model: at once, or when its trainer has ended a long step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ultima.local.rules import Floats
from ultima.local.values import Values
from ultima.local.vector import Bools

_BLOCK = 1 << 14  # elements: five arrays of so many stay in a core's cache


@dataclass(frozen=True, slots=True)
class _Move:
    """The outer model of a fragment went from `before` to `after`; in ranges that are `mine` by what `sent` held."""

    before: Floats
    after: Floats
    mine: Bools
    sent: Floats | None


class Moves:
    """What the outer model did since the trainer's parameters last followed it, by the first element of a fragment.

    elements: of a range. alpha: the share of the steps made since a rank gave that is given up.
    """

    def __init__(self, values: Values, elements: int, alpha: float) -> None:
        self._values, self._elements, self._alpha = values, elements, alpha
        self._due: dict[int, _Move] = {}
        self._held: dict[int, Floats] = {}
        self._local = np.empty(0, np.float32)

    def add(self, low: int, before: Floats, after: Floats, mine: Bools, sent: Floats | None, now: bool) -> None:
        """Notes a move; with `now` it is made at once, else `before` is kept, and a copy of `after`. Where one is due
        already, nothing of this rank is in the new one."""
        last, after = self._due.get(low), after if now else after.copy()
        if last is None:
            self._due[low] = _Move(before, after, mine, sent)
        else:
            assert not mine.any(), "a rank gives after its parameters have followed"
            self._due[low] = replace(last, after=after)
        if now:
            self.settle()

    def hold(self, low: int, sent: Floats | None) -> None:
        """No result came of a round for which this rank gave: others may have one that it is in."""
        if sent is not None:
            self._held[low] = sent

    def learn(self, low: int, before: Floats, after: Floats, ranges: int, taken: bool, now: bool) -> None:
        """As `add`, of the state that others passed on. taken: what this rank gave without a result is in it."""
        sent = self._held.pop(low, None)
        mine = np.full(ranges, taken and sent is not None and low not in self._due)
        self.add(low, before, after, mine, sent, now)

    def settle(self) -> None:
        """Moves the parameters, in the trainer's own thread: what is in a round was theirs; what is not, stays."""
        for low, move in self._due.items():
            size = move.before.size
            if self._local.size < size:
                self._local = np.empty(size, np.float32)
            local = self._local[:size]
            self._values.read(low, local)
            for part, mine in self._parts(move, size):
                if mine and move.sent is not None:
                    local[part] -= move.sent[part]
                    local[part] *= np.float32(1 - self._alpha)
                    local[part] += move.after[part]
                else:
                    local[part] += move.after[part] - move.before[part]
            self._values.write(low, local)
        self._due.clear()

    def _parts(self, move: _Move, size: int) -> Iterator[tuple[slice, bool]]:
        """A fragment in parts that stay in a cache, of ranges that are all this rank's or all not."""
        ends = [*(np.flatnonzero(np.diff(move.mine)) + 1).tolist(), len(move.mine)]
        for first, end in pairwise([0, *ends]):
            low, high = first * self._elements, min(end * self._elements, size)
            for at in range(low, high, _BLOCK):
                yield slice(at, min(at + _BLOCK, high)), bool(move.mine[first])
