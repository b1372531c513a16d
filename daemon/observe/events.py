# SPDX-License-Identifier: Apache-2.0
"""What has happened on this host: one line each, for `ultima events`. Names of kinds are listed in docs/operations.md.

Only what changes is an event, never a single op. A kind that comes in floods is cut: so many at once, then one every
few seconds, and the next one that passes says how many were left out.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

BYTES_MAX = 256 << 10  # of events that nobody has been told yet, or that a slow follower may lag behind
EVENT_BYTES = 250  # of an event besides its texts: its object and its numbers
AT_ONCE, SECONDS_EACH = 64, 2.0
# Counted from 0 on, so that Prometheus sees the first one of a kind that somebody is to be told of.
COUNTED_FROM_0 = (
    *(
        "daemon_stopping",
        "desync",
        "history_lost",
        "host_flaps",
        "host_goes",
        "host_gone",
        "ops_not_complete",
        "progress_stalled",
    ),
    *("protocol_violated", "rank_died", "replicas_differ", "udp_blocked"),
)
LEVELS = ("info", "warning", "error")


@dataclass(frozen=True, slots=True)
class HostEvent:
    """See the module. `number` counts from 1 since the daemon's start; `at_ns` is since 1970. `rank` is that of the job
    and `host` the other host, as address:port of its daemon, that it is about; None and "" where it is about none.
    """

    number: int
    at_ns: int
    kind: str
    job: str
    text: str
    level: str
    rank: int | None = None
    host: str = ""

    @property
    def bytes(self) -> int:
        """About what it takes of memory."""
        return EVENT_BYTES + len(self.kind) + len(self.job) + len(self.text) + len(self.host)


class EventLog:
    """See the module. It belongs to the event loop."""

    def __init__(self, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`wall` tells nanoseconds since 1970, `monotonic` seconds."""
        self._wall, self._monotonic = wall, monotonic
        self._events: deque[HostEvent] = deque()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED_FROM_0, 0))
        """Events since the start, by kind."""
        self._bytes = 0
        self._number = 0
        self._left: dict[str, tuple[float, float, int]] = {}
        """Per kind how many may still come, as of when, and how many were left out."""
        self._followers: set[asyncio.Event] = set()

    @property
    def last(self) -> int:
        """Number of the newest event; 0 while there is none."""
        return self._number

    def note(
        self, kind: str, text: str, job: str = "", level: str = "info", *, rank: int | None = None, host: str = ""
    ) -> None:
        """Something has happened. It is counted also where it is left out."""
        self.counts[kind] += 1
        now = self._monotonic()
        left, at, left_out = self._left.get(kind, (float(AT_ONCE), now, 0))
        left = min(AT_ONCE, left + (now - at) / SECONDS_EACH)
        if left < 1:
            self._left[kind] = (left, now, left_out + 1)
            return
        self._left[kind] = (left - 1, now, 0)
        if left_out:
            text = f"{text} ({left_out} more of this kind were left out)"
        self._number += 1
        event = HostEvent(self._number, self._wall(), kind, job, text, level, rank, host)
        self._events.append(event)
        self._bytes += event.bytes
        while self._bytes > BYTES_MAX:
            self._bytes -= self._events.popleft().bytes
        for follower in self._followers:
            follower.set()

    def after(self, number: int) -> list[HostEvent]:
        """Those that came later than the event with this number, oldest first."""
        newer = min(self._number - number, len(self._events))
        return list(self._events)[len(self._events) - newer :] if newer > 0 else []

    async def follow(self, number: int) -> AsyncIterator[list[HostEvent]]:
        """Those after `number` now and as they come, never an empty list."""
        woken = asyncio.Event()
        self._followers.add(woken)
        try:
            while True:
                woken.clear()
                found = self.after(number)
                if found:
                    number = found[-1].number
                    yield found
                else:
                    await woken.wait()
        finally:
            self._followers.discard(woken)
