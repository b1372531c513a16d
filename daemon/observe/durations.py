# SPDX-License-Identifier: Apache-2.0
"""How long ops took, counted in two ways: in steps of a sixteenth for percentiles, and in the bounds of a metric."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

STEPS_BITS = 4  # 16 steps in each octave: a percentile is at most a sixteenth too high
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BOUNDS_NS = tuple(int(bound * 1e9) for bound in BOUNDS_S)


def step_of(ns: int) -> int:
    """The step in which a duration lies."""
    shift = max(ns.bit_length() - 1 - STEPS_BITS, 0)
    return (shift << STEPS_BITS) + (ns >> shift)


def top_of(step: int) -> int:
    """The longest duration in a step, in ns."""
    if step < 2 << STEPS_BITS:
        return step
    shift = (step >> STEPS_BITS) - 1
    return (((step & (1 << STEPS_BITS) - 1) | 1 << STEPS_BITS) + 1 << shift) - 1


class Percentiles:
    """Durations of any number of ops, in little memory."""

    def __init__(self) -> None:
        self._count: Counter[int] = Counter()

    def add(self, ns: int) -> None:
        """One more."""
        self._count[step_of(ns)] += 1

    def at(self, percent: float) -> int:
        """The least step's top, in ns, that `percent` of them did not exceed; 0 while there is none."""
        left = max(1, -(-self._count.total() * percent // 100))
        for step in sorted(self._count):
            left -= self._count[step]
            if left <= 0:
                return top_of(step)
        return 0


class Histogram:
    """What a Prometheus histogram needs: how many took at most each bound, and the sum of all."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Per bound those that are above the bound before it; the last are above all."""
        self.sum_ns = 0

    def add(self, ns: int) -> None:
        """One more."""
        self.counts[bisect_left(_BOUNDS_NS, ns)] += 1
        self.sum_ns += ns
