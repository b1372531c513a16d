# SPDX-License-Identifier: Apache-2.0
"""What trainings came to: time to an accuracy, and whether the targets were reached. Pure: from runs to rows.

The accuracy to reach is that of lossless Gloo over cubic with the same seed, on the same images, less the 0.3 points by
which the project lets the final accuracy differ. Where sparse gradients run beside dense ones alone, it is that of
the dense ones. Of several seeds the mean curve counts, and the mean of what is to be reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any

from tests.bench.criteria import Check

CALM, LOSSY, NARROW = "no loss", "1 % loss", "100 Mbit/s"
GLOO, BBR, OWN = "gloo cubic", "gloo bbr", "ultima bounded"
BEST_EFFORT, HADAMARD = "ultima best effort", "ultima best effort, Hadamard"
SPARSE = "ultima sparse 1 %"
INT8, INT4 = "ultima int8", "ultima int4"
QUANTISED = (INT8, INT4)
OWNS = (OWN, BEST_EFFORT, HADAMARD)
CONTENDERS = (GLOO, BBR, *OWNS)
SHOWN = (*CONTENDERS, SPARSE, *QUANTISED)
CHANCE = 0.1  # ten classes
TOLERANCE = 0.003
TO_CUBIC, TO_BETTER, TO_OWN, STEP_TO_GLOO, POINTS_BELOW = 0.5, 0.75, 1.06, 1.0, 0.3
SPARSE_TO_DENSE = 1 / 3
QUANTISED_TO_GLOO = 0.6

Point = tuple[int, float, float]


@dataclass(frozen=True)
class Run:
    """One training. Times are those of the slowest rank."""

    model: str
    network: str
    contender: str
    seed: int
    points: list[Point]
    """Step, seconds on the clock, accuracy of 0 to 1 on some of the test images."""
    final: float
    """Accuracy at the end, on all test images."""
    step_ms: list[float]
    receipts: dict[str, int] = field(default_factory=dict)
    """Ultima's, added up over all ranks."""
    op_ms: float | None = None
    """Ultima's: median time of the large ops, of the slowest rank."""
    deadline_s: float | None = None

    @property
    def seconds(self) -> float:
        return self.points[-1][1]

    @property
    def missing(self) -> float:
        """Share of the expected bytes that never came."""
        expected = self.receipts.get("expected_bytes", 0)
        return self.receipts["missing_bytes"] / expected if expected else 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        points = [(int(step), float(seconds), float(accuracy)) for step, seconds, accuracy in values["points"]]
        return cls(**{**values, "points": points})


def time_to(points: Sequence[Point], accuracy: float) -> float:
    """Seconds until |accuracy| was first reached, straight lines between the points; infinity if it never was."""
    then, best = 0.0, CHANCE
    for _, seconds, found in points:
        if found >= accuracy:
            return then + (seconds - then) * (accuracy - best) / (found - best) if found > best else seconds
        if found > best:
            best = found
        then = seconds
    return math.inf


def of(runs: Iterable[Run], model: str, network: str, contender: str) -> dict[int, Run]:
    """By seed."""
    return {run.seed: run for run in runs if (run.model, run.network, run.contender) == (model, network, contender)}


def targets(runs: Sequence[Run], model: str) -> dict[int, float]:
    """By seed, the accuracy to reach."""
    lossless = of(runs, model, CALM, GLOO) or of(runs, model, NARROW, OWN)
    return {seed: run.points[-1][2] - TOLERANCE for seed, run in lossless.items()}


def everywhere(runs: Sequence[Run], model: str, network: str, contender: str) -> dict[int, Run]:
    """By seed. Gloo loses nothing, so after each step it holds the same on every network: of seeds that ran without
    loss alone, those curves are given here by the clock of the seeds that ran here.
    """
    found = of(runs, model, network, contender)
    if contender not in (GLOO, BBR) or not found:
        return found
    clock = [seconds for _, seconds, _ in mean_curve(list(found.values()))]
    lossless = of(runs, model, CALM, GLOO)
    return {seed: replace(run, network=network, contender=contender, points=timed(run.points, clock))
            for seed, run in lossless.items()} | found  # fmt: skip


def timed(points: Sequence[Point], clock: Sequence[float]) -> list[Point]:
    return [(step, seconds, found) for (step, _, found), seconds in zip(points, clock, strict=True)]


def mean_curve(runs: Sequence[Run]) -> list[Point]:
    """The mean of |runs|, point by point; they were looked at after the same steps."""
    return [
        (points[0][0], fmean(seconds for _, seconds, _ in points), fmean(accuracy for _, _, accuracy in points))
        for points in zip(*(run.points for run in runs), strict=True)
    ]


def time_of(runs: Mapping[int, Run], wanted: Mapping[int, float]) -> float:
    """Seconds until the mean curve of the seeds of which an accuracy is wanted comes to the mean of those accuracies;
    infinity if it never does, NaN without such seeds.

    Single curves of one training end half a point apart. So of many that train equally well some miss a mark 0.3
    points below another curve's end, and the more seeds, the surer one of them does.
    """
    seeds = sorted(runs.keys() & wanted.keys())
    if not seeds:
        return math.nan
    return time_to(mean_curve([runs[seed] for seed in seeds]), fmean(wanted[seed] for seed in seeds))


def there(runs: Mapping[int, Run], wanted: Mapping[int, float]) -> int:
    """How many of the seeds come to what is wanted of them by themselves."""
    return sum(math.isfinite(time_to(runs[seed].points, wanted[seed])) for seed in runs.keys() & wanted.keys())


def ratio(mine: Mapping[int, Run], theirs: Mapping[int, Run], wanted: Mapping[int, float], rivals: bool) -> float:
    """`time_of` the seeds that both have, one by the other. NaN without any, or if they never get there; |rivals| that
    do not are given the time that they ran, which is to their favour.
    """
    both = {seed: wanted[seed] for seed in mine.keys() & theirs.keys() & wanted.keys()}
    time = time_of(theirs, both)
    if rivals and math.isinf(time):
        time = fmean(theirs[seed].seconds for seed in both)
    return time_of(mine, both) / time if math.isfinite(time) else math.nan


def checks(runs: Sequence[Run], model: str) -> list[Check]:
    """Every target of the project, for each of Ultima's ways."""
    rows = []
    wanted = targets(runs, model)
    cubic, bbr = (everywhere(runs, model, LOSSY, name) for name in (GLOO, BBR))
    for name in OWNS:
        case = f"{model}, {LOSSY}, {name}"
        mine, calm = of(runs, model, LOSSY, name), of(runs, model, CALM, name)
        if not mine:
            continue
        to = [ratio(mine, theirs, wanted, rivals=True) for theirs in (cubic, bbr)]
        better = math.nan if any(map(math.isnan, to)) else max(to)
        rows += [
            Check(case, "time to accuracy, to Gloo over cubic", to[0], TO_CUBIC),
            Check(case, "time to accuracy, to the better Gloo", better, TO_BETTER),
            Check(case, "time to accuracy, to its own without loss", ratio(mine, calm, wanted, rivals=False), TO_OWN),
            accuracy_check(runs, model, name),
        ]
    sparse, dense = (of(runs, model, NARROW, name) for name in (SPARSE, OWN))
    if sparse:
        case = f"{model}, {NARROW}, {SPARSE}"
        to_dense = ratio(sparse, dense, wanted, rivals=False)
        rows.append(Check(case, "time to accuracy, to dense gradients", to_dense, SPARSE_TO_DENSE))
    rivals = [everywhere(runs, model, CALM, name) for name in (GLOO, BBR)]
    for name in QUANTISED:
        mine = of(runs, model, CALM, name)
        if not mine:
            continue
        to = [ratio(mine, theirs, wanted, rivals=True) for theirs in rivals if theirs]
        case = f"{model}, {CALM}, {name}"
        rows += [
            step_check(runs, model, name, QUANTISED_TO_GLOO),
            Check(case, "time to accuracy, to the better Gloo", max(to, default=math.nan), QUANTISED_TO_GLOO),
            accuracy_check(runs, model, name, CALM),
        ]
    if not sparse or of(runs, model, CALM, OWN):
        rows.append(step_check(runs, model))
    return rows


def accuracy_check(runs: Sequence[Run], model: str, name: str, network: str = LOSSY) -> Check:
    """Points by which the mean final accuracy is below lossless Gloo's, over the seeds that both have."""
    mine, theirs = of(runs, model, network, name), of(runs, model, CALM, GLOO)
    both = sorted(mine.keys() & theirs.keys())
    case = f"{model}, {network}, {name}"
    title = "final accuracy, points below lossless Gloo"
    if not both:
        return Check(case, title, math.nan, POINTS_BELOW)
    mean, other = (100 * fmean(found[seed].final for seed in both) for found in (mine, theirs))
    note = f"{mean:.2f} and {other:.2f} %, {len(both)} seed{'s' if len(both) > 1 else ''}"
    return Check(case, title, other - mean, POINTS_BELOW, note=note)


def step_check(runs: Sequence[Run], model: str, name: str = OWN, limit: float = STEP_TO_GLOO) -> Check:
    """Median step without loss, over all seeds that both have."""
    mine, theirs = of(runs, model, CALM, name), of(runs, model, CALM, GLOO)
    both = sorted(mine.keys() & theirs.keys())
    case, title = f"{model}, {CALM}, {name}", "median step, to Gloo over cubic"
    if not both:
        return Check(case, title, math.nan, limit)
    own, gloo = (median([ms for seed in both for ms in found[seed].step_ms]) for found in (mine, theirs))
    return Check(case, title, own / gloo, limit, note=f"{own:.1f} and {gloo:.1f} ms")
