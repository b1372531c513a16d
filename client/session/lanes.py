# SPDX-License-Identifier: Apache-2.0
"""The lanes of a session: which an op uses, whether there is room in them, and whether an op is split over all."""

from __future__ import annotations

from ultima.base.words import COLLECTIVES, RING_ENTRIES
from ultima.session.op import Op

PORTION_BYTES = 1 << 20
"""A portion of an op has as much at least: two turns of an engine, so that another thread is worth waking."""
BURST_BYTES = 1 << 16
"""And what it has for each host fills a burst: in smaller ones packets cost more."""
_ALLREDUCE = COLLECTIVES["allreduce"]


class Lanes:
    """What is outstanding in each lane. Op s uses lane s modulo their number, and one that is split uses all. It
    belongs to its session, whose locks guard it.
    """

    def __init__(self, lanes: int, portions: int, hosts: int) -> None:
        """`portions`: into how many a large op is split, 1 or `lanes`. All ranks of a job are told the same."""
        self._outstanding = [0] * lanes
        self._portions = portions
        self._least = portions * max(PORTION_BYTES, hosts * BURST_BYTES)

    def __len__(self) -> int:
        return len(self._outstanding)

    def portions_of(self, op: Op) -> int:
        """Into how many `op` is split; the same on all ranks that call the same."""
        dense = op.layout.collective == _ALLREDUCE and op.layout.sparse is None
        return self._portions if dense and op.nbytes >= self._least else 1

    def of(self, op: Op) -> range:
        """Those that an op with a number uses."""
        first = op.seq % len(self)
        return range(first, first + op.portions)

    def have_room(self, op: Op) -> bool:
        """Whether it can be submitted to all of its lanes now."""
        return all(self._outstanding[lane] < RING_ENTRIES for lane in self.of(op))

    def submitted(self, op: Op) -> None:
        for lane in self.of(op):
            self._outstanding[lane] += 1

    def ended(self, op: Op) -> None:
        for lane in self.of(op):
            self._outstanding[lane] -= 1
