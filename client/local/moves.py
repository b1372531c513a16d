# SPDX-License-Identifier: Apache-2.0
"""How a rank's own parameters follow the outer model: at once, or when its trainer has ended a long step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ultima.local.rules import Floats
from ultima.local.values import Values
from ultima.local.vector import Bools


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

    def add(self, low: int, before: Floats, after: Floats, mine: Bools, sent: Floats | None, now: bool) -> None:
        """Notes a move, of which copies are kept; with `now` it is made at once. Where one is due already, nothing of
        this rank is in the new one."""
        last = self._due.get(low)
        if last is None:
            self._due[low] = _Move(before.copy(), after.copy(), mine, sent)
        else:
            assert not mine.any(), "a rank gives after its parameters have followed"
            self._due[low] = replace(last, after=after.copy())
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
            local = np.empty(move.before.size, np.float32)
            self._values.read(low, local)
            moved = local + (move.after - move.before)
            if move.sent is not None and move.mine.any():
                since = np.float32(1 - self._alpha) * (local - move.sent)
                inside = np.repeat(move.mine, self._elements)[: local.size]
                np.copyto(moved, move.after + since, where=inside)
            self._values.write(low, moved)
        self._due.clear()
