# SPDX-License-Identifier: Apache-2.0
"""How long a host of `epoch_world.py` holds ops back, against what its agreements took.

A hold lasts for two round trips and 0.1 s, or for three times the longest agreement that the host had so far, of which
the product remembers the last few; never for 0.5 s more than two round trips. After one in vain there is none for two
seconds; one that an epoch came after was not in vain.
"""

from __future__ import annotations

from collections.abc import Callable

from ultima.daemon.jobs.decree import REST_S, Seat
from ultima.daemon.jobs.epoch import NO_BALLOT, Word
from ultima.daemon.jobs.holding import MOST_S, NEWS_S, TIMES

Hold = tuple[int, float] | None
AGES_AGO = -10.0


class Pauses:
    """Of one life of a host. Times are seconds of the world's clock."""

    def __init__(self) -> None:
        self._vain = AGES_AGO
        self._promised, self._at, self._longest = NO_BALLOT, 0.0, 0.0

    def look(
        self,
        now: float,
        round_trip: float,
        before: Hold,
        seat: Seat,
        word: Word,
        came: bool,
        bad: Callable[[str], None],
    ) -> bool:
        """After a turn. before: the hold ahead of it. came: it brought another epoch. Returns whether a hold has ended
        in vain."""
        if came:
            self._vain = AGES_AGO
            if self._promised != NO_BALLOT:
                self._longest = max(self._longest, now - self._at)
        if word.promised != self._promised:
            self._promised, self._at = word.promised, now
        if seat.hold and not before:
            if now - self._vain < REST_S - 1e-9:
                bad("ops are held again soon after a pause in vain")
            most = 2 * round_trip + max(NEWS_S, min(MOST_S, TIMES * self._longest))
            if seat.hold[1] - now > most + 1e-9:
                bad(f"a hold of {seat.hold[1] - now:.3f} s: allowed: {most:.3f}")
        if before is not None and seat.hold is None and now >= before[1] and not came:
            self._vain = now
            return True
        return False
