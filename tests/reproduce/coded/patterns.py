# SPDX-License-Identifier: Apache-2.0
"""C2: any s late children of each parent leave the sum exact. All patterns of the (3, 2) tree, and drawn ones of
others, by the plan's own coefficients and with what travels rounded to float32."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.making import BUILD, make
from tests.reproduce.coded.logistic import decoded
from tests.reproduce.partial.workload import Values
from tests.reproduce.study import Grid, Row, Study
from ultima.coded import Plan

SEED, DRAWN, SIZE, WIDTH = 2, 200, 240, 50
PLANS = {
    "tree (3, 2), s = 1": Plan(12, stragglers=1, children=3),
    "tree (4, 2), s = 1": Plan(20, stragglers=1, children=4),
    "tree (3, 3), s = 2": Plan(39, stragglers=2, children=3),
    "star of 12, s = 1": Plan(12, stragglers=1),
    "star of 7, s = 2": Plan(7, stragglers=2),
    "star of 13, s = 4": Plan(13, stragglers=4),
}


@dataclass
class Found:
    """Of some patterns: how many, how many could be decoded, and the largest relative error of the sum."""

    patterns: int = 0
    decodable: int = 0
    double: float = 0.0
    wire: float = 0.0


def bearable(plan: Plan) -> Iterator[set[int]]:
    """All sets of ranks in which each parent of a tree has exactly s late children (3^4 of the tree (3, 2), s = 1)."""
    assert plan.children is not None
    workers = range(plan.first, plan.hosts)
    families = [workers[at : at + plan.children] for at in range(0, len(workers), plan.children)]
    choices = [list(itertools.combinations(family, plan.stragglers)) for family in families]
    for late in itertools.product(*choices):
        yield set(workers) - set(itertools.chain.from_iterable(late))


def everything(plan: Plan) -> Iterator[set[int]]:
    """All sets of workers."""
    workers = range(plan.first, plan.hosts)
    for bits in range(1 << plan.workers):
        yield {rank for at, rank in enumerate(workers) if bits >> at & 1}


def drawn(plan: Plan, count: int, rng: np.random.Generator) -> Iterator[set[int]]:
    """Sets without s late children, or a few more, of every parent."""
    workers = np.arange(plan.first, plan.hosts)
    for _ in range(count):
        late = rng.random(len(workers)) < plan.stragglers / plan.fan_out
        yield set(workers[~late].tolist())


class Sums:
    """Gradients of |SIZE| points, each drawn, and what the ranks of |plan| make of them."""

    def __init__(self, plan: Plan, rng: np.random.Generator) -> None:
        points = rng.standard_normal((SIZE, WIDTH))
        self.plan, self.total = plan, points.sum(axis=0)
        self.given: Values = np.zeros((plan.hosts, WIDTH))
        for rank in range(plan.first, plan.hosts):
            for start, stop, coefficient in plan.allocation(rank, SIZE):
                self.given[rank] += coefficient * points[start:stop].sum(axis=0)
        self._wire = self.given.astype(np.float32)
        self._scale = float(np.linalg.norm(self.total))

    def look(self, came: set[int], found: Found) -> None:
        found.patterns += 1
        coefficients = self.plan.decoding(came)
        wire = decoded(self.plan, self._wire, came)
        assert (wire is None) == (coefficients is None)
        if coefficients is None or wire is None:
            return
        found.decodable += 1
        sum_of = sum(each * self.given[rank] for rank, each in coefficients.items())
        found.double = max(found.double, float(np.linalg.norm(sum_of - self.total)) / self._scale)
        found.wire = max(found.wire, float(np.linalg.norm(wire - self.total)) / self._scale)


def look(plan: Plan, patterns: Callable[[Plan], Iterator[set[int]]]) -> Found:
    found, sums = Found(), Sums(plan, np.random.default_rng(SEED))
    for came in patterns(plan):
        sums.look(came, found)
    return found


def engine_holds() -> bool:
    """What the engines make of every set of givers of the tree (3, 2): a test of theirs that knows the answers."""
    make("build/unit/test_coded_tree")
    return subprocess.run([BUILD / "unit/test_coded_tree", "--all"], timeout=300, check=False).returncode == 0


def run() -> Study:
    study = Study(
        "patterns",
        "C2: the sum although children are late",
        f"Gradients of {SIZE} points with {WIDTH} random values each, coded by the plan, and decoded from sets of "
        "ranks: in double, and with all that travels rounded to float32. Every set of the 12 workers of the tree "
        f"(3, 2) is looked at; of the other plans {DRAWN} drawn ones, seed {SEED}. This is the plans' arithmetic; the "
        "engine's is looked at beside it.",
    )
    grid = Grid("Patterns", ("plan", "sets", "decodable", "error in double", "error of float32"))
    small = PLANS["tree (3, 2), s = 1"]
    one_late, all_sets = look(small, bearable), look(small, everything)
    rows = {"tree (3, 2), one late of each parent": one_late, "tree (3, 2), all sets": all_sets}
    for name, plan in PLANS.items():
        if plan is not small:
            rows[name] = look(plan, lambda each: drawn(each, DRAWN, np.random.default_rng(SEED)))
    for name, found in rows.items():
        cells = (str(found.patterns), str(found.decodable), f"{found.double:.1e}", f"{found.wire:.1e}")
        grid.rows.append((name, *cells))
    study.grids.append(grid)
    double, wire = max(each.double for each in rows.values()), max(each.wire for each in rows.values())
    study.rows += [
        Row("C2: any one late child of each parent of the tree (3, 2)", "exact", f"{one_late.decodable} of "
            f"{one_late.patterns} patterns decoded", "81 of 81", (one_late.decodable, one_late.patterns) == (81, 81)),
        Row("C2: every sum that is claimed is the sum", "exact", f"largest relative error {double:.1e} in double, "
            f"{wire:.1e} with float32 on the wire, {sum(each.decodable for each in rows.values())} patterns",
            "below 1e-10, and below 1e-4", double < 1e-10 and wire < 1e-4),
        Row("C2: the same of the engine, all sets of the tree (3, 2)", "exact", "13 engines over a wire in virtual "
            "time: each of the 4096 sets gives; exact on all if it is decodable, and else not before others give too",
            "every set", engine_holds()),
    ]  # fmt: skip
    return study
