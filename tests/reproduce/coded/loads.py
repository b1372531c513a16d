# SPDX-License-Identifier: Apache-2.0
"""C1: how much each worker computes (Theorem 1), as exact fractions, and what `Plan.allocation` really hands out."""

from __future__ import annotations

from fractions import Fraction

from tests.reproduce.study import Grid, Row, Study
from ultima.coded import Plan, tree

# (children, layers, stragglers) -> r_CR, as the paper's formula gives it.
LOADS = {
    (3, 2, 1): Fraction(4, 15),
    (4, 3, 1): Fraction(1, 14),
    (12, 2, 1): Fraction(1, 42),
    (12, 2, 2): Fraction(1, 20),
    (12, 2, 3): Fraction(1, 12),
    (12, 2, 5): Fraction(1, 6),
    (2, 2, 0): Fraction(1, 6),
    (5, 3, 4): Fraction(1, 3),
}
# (children, layers, stragglers, points of data) -> points that each worker computes, of the paper's experiments.
POINTS = {
    (4, 3, 1, 6552): 468,
    (12, 2, 1, 6552): 156,
    (12, 2, 3, 6552): 546,
    (4, 3, 1, 7644): 546,
    (12, 2, 1, 7644): 182,
    (12, 2, 3, 7644): 637,
    (12, 2, 3, 32760): 2730,
    (12, 2, 5, 49920): 8320,
}


def computed(children: int, depth: int, late: int, size: int) -> list[int]:
    """Points of data that the plan hands to each worker."""
    workers = tree.workers_of(children, depth)
    plan = Plan(workers, stragglers=late, children=children, virtual=True)
    ranks = range(plan.first, plan.hosts)
    return [sum(stop - start for start, stop, _ in plan.allocation(rank, size)) for rank in ranks]


def gain(children: int) -> Fraction:
    """By how much three layers reduce the load of one, at half of the children late."""
    return tree.load(children, children // 2, 1) / tree.load(children, children // 2, 3)


def run() -> Study:
    study = Study(
        "loads",
        "C1: how much a worker computes (Theorem 1)",
        "Exact fractions, and the points of data that the plan hands to every worker where the shares are whole. Where "
        "they are not, the paper says nothing; here loads differ by a few points, and the sum is as exact.",
    )
    grid = Grid("Share of all data that a worker computes", ("children", "layers", "stragglers", "share", "gradient "
                "coding"))  # fmt: skip
    for (children, depth, late), share in LOADS.items():
        workers = tree.workers_of(children, depth)
        # The same share of late workers, under one master.
        coded = Fraction(late * workers // children + 1, workers)
        grid.rows.append((str(children), str(depth), str(late), str(share), str(coded)))
    study.grids.append(grid)
    exact = {key: tree.load(key[0], key[2], key[1]) for key in LOADS}
    study.rows.append(
        Row("C1: share of each worker, 8 trees", "1 / (x + ... + x^L), x = n / (s + 1)",
            ", ".join(map(str, exact.values())), "equal fractions", exact == LOADS)
    )  # fmt: skip
    handed = {key: set(computed(*key)) for key in POINTS}
    study.rows.append(
        Row("C1: points of the paper's experiments", ", ".join(map(str, POINTS.values())),
            ", ".join("/".join(map(str, sorted(found))) for found in handed.values()),
            "every worker computes exactly these", handed == {key: {each} for key, each in POINTS.items()})
    )  # fmt: skip
    uneven = sorted(set(computed(12, 2, 2, 6552)))
    study.rows.append(
        Row("C1: a share that is not whole, (12, 2), s = 2, 6552 points", "327.6",
            " and ".join(map(str, uneven)), "327 and 328", uneven == [327, 328])
    )  # fmt: skip
    limit = [Fraction(1, 2), Fraction(1, 6), Fraction(1, 14)]
    halves = [Fraction(1, sum(2**layer for layer in range(1, depth + 1))) for depth in (1, 2, 3)]
    gains = {children: gain(children) for children in (10, 100, 1000)}
    rising = list(gains.values()) == sorted(gains.values()) and gains[1000] < 7
    study.rows.append(
        Row("C1: three layers for one, half of the children late", "7 times less load, 1/2 to 1/14",
            ", ".join(f"{float(each):.2f} (n = {children})" for children, each in gains.items()),
            "the limit is 7, and n = 1000 is within 1 %",
            halves == limit and rising and gains[1000] > Fraction(693, 100))
    )  # fmt: skip
    return study
