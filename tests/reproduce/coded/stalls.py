# SPDX-License-Identifier: Apache-2.0
"""When coding pays: stalls that do not depend on the load, beside policies that go on without the late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reproduce.coded import steps
from tests.reproduce.coded.logistic import Logistic, Shares
from tests.reproduce.partial import blocking, learning
from tests.reproduce.partial.workload import Values
from tests.reproduce.study import Grid, Plot, Row, Study
from ultima.coded import Plan

RANKS, PROBABILITY, SEED = 8, 0.1, 7
LENGTHS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
STEPS = 600
# Closed forms: with which stall a star of s = 1 is as fast as waiting for all, and its part with delays by load.
BREAK_EVEN = {4: 3.1, 8: 1.9, 16: 1.4}
PROPORTIONAL = {4: 0.88, 8: 0.91, 16: 0.93}
NEAR = 0.05  # the distance to the best loss that a training must come to, in parts of the loss at its start


def drawn(count: int, ranks: int, seed: int = SEED) -> Values:
    """1 where a rank stalls in a step, [step, rank]."""
    return (np.random.default_rng(seed).random((count, ranks)) < PROBABILITY).astype(float)


def star(stalled: Values, length: float, interrupted: bool, late: int = 1) -> steps.Run:
    """A star of that many ranks, computing 1 uncoded and |late| + 1 times that coded, stalls of |length|."""
    ranks = stalled.shape[1]
    plan = Plan(ranks, stragglers=late)
    compute = np.full(stalled.shape, 1.0 + late)
    if interrupted:
        # Stalls that end with the step: each step stands alone.
        waits = compute + length * stalled
        return steps.Run(np.cumsum([_until(row, plan) for row in waits]))
    return steps.run(compute, length * stalled, plan.decodable)


def _until(ready: Values, plan: Plan) -> float:
    came: set[int] = set()
    for rank in np.argsort(ready, kind="stable"):
        came.add(int(rank))
        if plan.decodable(came):
            return float(ready[rank])
    raise AssertionError("all ranks decode")


def break_even(ranks: int, late: int = 1) -> float:
    """The length of a stall, in uncoded computing, from which a star is faster than waiting for all; closed form."""
    groups = ranks // (late + 1)
    all_wait = 1 - (1 - PROBABILITY) ** ranks
    star_waits = 1 - (1 - PROBABILITY ** (late + 1)) ** groups
    return late / (all_wait - star_waits)


def proportional(ranks: int) -> float:
    """Uncoded over a star of s = 1 where computing takes a shifted exponential time of mean twice the shift."""
    rng = np.random.default_rng(SEED)
    plain = 1 + rng.exponential(1.0, (20_000, ranks)).max(axis=1)
    twice = 2 * (1 + rng.exponential(1.0, (20_000, ranks // 2, 2)).min(axis=2).max(axis=1))
    return float(plain.mean() / twice.mean())


def time_to(task: Logistic, curve: tuple[list[float], list[float]], goal: float) -> float:
    """The first time with a loss of at most |goal|; NaN for never."""
    return next((time for time, loss in zip(*curve, strict=True) if loss <= goal), float("nan"))


def curves(task: Logistic, length: float, count: int = STEPS) -> dict[str, tuple[list[float], list[float]]]:
    """Times and losses of a training by who is waited for; stalls of |length|, in units of uncoded computing."""
    stalled = drawn(count, RANKS)
    found = {}
    for name, policy in (("none", "full"), ("quorum", "quorum"), ("majority", "majority")):
        timed = blocking.run(1 + length * stalled, policy, quorum=RANKS - 1, seed=SEED)
        learned = learning.eager(Shares(task, RANKS), timed, look_every=float(timed.left[-1].max()) / 400)
        found[name] = (learned.times, learned.losses)
    flat, losses = task.start(), [task.loss(task.start())]
    for _ in range(count):
        flat = task.step(flat, task.rows(flat, 0, task.size))
        losses.append(task.loss(flat))
    ended = star(stalled, length, interrupted=False).ended
    found["coded, s = 1"] = ([0.0, *map(float, ended)], losses)
    return found


def run(count: int = STEPS) -> Study:
    task = Logistic()
    study = Study(
        "stalls",
        "When coding pays",
        f"Virtual time; the unit is what a rank computes in a step without coding. {RANKS} ranks, each stalls in a "
        f"step with a probability of {PROBABILITY:g}, {count} steps, seed {SEED}; an op takes no time. A stalled rank "
        f"cannot look whether its step is over, and hosts keep the last {steps.LAG} results, so a stall of more than a "
        "few steps holds up a coded job, too. Beside it stands a rank that looks all the time, which is what the "
        f"closed forms assume. quorum waits for {RANKS - 1} of {RANKS}, majority for a rank drawn at random. What is "
        f"learned is the logistic regression of C4, until its loss is {NEAR:.0%} of the way from the best to the "
        "first.",
    )
    _paces(study, count)
    _training(study, task, count)
    found = {ranks: break_even(ranks) for ranks in BREAK_EVEN}
    study.rows.append(
        Row("A star of s = 1 needs stalls longer than", "-",
            ", ".join(f"{each:.1f} (N = {ranks})" for ranks, each in found.items()) + " times uncoded computing",
            "3.1, 1.9, 1.4 within 0.05", all(abs(found[ranks] - each) <= 0.05 for ranks, each in BREAK_EVEN.items()))
    )  # fmt: skip
    slower = {ranks: proportional(ranks) for ranks in PROPORTIONAL}
    study.rows.append(
        Row("With delays in proportion to the load a star of s = 1 loses", "-",
            ", ".join(f"{each:.2f} (N = {ranks})" for ranks, each in slower.items()) + " of uncoded speed",
            "0.88, 0.91, 0.93 within 0.01",
            all(abs(slower[ranks] - each) <= 0.01 for ranks, each in PROPORTIONAL.items()))
    )  # fmt: skip
    return study


def _paces(study: Study, count: int) -> None:
    stalled = drawn(count, RANKS)
    grid = Grid("Units of time for a step", ("stall", "none", f"quorum {RANKS - 1}", "majority", "coded, s = 1",
                "coded, if a stall ends with its step"))  # fmt: skip
    for length in LENGTHS:
        times = 1 + length * stalled
        shown = [1 / blocking.run(times, policy, quorum=RANKS - 1, seed=SEED).rate
                 for policy in ("full", "quorum", "majority")]  # fmt: skip
        shown += [star(stalled, length, each).mean for each in (False, True)]
        grid.rows.append((f"{length:g}", *(f"{each:.2f}" for each in shown)))
    study.grids.append(grid)


def _training(study: Study, task: Logistic, count: int) -> None:
    best = task.loss(task.uncoded(20 * count))
    goal = best + NEAR * (task.loss(task.start()) - best)
    names = ("none", "quorum", "majority", "coded, s = 1")
    grid = Grid("Units of time to the loss", ("stall", *names))
    shown: dict[str, tuple[list[float], list[float]]] = {}
    for length in LENGTHS:
        shown = curves(task, length, count)
        cells = [time_to(task, shown[name], goal) for name in names]
        grid.rows.append((f"{length:g}", *("never" if np.isnan(each) else f"{each:.0f}" for each in cells)))
    study.grids.append(grid)
    title = f"Loss above the best, {RANKS} ranks, stalls of {LENGTHS[-1]:g} units"
    lines: dict[str, tuple[Sequence[float], Sequence[float]]]
    lines = {name: (times, [loss - best for loss in losses]) for name, (times, losses) in shown.items()}
    study.plots.append(Plot("coded_stalls", title, "units of time", "loss above the best", lines, log_y=True))
