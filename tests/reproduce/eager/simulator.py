# SPDX-License-Identifier: Apache-2.0
"""E1, eager-SGD's Figure 9: linearly skewed ranks, with the code of the core, in its simulator."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np

from tests.reproduce.eager.skew import ITERATIONS, POLICIES, SEEDS, SETTINGS, drawn_bound, judge
from tests.reproduce.partial import theory
from tests.reproduce.study import Grid, Row, Study, simulator


def told_by_simulator(ranks: int, step_us: int, seed: int) -> dict[str, Any]:
    """What the core's simulator says of the skewed ranks. Raises RuntimeError where it does not know the study."""
    command = [str(simulator()), "--skew", f"ranks={ranks}", f"step_us={step_us}", f"ops={ITERATIONS}", f"seed={seed}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"{' '.join(command[1:])}: exit status {done.returncode}")
    told: dict[str, Any] = json.loads(done.stdout)
    if told["failure"]:
        raise RuntimeError(f"{' '.join(command[1:])}: {told['failure']}")
    return told


def run() -> Study:
    study = Study(
        "simulator",
        "E1: the same with the core's own code, in its simulator",
        f"The engine of this repository on 32 and 8 simulated hosts (1 Gbit/s, 25 us one way), {ITERATIONS} "
        f"iterations with each of the seeds {', '.join(map(str, SEEDS))}. Latency is from a rank's call to its answer "
        "and holds the op itself.",
    )
    header = ("ranks", "policy", "latency", "op", "active")
    grid = Grid("Mean latency of a call and of an op, ms", header)
    for ranks, step_ms in SETTINGS:
        try:
            told = [told_by_simulator(ranks, round(step_ms * 1000), seed) for seed in SEEDS]
        except RuntimeError as error:
            study.rows.append(Row(f"E1, {ranks} simulated hosts", "Figure 9", str(error), "-", None))
            continue
        mean = {policy: {key: float(np.mean([one["policies"][policy][key] for one in told]))
                         for key in ("latency_ms", "op_ms", "active")} for policy in told[0]["policies"]}  # fmt: skip
        latency = {policy: mean[policy]["latency_ms"] for policy in POLICIES}
        active = {policy: mean[policy]["active"] for policy in POLICIES}
        drawn = [theory.picks(one["seed"], op, ranks)[0] for one in told for op in range(one["ops"])]
        study.rows += judge(f"{ranks} simulated hosts", ranks, latency, active, drawn_bound(ranks, drawn), len(drawn))
        grid.rows += [(str(ranks), policy, *(f"{one[key]:.3f}" for key in ("latency_ms", "op_ms", "active")))
                      for policy, one in mean.items()]  # fmt: skip
    if grid.rows:
        study.grids.append(grid)
    return study
