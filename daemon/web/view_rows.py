# SPDX-License-Identifier: Apache-2.0
"""The newest changes of the views of all jobs, as the status page shows them: read from events as these come."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from ultima.daemon.observe import view_changes
from ultima.daemon.observe.events import EventLog

SHOWN = 20  # of one job


class Views:
    """See the module. It belongs to the event loop."""

    def __init__(self, events: EventLog) -> None:
        self._events, self._seen = events, 0
        self._of: dict[str, deque[dict[str, Any]]] = {}

    def take(self, jobs: Collection[str]) -> None:
        """Reads what has come since the last call. Of others than these jobs nothing is kept."""
        for change in filter(None, map(view_changes.read, self._events.after(self._seen))):
            if change.job in jobs:
                self._of.setdefault(change.job, deque(maxlen=SHOWN)).append(
                    {
                        "at_ms": change.at_ns // 10**6,
                        "number": change.number,
                        "from_op": change.from_op_seq,
                        "why": change.why,
                        "came": list(change.came),
                        "left": list(change.left),
                        "gone": list(change.gone),
                        "hosts": change.hosts,
                        "seats": change.seats,
                    }
                )
        self._seen = self._events.last
        for job in self._of.keys() - {*jobs}:
            del self._of[job]

    def of(self, job: str, since_ns: int) -> list[dict[str, Any]]:
        """Those of one job since it began here, the oldest first."""
        return [row for row in self._of.get(job, ()) if row["at_ms"] >= since_ns // 10**6]
