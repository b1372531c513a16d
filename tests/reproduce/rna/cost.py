# SPDX-License-Identifier: Apache-2.0
"""R1: what a probe costs and how soon eight daemons have an initiator, over gRPC; and what that says of q > 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.bench.probe import measure
from tests.reproduce.partial import rounds, workload
from tests.reproduce.rna.probes import HIGH_MS, LOW_MS, NODES
from tests.reproduce.study import Grid, Row, Study
from ultima import UltimaError

DAEMONS, OPS = 8, 300
CHOICES = (1, 2, 3, 4, 8, 16)
SEED = 17


def rounds_per_second(probe_ms: float, count: int) -> dict[int, float]:
    """By number of probes, in virtual time: the controller asks one after another, |probe_ms| each, before it hears."""
    found = {}
    for q in CHOICES:
        rng = np.random.default_rng(SEED + q)
        # A round takes no longer than a task and its op, and a task is at least LOW_MS long.
        tasks = math.ceil(count * (1 + q * probe_ms / LOW_MS)) + count * math.ceil(HIGH_MS / LOW_MS)
        finished = np.cumsum(workload.uniform(tasks, NODES, 0, LOW_MS, HIGH_MS, rng), axis=0)
        found[q] = 1e3 * rounds.run(finished, count, rounds.chooser(NODES, q, rng), op_time=q * probe_ms).rate
    return found


def run() -> Study:
    study = Study(
        "cost",
        "R1: the cost of a probe",
        f"{DAEMONS} real daemons on the loopback of this machine, {OPS} ops of policy probe, q = 2. Decide: from a "
        "rank's gradient being there to the start of the op on its host. Announce: until the last of the other hosts "
        f"runs it, too. Below, what the measured CPU time of a probe does to the {NODES} nodes of Figure 10 in virtual "
        "time, if the controller pays it for one probe after the other. More rounds are not more gradients: a round "
        "with q probes holds those of (N + 1) / (q + 1) ranks.",
    )
    try:
        told = measure(daemons=DAEMONS, ops=OPS, q=2)
    except (RuntimeError, OSError, UltimaError) as error:
        study.rows.append(Row("R1: the cost of a probe", "-", str(error)[:400], "-", None))
        return study
    judge(study, told)
    return study


def judge(study: Study, told: dict[str, Any], count: int = 1500) -> None:
    announce, decide, probe = told["announce"], told["decide"], told["probe"]
    study.rows += [
        Row("R1: deciding and announcing an initiator, median", "-", f"{announce['p50_ms']:.2f} ms (p95 "
            f"{announce['p95_ms']:.2f}), of it deciding {decide['p50_ms']:.2f} ms; {announce['count']} ops",
            "below 3 ms", None if math.isnan(announce["p50_ms"]) else announce["p50_ms"] < 3),
        Row("R1: probes that are answered at once", "-", f"{probe['one_caller_per_s']:.0f}/s of one caller, "
            f"{probe['16_callers_per_s']:.0f}/s of 16; {probe['daemon_cpu_us']:.0f} us of the answering daemon's CPU",
            "reported", None),
    ]  # fmt: skip
    cost_ms = probe["daemon_cpu_us"] / 1e3
    free, paid = rounds_per_second(0.0, count), rounds_per_second(cost_ms, count)
    header = ("q", "probes for nothing", "probes at their cost")
    grid = Grid(f"Rounds per second, {NODES} nodes, cross-iteration", header)
    grid.rows += [(str(q), f"{free[q]:.1f}", f"{paid[q]:.1f}") for q in CHOICES]
    study.grids.append(grid)
    best = max(paid, key=lambda q: paid[q])
    shown = ", ".join(f"{paid[q]:.0f}" for q in (1, 2, 4, 16))
    study.rows.append(
        Row("R1: more than two probes bring nothing", "no gain for q > 2",
            f"rounds/s {shown} for q = 1, 2, 4, 16; best q = {best}", "best at q = 2", best == 2)
    )  # fmt: skip
