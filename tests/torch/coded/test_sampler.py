# SPDX-License-Identifier: Apache-2.0
"""CodedSampler: which points with which coefficients, in which batches, and which random numbers go with them."""

from typing import Any

import pytest
import torch

from ultima.base.errors import InvalidArgument
from ultima.coded import Plan
from ultima.torch.coded.sampler import CodedSampler

PLANS = [Plan(4, 1), Plan(7, 2), Plan(12, 1, children=3), Plan(1, 0), Plan(5, 1)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("batch", [None, 7])
def test_batches__add_up_to_each_point_once(plan: Plan, batch: int | None) -> None:
    """Of every decodable set of ranks: coefficient of the rank times that of its batches is 1 for each point."""
    size = 103
    samplers = [CodedSampler(size, plan, rank, batch) for rank in range(plan.hosts)]
    for gone in [None, *range(plan.first, plan.hosts)]:
        came = set(range(plan.first, plan.hosts)) - {gone}
        used = plan.decoding(came)
        if used is None:
            assert plan.stragglers == 0
            continue
        seen = torch.zeros(size, dtype=torch.float64)
        for rank, each in used.items():
            for indices, coefficient in samplers[rank]:
                assert len(indices) and (batch is None or len(indices) <= batch)
                seen[indices] += each * coefficient
        assert torch.allclose(seen, torch.ones(size, dtype=torch.float64), atol=1e-9)


def test_batches__replicas_cut_a_part_alike() -> None:
    """What depends on who shares a batch is the same on all ranks that compute a part, in linear codes too."""
    plan = Plan(5, 1)
    cut: dict[int, Any] = {}
    for rank in range(plan.hosts):
        for indices, _ in CodedSampler(103, plan, rank, batch=8):
            assert cut.setdefault(int(indices[0]), indices.tolist()) == indices.tolist()
    edges = {start for start, _ in plan.parts(103)}
    assert edges <= cut.keys(), "a batch lies in two parts"
    assert sum(map(len, cut.values())) == 103, "ranks cut the data differently"


def test_batches__of_points_that_all_ranks_know() -> None:
    plan, points = Plan(2, 1), torch.arange(100, 110)
    sampler = CodedSampler(10, plan, 0, batch=4)
    assert torch.equal(torch.cat([indices for indices, _ in sampler.batches(points)]), points)
    assert torch.equal(torch.cat([indices for indices, _ in sampler.batches(points.tolist())]), points)
    assert len(sampler) == sum(1 for _ in sampler) == 3
    with pytest.raises(InvalidArgument, match="points is '9 indices'; allowed: 10"):
        sampler.batches(points[1:])


def test_batches__draw_the_same_numbers_for_a_part() -> None:
    plan = Plan(5, 1)
    drawn: dict[tuple[int, int], list[float]] = {}
    for step in (0, 1):
        for rank in range(5):
            torch.manual_seed(rank)
            for indices, _ in CodedSampler(50, plan, rank, batch=4).batches(step=step):
                here = torch.rand(len(indices)).tolist()
                assert drawn.setdefault((step, int(indices[0])), here) == here
    assert len({tuple(numbers) for numbers in drawn.values()}) == len(drawn), "two parts or steps draw the same"


def test_sampler__the_master_of_a_tree_has_nothing() -> None:
    assert len(CodedSampler(100, Plan(12, 1, children=3), 0)) == 0


def test_sampler__bad_arguments() -> None:
    with pytest.raises(InvalidArgument, match="size is 0"):
        CodedSampler(0, Plan(4, 1), 0)
    with pytest.raises(InvalidArgument, match="batch is 0"):
        CodedSampler(10, Plan(4, 1), 0, 0)
    with pytest.raises(InvalidArgument, match="rank is 4; allowed: a rank of this plan, 0 to 3"):
        CodedSampler(10, Plan(4, 1), 4)
