# SPDX-License-Identifier: Apache-2.0
"""Dense or sparse, by what either took: for one bucket, and alike on all ranks, for all of them feed it the same
times: the sums over all ranks that a `HookState` exchanges.

Ranks cannot choose apart, since an op is dense or sparse on all of them. So there is no clock in here: the steps
themselves say when to look at the other way again.
"""

from __future__ import annotations

from collections import deque
from statistics import median

PROBES = 5
"""Steps in which a way is measured before it is judged; the first of them is not counted."""
KEPT = 9
AGAIN = 200
"""After so many steps the other way is measured once more: networks and densities change."""


class Choice:
    """Of one bucket. Plain numbers: can be pickled."""

    def __init__(self) -> None:
        self._times: dict[bool, deque[float]] = {False: deque(maxlen=KEPT), True: deque(maxlen=KEPT)}
        self._steps = {False: 0, True: 0}
        self._since = self._looking = 0
        self._best = False

    def sparse(self) -> bool:
        """Whether the next step goes sparse: first some dense, then some sparse, and from then on what takes less."""
        for way in (False, True):
            if self._steps[way] < PROBES:
                return way
        return self._best ^ (self._looking > 0)

    def took(self, sparse: bool, seconds: float) -> None:
        """A step is over. |seconds|: the mean over all ranks, from the bucket's being ready to its average."""
        self._steps[sparse] += 1
        if self._steps[sparse] > 1:
            self._times[sparse].append(seconds)
        if min(self._steps.values()) < PROBES:
            return
        if self._looking:
            self._looking -= 1
        elif self._since < AGAIN:
            self._since += 1
        else:
            self._since, self._looking = 0, PROBES  # more than half of what is kept
        if not self._looking:
            dense, other = self.seconds(False), self.seconds(True)
            self._best = dense is not None and other is not None and other < dense

    def seconds(self, sparse: bool) -> float | None:
        """The median of what a way took lately; None if it was not measured yet."""
        return median(self._times[sparse]) if self._times[sparse] else None
