# SPDX-License-Identifier: Apache-2.0
"""What one job did, second by second: read from the flight recorder's ring once a second while somebody looks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from ultima.daemon.engine.engine import Status
from ultima.daemon.observe.record import TROUBLES, JobRecord, word
from ultima.daemon.observe.ring import NOBODY, Op, ops_in
from ultima.daemon.web.why import USUAL_S, WINDOW_S

SECONDS = 120
"""That are kept."""
NEWEST = 512  # ops of a second that are read; all of them are counted
FIRST = 1024  # ops that are read when the first one looks


class Second(NamedTuple):
    """Ops that ended within one second: percentiles in us of those that were read, how many, bytes that were missing,
    how many ops were not whole, and the bytes of all."""

    p50_us: int
    p99_us: int
    ops: int
    missing_bytes: int
    not_whole: int = 0
    bucket_bytes: int = 0


EMPTY = Second(0, 0, 0, 0)


class Course:
    """See the module. It belongs to the event loop."""

    def __init__(self, record: JobRecord, now_ns: int) -> None:
        """`now_ns` is CLOCK_MONOTONIC; what the ring still has of the last two minutes is read at once."""
        self.seconds: deque[Second] = deque([EMPTY] * SECONDS, SECONDS)
        self.last_ns = 0
        """When the newest op ended, monotonic; 0: there was none."""
        self._record = record
        self._window: deque[tuple[int, int, Counter[tuple[int, int]]]] = deque(maxlen=WINDOW_S)
        """Ops, those not whole, and who was to blame, of the newest seconds."""
        by_second: dict[int, list[Op]] = {}
        for op in ops_in(record.ring.copy(FIRST)):
            by_second.setdefault((now_ns - op.ended_monotonic_ns) // 10**9, []).append(op)
        for ago in range(SECONDS - 1, -1, -1):
            ops = by_second.get(ago, [])
            self._add(ops, len(ops))
        self._seen = record.ring.total

    def tick(self) -> Second:
        """Takes what has ended since the last call, which was a second ago."""
        ended = self._record.ring.total - self._seen
        self._seen += ended
        return self._add(list(ops_in(self._record.ring.copy(min(ended, NEWEST)))) if ended else [], ended)

    def _add(self, ops: Sequence[Op], count: int) -> Second:
        times = sorted(op.elapsed_ns for op in ops)
        missing = sum(op.bytes_missing for op in ops)
        second = EMPTY
        if times:
            self.last_ns = max(self.last_ns, ops[-1].ended_monotonic_ns)
            p99 = times[-(-99 * len(times) // 100) - 1]
            second = Second(
                *(times[(len(times) - 1) // 2] // 1000, p99 // 1000, count, missing),
                sum(op.status != Status.COMPLETE for op in ops),
                sum(op.bucket_bytes for op in ops),
            )
        self.seconds.append(second)
        blamed = Counter((op.culprit, op.trouble) for op in ops if op.culprit != NOBODY)
        self._window.append((len(ops), sum(op.status != Status.COMPLETE for op in ops), blamed))
        return second

    def recent(self, names: Sequence[str]) -> tuple[int, int, Counter[tuple[str, str]]]:
        """Of the window: ops that were read, those not whole, and how many each host is to blame for, and why. `names`
        are those of the hosts for people, by index."""
        life = self._record.life
        blamed: Counter[tuple[str, str]] = Counter()
        for _, _, found in self._window:
            for (host, trouble), count in found.items():
                name = names[host] if host < len(names) else "a host"
                here = life is not None and host == life.host_index
                blamed["this host" if here else name, word(TROUBLES, trouble)] += count
        return sum(row[0] for row in self._window), sum(row[1] for row in self._window), blamed

    def medians_ms(self) -> tuple[float, float]:
        """Median of the seconds' medians: of the window, and of the time before it; 0 where too little is known."""
        rows = list(self.seconds)
        now = [row.p50_us for row in rows[-WINDOW_S:] if row.ops]
        before = [row.p50_us for row in rows[:-WINDOW_S] if row.ops]
        return (
            median(now) / 1e3 if now else 0.0,
            median(before) / 1e3 if len(before) >= USUAL_S else 0.0,
        )
