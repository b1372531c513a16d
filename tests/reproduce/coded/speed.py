# SPDX-License-Identifier: Apache-2.0
"""C3, C5: seconds of a step in the paper's own model of time (section V-B, Figure 13)."""

from __future__ import annotations

import numpy as np

from tests.reproduce.coded.virtual import Model, tree_times
from tests.reproduce.study import Grid, Row, Study
from ultima.coded import tree

STEPS, SEED = 2500, 1
CHILDREN, DEPTH, LATE = 12, 2, 5
WORKERS = tree.workers_of(CHILDREN, DEPTH)
MODEL = Model(a=5e-5, mu=1 / 5e-5, t_c=0.05, points=49920)
# What the paper gained over each, and E[T_(n-s)] of one parent's children by its formula.
PAPER = {"uncoded": 6.6, "gradient coding": 4.8, "SGD": 4.0, "ring": 1.8}
ORDER_STATISTIC = 0.757073


def schemes(steps: int = STEPS, seed: int = SEED) -> dict[str, float]:
    """Mean seconds of a step by scheme."""
    many = LATE * WORKERS // CHILDREN  # the same share of stragglers, under one master
    load = float(tree.load(CHILDREN, LATE, DEPTH))
    times = {
        "CodedReduce": tree_times(MODEL, load, CHILDREN, DEPTH, LATE, steps, np.random.default_rng(seed)),
        "uncoded": tree_times(MODEL, 1 / WORKERS, WORKERS, 1, 0, steps, np.random.default_rng(seed)),
        "gradient coding": tree_times(
            MODEL, (many + 1) / WORKERS, WORKERS, 1, many, steps, np.random.default_rng(seed)
        ),
        "SGD": tree_times(MODEL, 1 / WORKERS, WORKERS, 1, many, steps, np.random.default_rng(seed)),
    }
    return {name: float(each.mean()) for name, each in times.items()}


def ring(vector_steps: bool, steps: int = STEPS, seed: int = SEED) -> float:
    """Mean seconds of a step over a ring; each of its 2 (N - 1) steps takes t_c, or t_c / N."""
    slowest = MODEL.compute(1 / WORKERS, (steps, WORKERS), np.random.default_rng(seed)).max(axis=1)
    each = MODEL.t_c if vector_steps else MODEL.t_c / WORKERS
    return float(slowest.mean()) + 2 * (WORKERS - 1) * each


def run(steps: int = STEPS) -> Study:
    study = Study(
        "speed",
        "C3, C5: seconds of a step in the paper's model (Figure 13)",
        f"Virtual time: N = {WORKERS} workers in a tree of {CHILDREN} children and {DEPTH} layers, s = {LATE}, "
        f"{MODEL.points} points, a = {MODEL.a:g} s, a mu = 1, t_c = {MODEL.t_c:g} s, {steps} steps, seed {SEED}. "
        "Computing takes a shifted exponential time; each parent receives one vector at a time. The paper has no model "
        "of its ring, and none gives its factor: the two that suggest themselves are told.",
    )
    seconds = schemes(steps)
    ours = {name: each / seconds["CodedReduce"] for name, each in seconds.items()}
    grid = Grid("Mean seconds of a step", ("scheme", "seconds", "to CodedReduce", "paper"))
    for name, each in seconds.items():
        grid.rows.append((name, f"{each:.3f}", f"{ours[name]:.2f}", f"{PAPER.get(name, 1):g}"))
    study.grids.append(grid)
    for name in ("uncoded", "gradient coding", "SGD"):
        study.rows.append(
            Row(f"C3: CodedReduce over {name}", f"{PAPER[name]:g} times", f"{ours[name]:.2f} times",
                f"{PAPER[name]:g} within 10 %", abs(ours[name] / PAPER[name] - 1) <= 0.10)
        )  # fmt: skip
    whole, part = (ring(each, steps) / seconds["CodedReduce"] for each in (True, False))
    study.rows.append(
        Row("C3: CodedReduce over ring", f"{PAPER['ring']:g} times", f"{part:.2f} times with t_c / N for each of its "
            f"steps, {whole:.1f} times with t_c", "not reproducible: the paper does not say what a step of its ring "
            "costs", None)
    )  # fmt: skip
    rng = np.random.default_rng(SEED)
    load = float(tree.load(CHILDREN, LATE, DEPTH))
    drawn = np.sort(MODEL.compute(load, (20 * steps, CHILDREN), rng), axis=1)[:, CHILDREN - LATE - 1].mean()
    by_formula = MODEL.order_statistic(CHILDREN, LATE, load)
    near = abs(float(drawn) / ORDER_STATISTIC - 1) <= 0.01 and abs(by_formula / ORDER_STATISTIC - 1) < 1e-5
    study.rows.append(
        Row("C5: until all but s of a parent's children have computed", f"{ORDER_STATISTIC:.5f} s by its formula",
            f"{drawn:.5f} s drawn, {by_formula:.5f} s by the formula", "within 1 %", near)
    )  # fmt: skip
    return study
