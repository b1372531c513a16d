# SPDX-License-Identifier: Apache-2.0
"""E5, eager-SGD's Figure 12, and its Theorem 6.3: what stale gradients do to a model."""

from __future__ import annotations

import numpy as np

from tests.reproduce.partial import blocking, learning, theory, workload
from tests.reproduce.partial.tasks import Digits, Hyperplane
from tests.reproduce.study import Grid, Plot, Row, Study

POLICIES = ("full", "majority", "solo")
SEEDS = (1, 2, 3)
RANKS, BASE_MS, LOW_MS, HIGH_MS = 8, 100.0, 50.0, 400.0
SYNC_EVERY = 100


def run(steps: int = 600) -> Study:
    study = Study(
        "accuracy",
        "E5: severe imbalance, and what is learned (Figure 12); Theorem 6.3",
        f"Virtual time and models in numpy: {RANKS} ranks, {BASE_MS:g} ms of computing and {LOW_MS:g} to {HIGH_MS:g} "
        "ms more that move on by a rank in every step; a net of 64-64-10 on digits and a regression, "
        f"{steps} steps, seeds {', '.join(map(str, SEEDS))}, each rank with a replica of its own, the model "
        f"synchronized every {SYNC_EVERY} steps. The paper trains ResNet-32; what is compared is the direction.",
    )
    compute = workload.shifting(steps, RANKS, BASE_MS, LOW_MS, HIGH_MS)
    runs = {policy: blocking.run(compute, policy, sync=SYNC_EVERY) for policy in POLICIES}
    tasks = [Digits(seed) for seed in SEEDS]
    regressions = [Hyperplane(seed) for seed in SEEDS]
    header = ("policy", "steps/s", "active ranks", "accuracy %", "loss of the digits", "loss of the regression")
    grid = Grid("Throughput and what was learned (means of the seeds)", header)
    accuracy: dict[str, float] = {}
    curves = {}
    for policy, timed in runs.items():
        learned = [learning.eager(task, timed, SYNC_EVERY, look_every=10_000.0) for task in tasks]
        plain = [learning.eager(task, timed, SYNC_EVERY) for task in regressions]
        accuracy[policy] = float(np.mean([task.accuracy(one.mean) for task, one in zip(tasks, learned, strict=True)]))
        losses = float(np.mean([task.loss(one.mean) for task, one in zip(tasks, learned, strict=True)]))
        errors = float(np.mean([task.loss(one.mean) for task, one in zip(regressions, plain, strict=True)]))
        grid.rows.append((policy, f"{1e3 * timed.rate:.2f}", f"{timed.active_mean:.2f}", f"{accuracy[policy]:.2f}",
                          f"{losses:.4f}", f"{errors:.3f}"))  # fmt: skip
        curves[policy] = ([time / 1e3 for time in learned[0].times],
                          [float(value) for value in np.mean([one.losses for one in learned], axis=0)])  # fmt: skip
    study.grids.append(grid)
    title = "Loss over time, digits, 8 ranks, +50 to 400 ms that move on"
    study.plots.append(Plot("eager_loss", title, "seconds of virtual time", "loss", curves, log_y=True))
    lost = {policy: accuracy["full"] - accuracy[policy] for policy in POLICIES}
    rate = {policy: timed.rate for policy, timed in runs.items()}
    study.rows += [
        Row("E5: accuracy of majority", "as synchronous", f"{accuracy['majority']:.2f} of {accuracy['full']:.2f} %",
            "within 1 point", abs(lost["majority"]) <= 1),
        Row("E5: order of throughput", "solo > majority > full",
            ", ".join(f"{policy} {1e3 * rate[policy]:.2f}" for policy in reversed(POLICIES)) + " steps/s",
            "the same", rate["solo"] > rate["majority"] > rate["full"]),
        Row("E5: majority over full", "1.29", f"{rate['majority'] / rate['full']:.2f}",
            "reported: the time of computing is not published", None),
        Row("E5: solo is less accurate", "lower test accuracy", f"{accuracy['solo']:.2f} of {accuracy['full']:.2f} %",
            "at least 1 point lost", lost["solo"] >= 1),
    ]  # fmt: skip
    _theorem(study)
    return study


def _theorem(study: Study) -> None:
    cases = (
        ((0.1, 8, 4, 1, 1, 2), (0.258199, 0.447214, 0.00833333)),
        ((0.1, 32, 1, 1, 1, 10), (0.165912, 0.287368, 0.00833333)),
        ((0.1, 8, 8, 1, 1, 2), (0.00833333,)),
    )
    holds = all(np.allclose(theory.learning_rate_terms(*case), expected, rtol=1e-5) for case, expected in cases)
    terms = theory.learning_rate_terms(*cases[0][0])
    needed = theory.steps_needed(1.0, min(terms), 0.1)
    study.rows.append(
        Row("Theorem 6.3: terms of the learning rate's bound, P=8, Q=4, tau=2", "0.258199, 0.447214, 0.00833333",
            ", ".join(f"{term:.6g}" for term in terms) + f"; at least {needed:.0f} steps", "exact, 28800 steps",
            holds and abs(needed - 28800) < 1)
    )  # fmt: skip
    active = [theory.active_mean(policy, 32) for policy in ("full", "majority", "probe", "solo")]
    study.rows.append(
        Row("Active ranks to be expected, P=32: full, majority, 2 probes, solo", "32, 16.5, 11, 1",
            ", ".join(f"{one:g}" for one in active), "exact", active == [32, 16.5, 11, 1])
    )  # fmt: skip
