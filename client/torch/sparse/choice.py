# SPDX-License-Identifier: Apache-2.0
"""Dense or something else, by what either took: for one bucket, and alike on all ranks, for all of them feed it the
same times: the sums over all ranks that a `HookState` exchanges.

Ranks cannot choose apart, since an op goes one way on all of them. So there is no clock in here: the steps themselves
say when to look at the other ways again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

from ultima.torch.hooks.loss_budget import BucketKey

PROBES = 5
"""Steps in which a way is measured before it is judged; the first of them is not counted."""
KEPT = 9
AGAIN = 200
"""After so many steps the other ways are measured once more: networks and densities change."""


class Choice:
    """Of one bucket, between ways by name; the first of them where it makes no difference. Can be pickled."""

    def __init__(self, ways: Sequence[str]) -> None:
        self._times: dict[str, deque[float]] = {way: deque(maxlen=KEPT) for way in ways}
        self._steps = dict.fromkeys(ways, 0)
        self._since = 0
        self._looks: list[str] = []
        self._best = ways[0]

    def way(self) -> str:
        """How the next step goes: first some steps in each way, and from then on as took least."""
        for way, steps in self._steps.items():
            if steps < PROBES:
                return way
        return self._looks[-1] if self._looks else self._best

    def took(self, way: str, seconds: float) -> None:
        """A step is over. |seconds|: the mean over all ranks, from the bucket's being ready to its average."""
        self._steps[way] += 1
        if self._steps[way] > 1:
            self._times[way].append(seconds)
        if min(self._steps.values()) < PROBES:
            return
        if self._looks:
            self._looks.pop()
        elif self._since < AGAIN:
            self._since += 1
        else:  # PROBES of each are more than half of what is kept
            self._since, self._looks = 0, [way for way in self._steps if way != self._best for _ in range(PROBES)]
        if not self._looks:
            self._best = min(self._times, key=lambda each: median(self._times[each]))

    def seconds(self, way: str) -> float | None:
        """The median of what a way took lately; None if it was not measured yet."""
        return median(self._times[way]) if self._times[way] else None


class Ways:
    """The ways of all buckets of one model, and what they took. |auto|: whether that decides the next ones."""

    def __init__(self, names: Sequence[str], auto: bool) -> None:
        self.auto = auto
        self._names = tuple(names)
        self._choices: dict[BucketKey, Choice] = {}
        self._times: dict[BucketKey, list[float]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_times": {}}

    def choice(self, key: BucketKey) -> Choice:
        """Of a bucket."""
        return self._choices.setdefault(key, Choice(self._names))

    def ended(self, key: BucketKey, way: str, seconds: float) -> None:
        """What a bucket took on this rank. A way that is none of these was not chosen here."""
        if self.auto and way in self._names:
            times = self._times.setdefault(key, [0.0, 0.0, 0.0])
            times[:] = times[0] + 1, times[1] + self._names.index(way), times[2] + seconds

    def facts(self, key: BucketKey) -> tuple[float, ...]:
        """What this rank tells the others of a bucket: how often it went, by which ways, and how long that took."""
        return tuple(self._times.pop(key, (0.0, 0.0, 0.0))) if self.auto else ()

    def learn(self, key: BucketKey, sums: Sequence[float]) -> None:
        """What all ranks told, added up."""
        if sums and sums[0]:
            self.choice(key).took(self._names[round(sums[1] / sums[0])], sums[2] / sums[0])
