# SPDX-License-Identifier: Apache-2.0
"""How a rank's own parameters follow the outer model: at once, or when its trainer has ended a long step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ultima.local.round_kernels import Bools, Floats, follow
from ultima.local.values import Values


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
        self._spare: Floats | None = None

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

    def stepping(
        self, low: int, theta: Floats, mine: Bools, sent: Floats | None, parts: Iterable[tuple[slice, slice]], now: bool
    ) -> Iterator[tuple[slice, slice]]:
        """Yields the parts of a fragment of the outer model, ranges and elements: in each of them the caller lets
        `theta` step. The parameters follow part by part, while a core's cache holds it, or as `add` says."""
        if not now:
            before = theta.copy()
            yield from parts
            self.add(low, before, theta, mine, sent, now)
            return
        assert not self._due, "they have followed"
        spans, local = self._values.spans(low, theta.size), None
        if spans is None:
            local = self._read(low, theta.size)
            spans = [(slice(0, theta.size), local)]
        place = 0
        for ranges, part in parts:
            was = theta[part].copy()
            yield ranges, part
            while place < len(spans) and spans[place][0].start < part.stop:
                span, memory = spans[place]
                both = slice(max(part.start, span.start), min(part.stop, span.stop))
                before = was[both.start - part.start : both.stop - part.start]
                self._follow(memory[both.start - span.start : both.stop - span.start], sent, before, theta, both, mine)
                if span.stop > part.stop:
                    break
                place += 1
        if local is not None:
            self._values.write(low, local)
        self._spare = sent

    def _follow(
        self, local: Floats, sent: Floats | None, before: Floats, after: Floats, which: slice, mine: Bools
    ) -> None:
        """Some elements of a fragment: `which`, of what is given of all."""
        given = None if sent is None else sent[which]
        follow(local, given, before, after[which], self._elements, which.start, mine, 1 - self._alpha)

    def room(self, size: int) -> Floats:
        """For what is sent next."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.size == size else np.empty(size, np.float32)

    def settle(self) -> None:
        """Moves the parameters, in the trainer's own thread: what is in a round was theirs; what is not, stays."""
        for low, move in self._due.items():
            local = self._read(low, move.before.size)
            self._follow(local, move.sent, move.before, move.after, slice(0, local.size), move.mine)
            self._values.write(low, local)
        self._due.clear()

    def _read(self, low: int, size: int) -> Floats:
        if self._local.size < size:
            self._local = np.empty(size, np.float32)
        local = self._local[:size]
        self._values.read(low, local)
        return local
