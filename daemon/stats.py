# SPDX-License-Identifier: Apache-2.0
"""What became of the ops of one job, from the engine's events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable

from ultima.daemon.engine import Event, Status

RECENT_OPS = 1024


class OpStats:
    """Counts since the job began here, and how long its recent ops took."""

    def __init__(self) -> None:
        self.count = dict.fromkeys(Status, 0)
        self.missing_bytes = 0
        self.diverged = 0
        self.last_diverged = -1
        self._elapsed_ns: deque[int] = deque(maxlen=RECENT_OPS)

    def op_done(self, event: Event) -> None:
        """Takes an OP_DONE event: a is the status, b the time it took in ns, c the bytes that are missing."""
        try:
            self.count[Status(event.a)] += 1
        except ValueError:
            return
        self.missing_bytes += event.c
        self._elapsed_ns.append(event.b)

    def op_diverged(self, event: Event) -> None:
        """Takes a DIVERGED event: some other host ended that op with another result."""
        self.diverged += 1
        self.last_diverged = max(self.last_diverged, event.op_seq)

    def percentile_us(self, percent: float) -> int:
        """The least time that `percent` of the recent ops did not exceed, in us; 0 while there is none."""
        if not self._elapsed_ns:
            return 0
        ordered = sorted(self._elapsed_ns)
        rank = max(1, -(-len(ordered) * percent // 100))
        return ordered[int(rank) - 1] // 1000


class Seldom:
    """Lets a kind of log line through once in `seconds`, and counts the rest."""

    def __init__(self, seconds: float = 10.0, kinds_max: int = 256) -> None:
        self._seconds, self._kinds_max = seconds, kinds_max
        self._last: dict[Hashable, tuple[float, int]] = {}

    def allows(self, kind: Hashable) -> int:
        """0 for no; else 1 and the number of lines of this kind that were held back since the last one."""
        now = time.monotonic()
        at, held = self._last.get(kind, (float("-inf"), 0))
        if now - at < self._seconds:
            self._last[kind] = (at, held + 1)
            return 0
        if kind not in self._last and len(self._last) >= self._kinds_max:
            self._last.clear()
        self._last[kind] = (now, 0)
        return 1 + held
