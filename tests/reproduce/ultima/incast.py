# SPDX-License-Identifier: Apache-2.0
"""U6, the paper's Figure 14: the time of an op against the incast factor, that is, against the number of rounds."""

from __future__ import annotations

import statistics

from tests.reproduce.study import Grid, Plot, Row, Study, line_fit, simulate

HOSTS = 6
PAPER_S = {1: 913.71, 3: 430.88, 5: 284.56}


def rounds(incast: int) -> int:
    """Of both stages."""
    return 2 * -(-(HOSTS - 1) // incast)


def run(ops: int = 14) -> Study:
    study = Study(
        "incast",
        "U6: the incast factor (Figure 14)",
        f"The simulator, N={HOSTS}, 1 Gbit/s, 500 us one way, no loss, {ops} ops; a small bucket (one packet a "
        "shard) whose time is all latency, and 4 MB whose time is all bandwidth. In this engine a round is an "
        "order, not a barrier: a shard leaves when its data is there and its receiver has room, so a round need "
        "not cost a way there and back. Where the claim fails here, it fails because rounds cost less than in the "
        "paper.",
    )
    slope, intercept, r2 = line_fit([rounds(i) for i in PAPER_S], list(PAPER_S.values()))
    study.rows.append(
        Row("U6: the paper's own times are linear in rounds", "913.71, 430.88, 284.56 s at I=1, 3, 5",
            f"{intercept:.1f} + {slope:.1f} s a round, R2 {r2:.3f}", "R2 > 0.98", r2 > 0.98)
    )  # fmt: skip
    grid = Grid("Median time of an op in ms", ("I", "rounds", "8 KiB", "4 MB"))
    small: dict[int, float] = {}
    large: dict[int, float] = {}
    for incast in PAPER_S:
        worlds = {size: simulate(warm=0, hosts=HOSTS, bytes=size, ops=count, incast=incast, delay_us=500, seed=incast)
                  for size, count in ((8192, ops), (4_000_000, 8))}  # fmt: skip
        for size, world in worlds.items():
            if world.failure or not world.known():
                raise RuntimeError(f"incast {incast}, {size} bytes: {world.failure or 'ops failed'}")
        small[incast], large[incast] = (statistics.median(world.latency_us()) / 1e3 for world in worlds.values())
        grid.rows.append((str(incast), str(rounds(incast)), f"{small[incast]:.2f}", f"{large[incast]:.2f}"))
    study.grids.append(grid)
    slope, intercept, r2 = line_fit([rounds(i) for i in small], list(small.values()))
    study.rows.append(
        Row("U6: time of a small op is linear in rounds", "fits within 2 %",
            f"{intercept:.2f} + {slope:.2f} ms a round, R2 {r2:.3f}", "R2 > 0.98 and a slope above 0.1 ms",
            r2 > 0.98 and slope > 0.1)
    )  # fmt: skip
    ratio = small[5] / small[1]
    study.rows.append(Row("U6: I=5 against I=1, small op", "0.31", f"{ratio:.2f}", "at most 0.45", ratio <= 0.45))
    lines = {"8 KiB": ([float(rounds(i)) for i in small], list(small.values()))}
    study.plots.append(Plot("incast", "Op time over rounds (8 KiB, N=6, 500 us one way)", "rounds", "ms", lines))
    return study
