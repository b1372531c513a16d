# SPDX-License-Identifier: Apache-2.0
"""How long a host holds ops back while a new epoch is agreed on: so that it opens none by the old one meanwhile.

A hold begins with a promise and ends with the epoch. A proposer may die in between, so it ends by itself, too, and then
rests for a while: pauses cannot add up.

An agreement takes two round trips and what the daemons of this job need to hear, think and tell. On a machine without
CPU time to spare that is much more than on an idle one. A hold that ends too early has two epochs open one op, so each
host measures how long the last agreements took, and the next hold lasts for several times the longest.
"""

from __future__ import annotations

import math
from collections import deque

NEWS_S = 0.1  # a hold lasts for two round trips and this at least: both answers and the news
TOOK_KEPT, TIMES = 4, 3  # the longest of so many agreements, and how many times as long the next one may take
MOST_S = 0.5  # of a hold, beside two round trips: for so long ops wait in vain where a proposer has died


class Holding:
    """Of one host. Times are seconds of any clock."""

    def __init__(self) -> None:
        self.hold: tuple[int, float] | None = None
        """The op from which ops are held back, and until when."""
        self._rest_until = -math.inf
        self._promised = math.nan
        self._took: deque[float] = deque(maxlen=TOOK_KEPT)

    def begin(self, now: float, op: int, round_trip: float) -> None:
        """A promise was given. Ops are held back unless they are already, or rest from that."""
        self._promised = now
        if self.hold is None and now >= self._rest_until:
            self.hold = op, now + self.lasts(round_trip)

    def lasts(self, round_trip: float) -> float:
        """Seconds of the next hold."""
        news = min(MOST_S, TIMES * max(self._took, default=0.0))
        return max(least(round_trip), 2 * round_trip + news)

    def decided(self, now: float) -> None:
        """Another epoch holds: what was promised is fulfilled, or of no account any more. A hold that ended before was
        not in vain."""
        if not math.isnan(self._promised):
            self._took.append(now - self._promised)
        self.hold, self._promised, self._rest_until = None, math.nan, -math.inf

    def end(self, now: float, rest_s: float) -> None:
        """Its time is over, if it is: ops are not held again for `rest_s`."""
        if self.hold is not None and now >= self.hold[1]:
            self.hold, self._rest_until = None, now + rest_s


def least(round_trip: float) -> float:
    """Seconds of a hold where agreements are fast."""
    return 2 * round_trip + NEWS_S
