# SPDX-License-Identifier: Apache-2.0
"""What a contender takes of the machine while it runs: CPU seconds of all cores, and wake-ups of its threads.

CPU is counted for the whole machine, kernel and all: packets are carried in interrupts that belong to nobody, and the
lab's switch and shapers are part of what a system asks for. So nothing else may run. What counts is the time in which
cores were not idle: an interrupt that comes to an idle core and is over before the next tick is booked nowhere as work
(at 250 Mbit/s that was a sixth of our CPU, and a third of Gloo's). A *wake-up* is a voluntary context switch, which a
thread makes when it waits: Ultima's engine threads in the daemons, or all threads of Gloo's ranks, for Gloo carries its
bytes there.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ENGINE = "ut-engine"
_IDLE = (3, 4)  # of the words after "cpu" in /proc/stat: idle, and idle while a disk works


@dataclass(frozen=True)
class Usage:
    """What was taken between two moments."""

    cpu_s: float = 0.0
    wakeups: Counter[int] = field(default_factory=Counter)
    """By the number of the thread."""
    seconds: float = 0.0

    def __add__(self, more: Usage) -> Usage:
        return Usage(self.cpu_s + more.cpu_s, self.wakeups + more.wakeups, self.seconds + more.seconds)

    def by_place(self) -> Usage:
        """The same with threads numbered from the busiest one on, to be added to what other threads did elsewhere."""
        counts = sorted(self.wakeups.values(), reverse=True)
        return Usage(self.cpu_s, Counter(dict(enumerate(counts))), self.seconds)

    @property
    def wakeups_per_s(self) -> float:
        """Of all threads together."""
        return self.wakeups.total() / self.seconds if self.seconds else math.nan

    @property
    def busiest_wakeups_per_s(self) -> float:
        """Of the one thread that woke most often."""
        return max(self.wakeups.values(), default=0) / self.seconds if self.seconds else math.nan


def parse_idle_s(stat: str, ticks_per_s: int) -> tuple[int, float]:
    """How many cores there are and for how many seconds, added up, they were idle, from the text of /proc/stat."""
    whole, *others = stat.splitlines()
    fields = [int(word) for word in whole.split()[1:]]
    cores = sum(re.match(r"cpu\d", line) is not None for line in others)
    return cores, sum(fields[at] for at in _IDLE) / ticks_per_s


def parse_wakeups(status: str) -> int:
    """How often a thread has waited, from the text of its status in /proc."""
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def _wakeups(pids: Iterable[int], name: str) -> Counter[int]:
    found: Counter[int] = Counter()
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                if not name or (task / "comm").read_text().strip() == name:
                    found[int(task.name)] = parse_wakeups((task / "status").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended since it was listed
    return found


def has_wide_products() -> bool:
    """Whether this CPU has carry-less products in wide registers, which make checksums cheap."""
    return " vpclmulqdq" in Path("/proc/cpuinfo").read_text()


class Meter:
    """Reads what has been used since it was made: `used()` may be called more than once.

    |pids|: the processes whose wake-ups count, |name|: of which threads; all of them if it is empty.
    """

    def __init__(self, pids: Iterable[int] = (), name: str = "") -> None:
        self._pids, self._name = list(pids), name
        self._begin = self._now()

    def _now(self) -> Usage:
        now = time.monotonic()
        cores, idle_s = parse_idle_s(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"))
        return Usage(cores * now - idle_s, _wakeups(self._pids, self._name), now)

    def used(self) -> Usage:
        now, begin = self._now(), self._begin
        cpu_s = max(now.cpu_s - begin.cpu_s, 0.0)  # idle time comes in ticks
        return Usage(cpu_s, now.wakeups - begin.wakeups, now.seconds - begin.seconds)
