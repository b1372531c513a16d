# SPDX-License-Identifier: Apache-2.0
"""Plans of coded jobs: the examples of docs/papers.md, section 4.6, the identity behind every exact sum, and plans that
cannot be.
"""

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import chain, combinations

import pytest

from tests.seeds import seeds
from ultima.base.errors import InvalidArgument
from ultima.coded import Plan, tree

PLANS = [Plan(4, 1), Plan(5, 2), Plan(6, 2), Plan(7, 3), Plan(8, 0), Plan(8, 7), Plan(12, 1, 3), Plan(6, 0, 2),
         Plan(6, 1, 2), Plan(14, 1, 2), Plan(20, 1, 4), Plan(12, 2, 3), Plan(30, 2, 5), Plan(5, 1, 5), Plan(3, 0, 1),
         Plan(12, 3, code="linear"), Plan(2, 1, code="linear")]  # fmt: skip
NAMES = [f"{plan.workers}-{plan.stragglers}-{plan.children}-{plan.code}" for plan in PLANS]


@pytest.mark.parametrize("workers, stragglers, children, load", [
    (12, 1, 3, (4, 15)), (84, 1, 4, (1, 14)), (156, 1, 12, (1, 42)), (156, 2, 12, (1, 20)), (156, 3, 12, (1, 12)),
    (156, 5, 12, (1, 6)), (6, 0, 2, (1, 6)), (12, 2, 3, (1, 2)), (8, 1, None, (1, 4)), (16, 3, 16, (1, 4)),
])  # fmt: skip
def test_load__is_the_paper_s(workers: int, stragglers: int, children: int | None, load: tuple[int, int]) -> None:
    """Claim C1, as exact fractions; the last but one is the star's (s + 1) / N."""
    assert Plan(workers, stragglers, children, virtual=True).load == Fraction(*load)


def test_load__falls_sevenfold_from_one_layer_to_three() -> None:
    """C1, with half of the children late: 1/2 to 1/14 for many children, and what it is for 100 and 1000."""
    ratios = [tree.load(n, n // 2, 1) / tree.load(n, n // 2, 3) for n in (100, 1000)]
    assert [round(float(ratio), 2) for ratio in ratios] == [6.81, 6.98]


@pytest.mark.parametrize("shape, wanted", [((3, 1, 2), ["2/5", "1"]), ((4, 1, 3), ["1/7", "1/3", "1"]),
                                           ((12, 3, 2), ["1/4", "1"]), ((3, 2, 3), ["1/3", "1/2", "1"])])  # fmt: skip
def test_keeps__are_the_specification_s(shape: tuple[int, int, int], wanted: list[str]) -> None:
    assert tree.keeps(*shape) == tuple(map(Fraction, wanted))


@pytest.mark.parametrize("size, workers, stragglers, children, points", [
    (6552, 84, 1, 4, {468}), (6552, 156, 1, 12, {156}), (6552, 156, 2, 12, {327, 328}), (6552, 156, 3, 12, {546}),
    (7644, 84, 1, 4, {546}), (7644, 156, 1, 12, {182}), (7644, 156, 3, 12, {637}), (32760, 156, 3, 12, {2730}),
    (49920, 156, 5, 12, {8320}), (15, 12, 1, 3, {4}), (16, 12, 1, 3, {4, 5}), (17, 12, 1, 3, {4, 5}),
])  # fmt: skip
def test_allocation__gives_everybody_as_many_points(
    size: int, workers: int, stragglers: int, children: int, points: set[int]
) -> None:
    """docs/papers.md, section 4.2: r times d, or a point more or less where that is no whole number."""
    plan = Plan(workers, stragglers, children, virtual=True)
    counts = {sum(stop - start for start, stop, _ in plan.allocation(rank, size)) for rank in range(1, plan.hosts)}
    assert counts == points
    assert plan.allocation(0, size) == [], "the master of a tree computes nothing"


def test_allocation__of_fifteen_points_is_the_specification_s() -> None:
    """docs/papers.md, section 4.6, d = 15, the paper's code, the gradient of point j (from 1) is j: who has what, and
    what it sends.
    """
    plan, size = Plan(12, 1, 3), 15
    assert plan.code == "linear"

    def numbered(rank: int) -> dict[int, float]:
        rows = plan.allocation(rank, size)
        return {point + 1: coefficient for start, stop, coefficient in rows for point in range(start, stop)}

    assert plan.allocation(1, size) == [(0, 4, 0.5)]
    assert [numbered(rank) for rank in (4, 5, 6)] == [
        {5: 0.25, 6: 0.5, 7: 1, 8: 1},
        {7: 1, 8: 1, 9: -1, 10: -1},
        {5: 0.25, 6: 0.5, 9: 1, 10: 1},
    ]
    local = {rank: sum(point * each for point, each in numbered(rank).items()) for rank in range(1, 13)}
    assert (local[1], local[4], local[5], local[6]) == (5, 19.25, -4, 23.25)
    a = [[0, 1, 2], [1, 0, 1], [2, -1, 0]]
    for late in range(3):  # whichever grandchild is late, a child sends the same
        sent = [sum(a[late][at] * local[3 * child + 1 + at] for at in range(3)) + local[child] for child in (1, 2, 3)]
        assert sent == [47.5, -25, 72.5]
        assert [sum(x * y for x, y in zip(row, sent, strict=True)) for row in a] == [120] * 3


def one_each(plan: Plan, size: int, ranks: list[int]) -> None:
    """The coefficients of |ranks| times those of their data are one for every point: the sum is that of all data."""
    found = plan.decoding(ranks)
    assert found is not None and set(found) <= set(ranks)
    sums = [0.0] * size
    for rank, coefficient in found.items():
        for start, stop, each in plan.allocation(rank, size):
            for point in range(start, stop):
                sums[point] += coefficient * each
    assert sums == pytest.approx([1.0] * size, abs=1e-9), ranks


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_decoding__coefficients_times_data_are_one(plan: Plan, seed: int) -> None:
    """With as many late as may be, drawn for each parent, and for any number of points."""
    draw = random.Random(seed)
    for size in (1, plan.workers - 1 or 1, plan.workers + 1, 103, draw.randrange(1, 500)):
        for _ in range(5):
            late: set[int] = set()
            for parent in range(1 if plan.children is None else plan.hosts):
                first = 0 if plan.children is None else parent * plan.fan_out + 1
                if first < plan.hosts:
                    late |= set(draw.sample(range(first, first + plan.fan_out), plan.stragglers))
            one_each(plan, size, [rank for rank in range(plan.first, plan.hosts) if rank not in late])
        one_each(plan, size, list(range(plan.hosts)))


def carried_up(plan: Plan, came: set[int], whole: Callable[[list[int]], bool]) -> bool:
    """CR.Execute by the paper: a worker sends when its children have sent enough, the master decodes when its have."""
    sent: set[int] = set()
    for node in reversed(range(plan.hosts)):
        below = [at for at in range(plan.fan_out) if node * plan.fan_out + 1 + at in sent]
        leaf = node * plan.fan_out + 1 >= plan.hosts
        if (leaf or whole(below)) and (node in came or node == 0):
            sent.add(node)
    return 0 in sent


@pytest.mark.parametrize("plan, whole", [
    (Plan(12, 1, 3), lambda below: len(below) >= 2),
    (Plan(12, 2, 3), lambda below: len(below) >= 1),
    (Plan(6, 1, 2), lambda below: len(below) >= 1),
])  # fmt: skip
def test_decodable__is_what_the_tree_can_carry(plan: Plan, whole: Callable[[list[int]], bool]) -> None:
    """Every set of ranks that came, as the paper executes it: claimed exactly when it is so."""
    for bits in range(2**plan.workers):
        came = {rank for rank in range(1, plan.hosts) if bits >> rank - 1 & 1}
        assert plan.decodable(came) == carried_up(plan, came, whole), came


def test_decoding__every_pattern_of_late_children_of_the_small_tree_is_exact() -> None:
    """C2: one late under each of the four parents of (3, 2), or none: 4^4 patterns."""
    plan = Plan(12, 1, 3)
    ways = [[(), *((3 * parent + 1 + at,) for at in range(3))] for parent in range(4)]
    patterns = [set(chain(a, b, c, d)) for a in ways[0] for b in ways[1] for c in ways[2] for d in ways[3]]
    assert len(patterns) == 256
    for late in patterns:
        one_each(plan, 15, [rank for rank in range(1, 13) if rank not in late])


def test_decodable__of_a_star_with_groups_wants_one_of_each() -> None:
    plan = Plan(6, 1)
    assert plan.code == "groups"
    for count in range(7):
        for came in combinations(range(6), count):
            assert plan.decodable(came) == ({rank // 2 for rank in came} == {0, 1, 2})


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
@pytest.mark.parametrize("size", [1, 7, 103, 1000])
def test_parts__nobody_s_allocation_divides_one(plan: Plan, size: int) -> None:
    """And together they are all points, each once."""
    parts = plan.parts(size)
    assert [point for start, stop in parts for point in range(start, stop)] == list(range(size))
    edges = {start for start, _ in parts} | {size}
    for rank in range(plan.hosts):
        for start, stop, coefficient in plan.allocation(rank, size):
            assert start in edges and stop in edges and coefficient != 0


def test_parts__of_groups_are_one_for_each_group() -> None:
    assert Plan(6, 1).parts(600) == [(0, 200), (200, 400), (400, 600)]
    assert [Plan(6, 1).allocation(rank, 600) for rank in (2, 3)] == [[(200, 400, 1.0)]] * 2


def test_seed__differs_by_step_and_part_and_by_nothing_else() -> None:
    plan = Plan(6, 1)
    drawn = {plan.seed(step, part) for step in range(100) for part in range(100)}
    assert len(drawn) == 100 * 100 and max(drawn) < 2**64
    assert plan.seed(7, 3) == Plan(12, 1, 3).seed(7, 3) == 0x6BAA78681A99F995


def test_plan__holds_the_code_that_was_chosen() -> None:
    assert Plan(4, 1).code == "groups" and Plan(5, 1).code == "linear"
    assert Plan(4, 1) == Plan(4, 1, code="groups") != Plan(4, 1, code="linear")
    assert Plan(4, 1, code="linear").load == Plan(4, 1).load
    assert (Plan(4, 1).hosts, Plan(12, 1, 3).hosts) == (4, 13), "the tree's master is a host too"
    assert Plan(12, 1, 3).amplification == pytest.approx(9), "the code's own, once for each layer"


def test_plan__takes_every_tree_of_a_real_job() -> None:
    for workers, children in [(62, 2), (39, 3), (20, 4), (56, 7), (63, 63)]:
        assert Plan(workers, 0, children).workers == workers


@pytest.mark.parametrize("arguments, message", [
    (dict(workers=0, stragglers=0), "workers is 0; allowed: a whole number of 1 or more"),
    (dict(workers=65, stragglers=0), "workers is 65; allowed: at most 64, because a job has at most 64 hosts"),
    (dict(workers=64, stragglers=0, children=64), "at most 63, because a job has at most 64 hosts"),
    (dict(workers=84, stragglers=1, children=4), "at most 63, because a job has at most 64 hosts"),
    (dict(workers=10, stragglers=1, children=3), "workers is 10; allowed: 3, 12, 39, which fill a tree of 3 children"),
    (dict(workers=4, stragglers=4), "at most 3, because one of the 4 workers must be in time"),
    (dict(workers=12, stragglers=3, children=3), "at most 2, because one of the 3 children of a parent must be"),
    (dict(workers=4, stragglers=-1), "stragglers is -1; allowed: a whole number of 0 or more"),
    (dict(workers=4, stragglers=True), "stragglers is True; allowed: a whole number"),
    (dict(workers=4, stragglers=1, children=0), "children is 0; allowed: a whole number of 1 or more"),
    (dict(workers=4, stragglers=1, code="best"), "code is 'best'; allowed: auto, groups, linear"),
    (dict(workers=4, stragglers=2, code="groups"), "stragglers is 2; allowed: one less than a divisor of 4 with "
     "groups; the nearest plan with groups is Plan(4, stragglers=3)"),
    (dict(workers=20, stragglers=6), "stragglers is 6; allowed: what a linear code of 20 children can bear in "
     "float32; the nearest plan with groups is Plan(20, stragglers=4)"),
    (dict(workers=17, stragglers=7), "the nearest plan with groups is Plan(16, stragglers=7)"),
    (dict(workers=39, stragglers=1, children=3, code="groups"), "groups is Plan(39, stragglers=2, children=3)"),
])  # fmt: skip
def test_plan__that_cannot_be_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Plan(**arguments)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_plan__the_nearest_one_can_be_had() -> None:
    """Whatever is refused for its code: the plan that the message names is none that would be refused."""
    refused = 0
    for workers in range(3, 18):
        for stragglers in range(1, workers):
            try:
                plan = Plan(workers, stragglers)
            except InvalidArgument as error:
                refused += 1
                nearest = str(error).partition("groups is ")[2]
                assert eval(nearest, {"Plan": Plan}).amplification == 1
            else:
                assert plan.amplification <= 1000
    assert refused > 8


@pytest.mark.parametrize("rank", [-1, 4, 1.0, True, "1"])
def test_ranks__of_no_plan_are_named(rank: object) -> None:
    for call in (lambda: Plan(4, 1).allocation(rank, 10), lambda: Plan(4, 1).decodable([rank])):  # type: ignore
        with pytest.raises(InvalidArgument, match=r"rank is .*; allowed: a rank of this plan, 0 to 3"):
            call()


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_size__is_a_whole_number_of_points(size: object) -> None:
    with pytest.raises(InvalidArgument, match="size is "):
        Plan(4, 1).allocation(0, size)  # type: ignore[arg-type]
