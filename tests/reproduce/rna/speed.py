# SPDX-License-Identifier: Apache-2.0
"""R2, R6, R8: what not waiting brings, what copying costs, and what groups do for machines that are always slower."""

from __future__ import annotations

import time

import numpy as np

from tests.reproduce.partial import blocking, rounds, workload
from tests.reproduce.partial.workload import Values
from tests.reproduce.study import Grid, Row, Study
from ultima.speed_groups.grouping import groups, iteration_time

RANKS, STEPS, SEED = 8, 4000, 3
# Base times, ms, under the paper's U(0, 50) ms; and what the paper gained.
BASES_MS = (100.0, 20.0)
PAPER = "1.7, 1.4, 1.6 over Horovod"
GROUPING = (
    ((10, 11, 12, 50, 52, 55), [[0, 1, 2], [3, 4, 5]]),
    ((10, 20, 100, 300), [[0, 1], [2], [3]]),
    ((100, 110, 120, 190), [[0, 1, 2, 3]]),
    ((1, 3), [[0, 1]]),
    (tuple(20 + extra for extra in (0, 10, 25, 40, 60, 75, 80, 95)), [[0, 1], [2, 3], [4, 5, 6, 7]]),
    (tuple(100 + extra for extra in (0, 10, 25, 40, 60, 75, 80, 95)), [[0, 1, 2, 3, 4, 5, 6, 7]]),
)
FAST, SLOW = (10.0, 30.0), (80.0, 120.0)
SERVER_MS, OP_MS = 2.0, 2.0
RESNET_BYTES = 4 * 25_559_081


def sample_gain(compute: Values, seed: int) -> tuple[float, float, float]:
    """Gradients per time of RNA with two probes over those of synchronous training, E[max] / E[T], and contributors to
    a round; |compute| [iteration, rank]."""
    synchronous = blocking.run(compute, "full").rate * compute.shape[1]
    finished = np.cumsum(compute, axis=0)
    pick = rounds.chooser(compute.shape[1], 2, np.random.default_rng(seed))
    count = len(compute) // 2  # a round takes at most one task
    timed = rounds.run(finished, count, pick)
    own = float(timed.taken[-1].sum() / timed.ended[-1])
    return own / synchronous, float(compute.max(axis=1).mean() / compute.mean()), timed.contributors_mean


def run() -> Study:
    study = Study(
        "speed",
        "R2, R6, R8: throughput, copies, groups (Figures 6 and 8, Table 5)",
        f"Virtual time, {RANKS} ranks, {STEPS} iterations, seed {SEED}; gradients that were taken by a round, per "
        "time. The paper's iterations per second are not compared: an iteration of RNA holds fewer gradients. Copies "
        "are measured on this machine.",
    )
    _throughput(study)
    _copies(study)
    _grouping(study)
    _classes(study)
    study.rows.append(Row("R5: 8,200 ms to 5200 ms (Figure 7)", "1.58", "no such training here; the unit must be "
                          "seconds", "-", None))  # fmt: skip
    return study


def _throughput(study: Study) -> None:
    rng = np.random.default_rng(SEED)
    cases = {f"U(0, 50) ms on {base:g} ms": workload.uniform(STEPS, RANKS, base, 0, 50, rng) for base in BASES_MS}
    cases["batches of UCF101"] = workload.BATCHES.draw(rng, (STEPS, RANKS))
    header = ("workload", "E[max] / E[T]", "RNA", "contributors a round")
    grid = Grid("Gradients per time, RNA over synchronous", header)
    worst, shown = 0.0, []
    for name, compute in cases.items():
        ours, bound, contributors = sample_gain(compute, SEED)
        worst = max(worst, abs(ours / bound - 1))
        shown.append(f"{ours:.2f} ({name})")
        grid.rows.append((name, f"{bound:.3f}", f"{ours:.3f}", f"{contributors:.2f}"))
    study.grids.append(grid)
    study.rows.append(Row("R2: gradients per time over synchronous", PAPER, ", ".join(shown),
                          "E[max] / E[T] within 5 %", worst <= 0.05))  # fmt: skip
    limit = (100 + 50 * RANKS / (RANKS + 1)) / 125
    study.rows.append(
        Row("R2: 1.7 times from U(0, 50) ms", "1.7 (ResNet-50)", f"at most {limit:.2f} on 100 ms of computing; 1.7 "
            f"would need one of {_base_for(1.7):.0f} ms", "reachable with 100 ms", limit >= 1.7)
    )  # fmt: skip


def _base_for(gain: float) -> float:
    """Time of computing at which U(0, 50) ms on each of the ranks gives |gain|; 0 where none does."""
    return max(0.0, (50 * RANKS / (RANKS + 1) - 25 * gain) / (gain - 1))


def _copies(study: Study) -> None:
    gradient, arena = np.ones(RESNET_BYTES // 4, dtype=np.float32), np.zeros(RESNET_BYTES // 4, dtype=np.float32)
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        np.copyto(arena, gradient)
        np.copyto(gradient, arena)
        took.append(time.perf_counter() - begun)
    ms = 1e3 * float(np.median(took))
    share = 100 * ms / workload.CLOUD.mean
    study.rows.append(
        Row("R6: copies of a gradient in and out, ResNet-50", "6.2 % (over PCIe)",
            f"{ms:.0f} ms here, {share:.1f} % of a step of {workload.CLOUD.mean:g} ms", "reported", None)
    )  # fmt: skip


def _grouping(study: Study) -> None:
    holds = all(groups(times) == expected for times, expected in GROUPING)
    study.rows.append(Row("R8: the grouping rule", "zeta > v splits, recursively",
                          f"{len(GROUPING)} vectors, a base of 100 ms among them that does not split",
                          "exact", holds))  # fmt: skip
    rng = np.random.default_rng(SEED)
    found = {}
    for base in (0.0, 20.0, 100.0):
        times = np.hstack([workload.uniform(20, 4, base, 0, 50, rng), workload.uniform(20, 4, base, 50, 100, rng)])
        found[base] = groups([iteration_time(times[:, rank]) for rank in range(8)])
    split = found[20.0] == found[100.0] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    study.rows.append(
        Row("R8: the rule splits the paper's own groups, A U(0, 50) and B U(50, 100) ms", "two groups",
            "; ".join(f"base {base:g} ms: {len(parts)}" for base, parts in found.items())
            + " (their means are 50 ms apart, v is the base and 50 ms)", "two groups at 20 and 100 ms", split)
    )  # fmt: skip


def _classes(study: Study) -> None:
    rng = np.random.default_rng(SEED)
    compute = np.hstack([workload.uniform(STEPS, 4, 0, *FAST, rng), workload.uniform(STEPS, 4, 0, *SLOW, rng)])
    finished = np.cumsum(compute, axis=0)
    until = float(finished[-1].min()) * 0.8
    profile = [iteration_time(compute[:20, rank]) for rank in range(8)]
    parts = groups(profile)

    def picks(sizes: list[int]) -> list[rounds.Picker]:
        return [rounds.chooser(size, min(2, size), np.random.default_rng((SEED, at))) for at, size in enumerate(sizes)]

    split = rounds.grouped(finished, parts, until, picks([len(part) for part in parts]), OP_MS, SERVER_MS)
    alone = rounds.grouped(finished, [parts[0]], until, picks([4]), OP_MS, SERVER_MS)
    flat = rounds.grouped(finished, [list(range(8))], until, picks([8]), OP_MS, SERVER_MS)
    full = blocking.run(compute, "full").rate
    rates = {
        "fast group": 1e3 * split.rate(0),
        "slow group": 1e3 * split.rate(1),
        "fast group alone": 1e3 * alone.rate(0),
        "RNA without groups": 1e3 * flat.rate(0),
        "synchronous": 1e3 * full,
    }
    grid = Grid(f"Rounds per second, {FAST[0]:g} to {FAST[1]:g} and {SLOW[0]:g} to {SLOW[1]:g} ms, op {OP_MS:g} ms, "
                f"server {SERVER_MS:g} ms", ("who", "rounds/s"))  # fmt: skip
    grid.rows += [(name, f"{rate:.2f}") for name, rate in rates.items()]
    study.grids.append(grid)
    study.rows += [
        Row("R8: two speed classes are two groups", "two groups", " and ".join(str(part) for part in parts),
            "[0, 1, 2, 3] and [4, 5, 6, 7]", parts == [[0, 1, 2, 3], [4, 5, 6, 7]]),
        Row("R8: the slow group does not bound the fast one", "1.8 with groups, 1.5 without",
            f"{rates['fast group']:.1f} rounds/s, {rates['fast group alone']:.1f} alone, slow group "
            f"{rates['slow group']:.1f}; {split.waited:.2f} ms of waiting for the server",
            "at least 0.95 of alone, and above twice the slow group's",
            rates["fast group"] >= 0.95 * rates["fast group alone"] and rates["fast group"] > 2 * rates["slow group"]),
        Row("R8: and without groups it does", "1.5", f"{rates['RNA without groups']:.1f} rounds/s, longest wait "
            f"{_longest(flat.ended[0]):.0f} ms against {_longest(split.ended[0]):.0f} ms in the fast group",
            "longer", _longest(flat.ended[0]) > _longest(split.ended[0])),
    ]  # fmt: skip


def _longest(ends: Values) -> float:
    return float(np.diff(ends).max())
