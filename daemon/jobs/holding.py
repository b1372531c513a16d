# SPDX-License-Identifier: Apache-2.0
"""How long a host holds ops back while a new epoch is agreed on: so that it opens none by the old one meanwhile.

A hold begins with a promise and ends with the epoch. A proposer may die in between, so it ends by itself, too, and then
rests for a while: pauses cannot add up.
"""

from __future__ import annotations

import math

NEWS_S = 0.1  # a hold lasts for two round trips and this: both answers and the news


class Holding:
    """Of one host. Times are seconds of any clock."""

    def __init__(self) -> None:
        self.hold: tuple[int, float] | None = None
        """The op from which ops are held back, and until when."""
        self._rest_until = -math.inf

    def begin(self, now: float, op: int, round_trip: float) -> None:
        """A promise was given. Nothing happens while one holds already, or rests."""
        if self.hold is None and now >= self._rest_until:
            self.hold = op, now + lasts(round_trip)

    def end(self, now: float, rest_s: float) -> None:
        """Its time is over, if it is: ops are not held again for `rest_s`."""
        if self.hold is not None and now >= self.hold[1]:
            self.hold, self._rest_until = None, now + rest_s


def lasts(round_trip: float) -> float:
    """Seconds of a hold."""
    return 2 * round_trip + NEWS_S
