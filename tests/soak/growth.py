# SPDX-License-Identifier: Apache-2.0
"""What a process holds, read from /proc, and how fast it grows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process. Memory in bytes."""

    at_s: float
    private: int
    """Pages that are the process's alone and lie in no file: RssAnon of /proc/PID/status."""
    shared: int
    """Pages of shared memory that it has touched: RssShmem."""
    descriptors: int
    threads: int


def sample(pid: int, at_s: float) -> Sample:
    """How much the process |pid| holds now. Raises OSError when there is none."""
    place = Path(f"/proc/{pid}")
    lines = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())

    def kib(name: str) -> int:
        return int(lines[name].split()[0]) * KIB

    return Sample(at_s, kib("RssAnon"), kib("RssShmem"), len(os.listdir(place / "fd")), int(lines["Threads"]))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through |points| (x, y) by least squares; 0 for fewer than two places."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    along = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / along


def second_half(samples: Sequence[Sample]) -> list[Sample]:
    """Those after the middle of the time: what a process makes once at its start is over by then."""
    middle = (samples[0].at_s + samples[-1].at_s) / 2
    return [one for one in samples if one.at_s >= middle]


def hourly(samples: Sequence[Sample]) -> float:
    """Bytes of private memory by which the process grows in an hour, from the second half of |samples|."""
    return slope([(one.at_s, float(one.private)) for one in second_half(samples)]) * HOUR_S
