# SPDX-License-Identifier: Apache-2.0
"""E1 and E2 with eight real daemons and trainers: skewed ranks, and a regression that somebody is late for."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from tests.reproduce.eager.skew import ITERATIONS, SEEDS, drawn_bound, judge
from tests.reproduce.partial.trainer import Plane
from tests.reproduce.partial.trainers import Trainers, trainers
from tests.reproduce.study import Grid, Row, Study

RANKS, STEP_S, PERIOD_S = 8, 0.010, 0.110
POLICIES = ("full", "majority", "solo")
TRAINING = {"size": 1024, "batch": 128, "noise": 2.0, "rate": 0.03, "seed": 5, "base_s": 0.325, "extra_s": 0.2,
            "sync_every": 32}  # fmt: skip
Answers = list[dict[str, Any]]


def run(steps: int = 96) -> Study:
    study = Study(
        "real",
        "E1, E2: eight real daemons and trainers",
        f"{RANKS} daemons and {RANKS} trainers, all on the loopback of this machine. E1: rank p calls p times 10 ms "
        f"late, every {1e3 * PERIOD_S:g} ms instead of a barrier, {ITERATIONS} iterations; "
        f"majority with each of the seeds {', '.join(map(str, SEEDS))}. E2: {steps} steps; a step "
        f"computes a real gradient of {TRAINING['batch']} rows of {TRAINING['size']} and then sleeps until "
        f"{TRAINING['base_s']} s are over, {TRAINING['extra_s']} s longer on a rank drawn anew in each step: so many "
        "ranks on so few cores must not slow each other down. The models are synchronized by an ordinary job every "
        f"{TRAINING['sync_every']} steps. The paper's size is 8192, on a GPU each. The learning rate is small "
        f"({TRAINING['rate']}): stale gradients raise the floor of solo's error, the more so the larger the rate.",
    )
    try:
        with trainers(RANKS) as gang:
            _skew(study, gang)
            _training(study, gang, steps)
    except (RuntimeError, OSError) as error:
        study.rows.append(Row("E1, E2 with real trainers", "Figures 9, 10", str(error)[:600], "-", None))
    return study


def _skew(study: Study, gang: Trainers) -> None:
    request = {"do": "skew", "iterations": ITERATIONS, "step_s": STEP_S, "period_s": PERIOD_S, "elements": 1024}
    found: dict[str, list[Answers]] = {policy: [] for policy in POLICIES}
    for policy in POLICIES:
        # Only majority draws anything.
        for seed in SEEDS if policy == "majority" else SEEDS[:1]:
            asked = {**request, "policy": policy, "policy_seed": seed}
            found[policy].append(gang.ask(asked, ITERATIONS * PERIOD_S + 60))
    latency = {policy: 1e3 * statistics.fmean(map(latency_of, runs)) for policy, runs in found.items()}
    active = {policy: statistics.fmean(map(active_of, runs)) for policy, runs in found.items()}
    grid = Grid("Skewed ranks", ("policy", "latency, ms", "active ranks", "ops", "late calls"))
    for policy, runs in found.items():
        ops = sum(len(_ops(answers)) for answers in runs)
        late = sum(one["late"] for answers in runs for one in answers)
        grid.rows.append((policy, f"{latency[policy]:.2f}", f"{active[policy]:.2f}", str(ops), str(late)))
    study.grids.append(grid)
    drawn = [rank for answers in found["majority"] for rank in initiators_of(answers)]
    study.rows += judge(f"{RANKS} real daemons", RANKS, latency, active, drawn_bound(RANKS, drawn), len(drawn))


def latency_of(answers: Answers) -> float:
    """Mean seconds of a call, over all ranks and iterations."""
    return statistics.fmean(value for one in answers for value in one["latency_s"])


def _ops(answers: Answers) -> list[dict[str, Any]]:
    """One receipt of each op, in order."""
    found = {receipt["op_seq"]: receipt for one in answers for receipt in one["receipts"]}
    return [found[op] for op in sorted(found)]


def active_of(answers: Answers) -> float:
    """Mean ranks whose own gradient of a step went into the op of that step: the others came too late, and what they
    gave was kept for a later one."""
    steps = zip(*(one["receipts"] for one in answers), strict=True)
    return statistics.fmean(sum(not receipt["kept"] for receipt in ranks) for ranks in steps)


def initiators_of(answers: Answers) -> list[int]:
    return [receipt["initiator"][0] for receipt in _ops(answers) if receipt["initiator"]]


def _training(study: Study, gang: Trainers, steps: int) -> None:
    grid = Grid("Regression, 200 ms more on one random rank a step",
                ("policy", "steps/s", "mean squared error", "active ranks", "share that computes"))  # fmt: skip
    rate, error = {}, {}
    longest = steps * (TRAINING["base_s"] + TRAINING["extra_s"])
    for policy in POLICIES:
        answers = gang.ask({"do": "train", "policy": policy, "steps": steps, **TRAINING}, longest + 60)
        seconds = max(one["seconds"] for one in answers)
        rate[policy] = steps / seconds
        error[policy] = statistics.fmean(Plane.excess(TRAINING, np.array(one["model"])) for one in answers)
        busy = statistics.fmean(one["busy_s"] for one in answers) / seconds
        cells = (f"{rate[policy]:.2f}", f"{error[policy]:.4f}", f"{active_of(answers):.2f}", f"{busy:.3f}")
        grid.rows.append((policy, *cells))
    study.grids.append(grid)
    gained = {policy: rate[policy] / rate["full"] for policy in POLICIES}
    study.rows += [
        Row("E2, real: solo over full, +200 ms", "1.50", f"{gained['solo']:.2f}",
            "at least 1.3", gained["solo"] >= 1.3),
        Row("E2, real: majority over full, +200 ms", "1.37 against 1.64 step/s", f"{gained['majority']:.2f}",
            "between full and solo", 1 < gained["majority"] < gained["solo"]),
    ]  # fmt: skip
    for policy in ("solo", "majority"):
        off = error[policy] / error["full"] - 1
        study.rows.append(
            Row(f"E2, real: validation error, {policy}", "equivalent (about 4.7)",
                f"{error[policy]:.4f} against {error['full']:.4f} ({100 * off:+.2f} %)",
                "at most 2 % above full", off <= 0.02)
        )  # fmt: skip
