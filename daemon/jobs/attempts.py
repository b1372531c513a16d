# SPDX-License-Identifier: Apache-2.0
"""Since when a proposer wants a child of an epoch, and when it asks for one again after an attempt that failed.

Two proposers that ask at the same time outbid each other. An attempt takes two round trips, so who failed again leaves
the others that time, and as much again with each further failure in a row. Else two hosts that are far apart would
outbid each other for ever.
"""

from __future__ import annotations

import math

from ultima.daemon.jobs.epoch import PATIENCE_S

ANSWER_S = 0.01  # that a daemon may take for an answer, beside the way there and back
RETRY_S = 0.04  # at least, after an attempt that failed
FAILED_MOST = 4  # failures in a row that make the next rest longer


def answer_s(round_trip: float) -> float:
    """Seconds that a proposer waits for promises; for acceptances it waits twice as long. It is also what an attempt
    takes whose answers are not late: one round trip for promises, and one for acceptances."""
    return ANSWER_S + 2 * round_trip


class Attempts:
    """Of one host. Times are seconds of any clock."""

    def __init__(self, slot: int) -> None:
        self._apart = 1 + slot % 8 / 8  # so that two who failed together do not ask together again
        self._failed = 0
        self.wanted: float | None = None
        """Since when it wants a child; None if it wants none."""
        self.asked_at = self.retry_at = self.slow = -math.inf
        """When it asked; from when on it may ask again; when answers last came too late for a change without hurry."""

    def waited(self, now: float, seconds: float = PATIENCE_S) -> bool:
        """Whether it has wanted a child for so long. Adds, as the timer does that wakes it at that time: a difference
        may be rounded to less, and then nothing would call it again."""
        return self.wanted is not None and now >= self.wanted + seconds

    def want(self, now: float, wanted: bool) -> None:
        """Whether it wants a child."""
        if not wanted:
            self.over()
        elif self.wanted is None:
            self.wanted = now

    def ready(self, elder: int, round_trip: float) -> float:
        """When it may ask, where `elder` members that are older may want a child, too; something is wanted."""
        assert self.wanted is not None
        return max(self.wanted + max(PATIENCE_S, answer_s(round_trip)) * elder, self.retry_at)

    def fail(self, now: float, round_trip: float) -> None:
        """An attempt failed. round_trip: to the farthest host, in seconds."""
        self._failed = min(self._failed + 1, FAILED_MOST)
        self.retry_at = now + max(RETRY_S, answer_s(round_trip) * (self._failed - 1)) * self._apart

    def over(self) -> None:
        """Nothing is wanted, or another epoch holds."""
        self.wanted, self._failed = None, 0
