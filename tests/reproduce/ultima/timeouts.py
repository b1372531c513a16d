# SPDX-License-Identifier: Apache-2.0
"""U7 and U8, the paper's early timeout and Table 3: t_C against t_B, and what the wait of x percent buys.

In the simulator, because both need delay and jitter. Nothing is repaired (best effort), as in the paper.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from tests.reproduce.study import (
    BEST_EFFORT,
    END_DEADLINE,
    END_EARLY,
    NEVER,
    Grid,
    KnobError,
    Plot,
    Row,
    Study,
    World,
    at_most,
    simulate,
)

WARM = 20
SEEDS = tuple(range(1, 9))
PERCENTS = (1, 5, 10, 20)
PAPER_MS = {1: 230.52, 5: 242.45, 10: 254.36, 20: 279.48}
PAPER_DROPS = {1: 0.993, 5: 0.078, 10: 0.00009, 20: 0.0}
# A bucket of 1 MB over four hosts at 100 Mbit/s: 130 ms an op, so that a percent of t_C is above the noise.
WORLD = {
    "hosts": 4,
    "bytes": 1_000_000,
    "rate_mbit": 100,
    "delay_us": 200,
    "mode": BEST_EFFORT,
    "deadline_us": 5_000_000,
}


def _worlds(ops: int, **knobs: int) -> list[World]:
    return [simulate(warm=WARM, seed=seed, ops=WARM + ops, **{**WORLD, **knobs}) for seed in SEEDS]


def _mean_ms(worlds: list[World]) -> float:
    return statistics.fmean(us for world in worlds for us in world.latency_us()) / 1e3


def _missing(worlds: list[World]) -> float:
    return statistics.fmean(world.missing() for world in worlds)


def _trouble(worlds: list[World]) -> str:
    """Why these worlds cannot be judged; "" when they can."""
    failed = [world.failure for world in worlds if world.failure]
    if failed:
        return f"the simulator stopped: {failed[0][:120]}"
    if not all(world.known() for world in worlds):
        return "ops failed: this build does not take best effort"
    return "" if any(world.has_timeouts() for world in worlds) else "this build has no t_B and t_C yet"


def run(ops: int = 12) -> Study:
    study = Study(
        "timeouts",
        "U7, U8: the early timeout and its wait (Table 3)",
        f"The simulator, N=4, 100 Mbit/s, 1 MB, {WARM} warm-up ops in reliable mode that set t_B and the first "
        f"t_C, then {ops} ops in best effort, {len(SEEDS)} seeds. U7: 0.1 % of packets lost. U8: the same, and 0.2 "
        "% of packets held back by up to 60 ms, so that a longer wait still gets some of them.",
    )
    on: list[World] = []
    off: list[World] = []
    rows: dict[int, list[World]] = {}
    try:
        on, off = _worlds(ops, loss_ppm=1000), _worlds(ops, loss_ppm=1000, t_c_us=NEVER)
        reason = _trouble(on) or _trouble(off)
        for percent in PERCENTS if not reason else ():
            rows[percent] = _worlds(ops, loss_ppm=1000, jitter_ppm=2000, jitter_us=60_000, early_percent=percent)
            reason = reason or _trouble(rows[percent])
    except KnobError:
        reason = f"a world of this build's simulator holds fewer than {WARM + ops} ops"
    study.rows += _early_rows(on, off, reason)
    _wait_rows(study, rows, reason)
    return study


def _early_rows(on: list[World], off: list[World], reason: str) -> list[Row]:
    claims = (
        ("U7: mean time of an op with t_C to without", "107 / 127 min", "at most 0.90"),
        ("U7: bytes missing with t_C to without", "0.02 % both", "at most 2"),
        ("U7: stages that t_C ended, of those that a timeout ended", "95 %", "at least 0.9"),
    )
    if reason:
        return [Row(claim, paper, reason, criterion, None) for claim, paper, criterion in claims]
    faster = _mean_ms(on) / _mean_ms(off)
    dropped = _missing(on) / _missing(off) if _missing(off) else float("nan")
    early, hard = (sum(world.ends(kind) for world in on) for kind in (END_EARLY, END_DEADLINE))
    share = early / (early + hard) if early + hard else 0.0
    ours = (
        f"{_mean_ms(on):.1f} / {_mean_ms(off):.1f} ms = {faster:.2f}",
        f"{100 * _missing(on):.4f} % / {100 * _missing(off):.4f} % = {dropped:.2f}",
        f"{early} early, {hard} at t_B: {share:.3f}",
    )
    holds = (faster <= 0.90, at_most(dropped, 2), share >= 0.9)
    return [Row(claim, paper, text, criterion, good)
            for (claim, paper, criterion), text, good in zip(claims, ours, holds, strict=True)]  # fmt: skip


def _wait_rows(study: Study, rows: dict[int, list[World]], reason: str) -> None:
    claims = (
        ("U8: a point of x costs t_C / 100", "2.55 ms at t_C about 255 ms", "within 20 %"),
        ("U8: drops fall with x", "0.993, 0.078, 0.00009, 0 %", "never more with a longer wait"),
    )
    if reason:
        study.rows += [Row(claim, paper, reason, criterion, None) for claim, paper, criterion in claims]
        return
    header = ("x %", "stage that ended early, mean ms", "op, mean ms", "drops %", "paper ms", "paper drops %")
    grid = Grid("Wait against time and drops", header)
    waits, drops = [], []
    for percent, worlds in rows.items():
        waits.append(_early_stage_ms(worlds))
        drops.append(100 * _missing(worlds))
        grid.rows.append((str(percent), f"{waits[-1]:.2f}", f"{_mean_ms(worlds):.2f}", f"{drops[-1]:.5f}",
                          f"{PAPER_MS[percent]:.2f}", f"{PAPER_DROPS[percent]:g}"))  # fmt: skip
    study.grids.append(grid)
    hosts = [host for worlds in rows.values() for world in worlds for op in world.ops for host in op]
    expected_ms = statistics.median(us for host in hosts for us in host["t_c_us"] if us) / 1e3
    slope = (waits[-1] - waits[0]) / (PERCENTS[-1] - PERCENTS[0])
    ratio = slope / (expected_ms / 100)
    text = f"{slope:.3f} ms at t_C {expected_ms:.1f} ms: {ratio:.2f} of it"
    study.rows.append(Row(*claims[0][:2], text, claims[0][2], 0.8 <= ratio <= 1.2))
    falling = all(later <= sooner for sooner, later in pairwise(drops))
    study.rows.append(Row(*claims[1][:2], ", ".join(f"{one:.5f}" for one in drops) + " %", claims[1][2], falling))
    lines = {"time of a stage that ended early, ms": (PERCENTS, waits), "bytes missing, %": (PERCENTS, drops)}
    title = "Wait of x % of t_C: what it costs and what it saves"
    study.plots.append(Plot("wait", title, "x, percent of t_C", "ms, or percent of bytes", lines, log_y=True))


def _early_stage_ms(worlds: list[World]) -> float:
    """Mean time of a stage that t_C ended: the second stage counts from the end of the first."""
    found = []
    for world in worlds:
        for op in world.ops:
            for host in op:
                first, second = host["stage_us"]
                for end, us in zip(host["end"], (first, second - first), strict=True):
                    if end == END_EARLY:
                        found.append(us / 1e3)
    return statistics.fmean(found) if found else float("nan")
