# SPDX-License-Identifier: Apache-2.0
"""Bytes to and from other hosts, counted on while paths are made anew and jobs come and go.

The engine counts by path, from 0 again when a path is made anew. So what it says is looked at every few seconds, and
what has been added since the last look is added here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ultima.daemon.engine.engine import PeerStats

Path = tuple[int, int]
"""Number of a job's life, and index of the host."""
_FIELDS = ("sent_bytes", "received_bytes", "lost_bytes")


class Totals:
    """See the module."""

    def __init__(self) -> None:
        self.by_job: dict[int, Counter[str]] = {}
        """By number of the life: bytes by the names of PeerStats."""
        self.lost: Counter[str] = Counter()
        """Bytes to a peer that were lost, by its address."""
        self._seen: dict[Path, tuple[int, ...]] = {}

    def look(self, paths: Iterable[tuple[Path, str, PeerStats]]) -> None:
        """Takes what the engine says of all paths that there are now, each with the address of its host."""
        seen: dict[Path, tuple[int, ...]] = {}
        for path, address, stats in paths:
            now = tuple(int(getattr(stats, name)) for name in _FIELDS)
            before = self._seen.get(path, (0,) * len(_FIELDS))
            if any(new < old for new, old in zip(now, before, strict=True)):
                before = (0,) * len(_FIELDS)
            added = dict(zip(_FIELDS, (new - old for new, old in zip(now, before, strict=True)), strict=True))
            self.by_job.setdefault(path[0], Counter()).update(added)
            self.lost[address] += added["lost_bytes"]
            seen[path] = now
        self._seen = seen
        lives = {life for life, _ in seen}
        for life in self.by_job.keys() - lives:
            del self.by_job[life]
