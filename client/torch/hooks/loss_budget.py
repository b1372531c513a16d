# SPDX-License-Identifier: Apache-2.0
"""How much of the gradients may go missing, and what has.

The account is kept per bucket, in bytes that the ranks have added up among themselves: all ranks hold the same account
and so decide alike, which they must, for an op's mode has to be the same on all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ultima.base.checks import check_number, check_whole


@dataclass(frozen=True, slots=True)
class BucketKey:
    """What makes two buckets of different steps the same. DDP cuts other ones after the first step."""

    index: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LossBudget:
    """At most |share| (0 to 1) of a bucket's bytes may be missing over its last |window| steps. Once that is used up,
    the bucket goes in reliable mode until the window has moved on far enough.
    """

    share: float = 0.01
    window: int = 100

    def __post_init__(self) -> None:
        check_number(self.share, "share", 0, 1)
        check_whole(self.window, "window", 1)


class Account:
    """What each bucket lost in the last steps. Plain numbers: can be pickled."""

    def __init__(self, budget: LossBudget) -> None:
        self._budget = budget
        self._steps: dict[BucketKey, deque[tuple[float, float]]] = {}

    def add(self, key: BucketKey, missing: float, expected: float) -> None:
        """A step is over in which |missing| of |expected| bytes did not come, on all ranks together."""
        self._steps.setdefault(key, deque(maxlen=self._budget.window)).append((missing, expected))

    def share(self, key: BucketKey) -> float:
        """Share of the bucket's bytes that is missing over the window."""
        steps = self._steps.get(key, ())
        expected = sum(each for _, each in steps)
        return sum(missing for missing, _ in steps) / expected if expected else 0.0

    def buckets(self) -> Iterable[BucketKey]:
        """Those that were ever sent."""
        return self._steps.keys()

    def used_up(self, key: BucketKey) -> bool:
        """Whether the bucket may lose no more for now."""
        return self.share(key) > self._budget.share
