# SPDX-License-Identifier: Apache-2.0
"""Health means progress: the daemon is well while every open op still has time, or has just run out of it.

An engine thread that hangs leaves an op open beyond its deadline; nothing else does. So that is what the health service
and the watchdog look at, and not that this process can still answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ultima.daemon.engine.engine import NEVER

GRACE_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the engine makes progress, and the sentence that says why not."""

    well: bool
    reason: str


def judge(now_ns: int, stats: Mapping[str, int], grace_ns: int = GRACE_NS) -> Verdict:
    """Looks at the deadline of the oldest open op. `now_ns` is CLOCK_MONOTONIC, `stats` are the engine's counters."""
    opened, deadline = stats["oldest_open_ns"], stats["oldest_deadline_ns"]
    if opened == NEVER:
        return Verdict(True, "no op is open")
    if deadline == NEVER:
        return Verdict(True, "the oldest open op has no deadline")
    late_ms = (now_ns - deadline) // 1_000_000
    if now_ns > deadline + grace_ns:
        return Verdict(False, f"the oldest open op is {late_ms} ms past its deadline")
    return Verdict(True, "the oldest open op is within its deadline")


def judge_all(now_ns: int, stats: Sequence[Mapping[str, int]]) -> Verdict:
    """The same of several engines: the first one that makes no progress is the verdict."""
    verdicts = [judge(now_ns, each) for each in stats]
    return next((verdict for verdict in verdicts if not verdict.well), verdicts[0])
