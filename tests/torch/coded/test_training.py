# SPDX-License-Identifier: Apache-2.0
"""Coded training over real daemons: where it ends with ranks that stall, and what a death does to it.

Ranks are threads, each at a daemon of its own; `kill -9` of a daemon is the death of its host.
"""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import ultima
from tests.e2e.hosts import Hosts, connect_all, new_job_name, running
from tests.seeds import seeds
from ultima.coded import Plan
from ultima.torch import CodedGradient, CodedSampler

pytestmark = pytest.mark.timeout(150)
SIZE, WIDTH, RATE, NEAR = 120, 9, 0.5, 1e-5
X = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(1))
Y = (X @ torch.linspace(-1, 1, WIDTH) + torch.randn(SIZE, generator=torch.Generator().manual_seed(2)) > 0).float()
PLAN = Plan(4, stragglers=1)


def losses(model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
    """Logistic regression, and a little of the model's size, so that there is one best model."""
    fit = nn.functional.binary_cross_entropy_with_logits(model(X[indices])[:, 0], Y[indices], reduction="sum")
    return fit + len(indices) * 0.01 * sum((each**2).sum() for each in model.parameters())


def blank() -> nn.Module:
    model = nn.Linear(WIDTH, 1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def uncoded(steps: int) -> torch.Tensor:
    model = blank()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        (losses(model, torch.arange(SIZE)) / SIZE).backward()
        optimizer.step()
    return flat(model)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def off(found: torch.Tensor, steps: int) -> float:
    end = uncoded(steps)
    return float((found - end).norm() / end.norm())


class Rank:
    """One rank's training."""

    def __init__(self, job: ultima.Job, **options: Any) -> None:
        self.model = blank()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.coded = CodedGradient(self.model, PLAN, SIZE, job=job, **options)
        self.sampler = CodedSampler(SIZE, PLAN, job.rank, batch=8)
        self.computed = 0

    def step(self) -> ultima.Receipt | None:
        for indices, coefficient in self.sampler:
            if self.coded.over():
                break
            (coefficient * losses(self.model, indices)).backward()
            self.computed += 1
        return self.coded.step(self.optimizer)

    def until(self, steps: int, before: Callable[[int], None] = lambda step: None) -> torch.Tensor:
        while self.coded.number < steps:
            before(self.coded.number)
            self.step()
        return flat(self.model)


def on_each(ranks: list[Any], act: Callable[[int, Any], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, range(len(ranks)), ranks))


def opened(hosts: Hosts, **options: Any) -> tuple[list[ultima.Job], list[Rank]]:
    jobs = connect_all(hosts, new_job_name(), deadline=5.0, arena="4M")
    return jobs, on_each(jobs, lambda rank, job: Rank(job, **options))


STALLS = [pytest.param(False, marks=pytest.mark.check), True]


@pytest.mark.parametrize("stalls", STALLS, ids=["calm", "stalls"])
def test_training__ends_where_uncoded_does(stalls: bool) -> None:
    steps = 40
    (seed,) = seeds(1)
    with running(4) as hosts:
        jobs, ranks = opened(hosts)

        def train(rank: int, each: Rank) -> torch.Tensor:
            rng = random.Random(seed * 4 + rank)
            return each.until(steps, lambda _: time.sleep(0.03 * (stalls and rng.random() < 0.2)))

        found = on_each(ranks, train)
        for each, model in zip(ranks, found, strict=True):
            assert torch.equal(model, found[0]), f"replicas differ, seed {seed}"
            assert off(model, steps) <= NEAR, f"seed {seed}"
            assert each.coded.summary().exact == steps
        on_each(ranks, lambda _, each: each.coded.finish())
        on_each(jobs, lambda _, job: job.close())


@pytest.mark.check
def test_kill__of_one_replica_costs_nothing_but_time() -> None:
    """Host 1 dies. Host 0 computed the same, so that every further step is as exact."""
    steps = 30
    with running(4) as hosts:
        jobs, ranks = opened(hosts)
        on_each(ranks, lambda _, each: each.until(5))
        hosts[1].kill()
        left = [ranks[0], ranks[2], ranks[3]]
        for model in on_each(left, lambda _, each: each.until(steps)):
            assert off(model, steps) <= NEAR
        assert all(each.coded.summary().exact == steps for each in left)
        with pytest.raises(ultima.DaemonError):
            ranks[1].step()
        on_each([*ranks, *jobs], lambda _, each: each.coded.close() if isinstance(each, Rank) else each.close())


@pytest.mark.check
def test_kill__of_both_replicas_is_told_and_nothing_is_computed_twice() -> None:
    """Hosts 2 and 3 die, and with them half of the data. The others are told who is gone, each time they try."""
    with running(4) as hosts:
        jobs, ranks = opened(hosts, attempts=2)
        on_each(ranks, lambda _, each: each.until(5))
        hosts[2].kill()
        hosts[3].kill()

        def fail(_: int, each: Rank) -> tuple[torch.Tensor, list[Exception]]:
            before, told = flat(each.model), []
            for attempt in range(2):
                computed = each.computed
                try:
                    each.step() if attempt == 0 else each.coded.step(each.optimizer)
                except (ultima.RanksGone, ultima.DeadlineExceeded) as error:
                    told.append(error)
                assert attempt == 0 or each.computed == computed
            assert torch.equal(flat(each.model), before), "a step was made of half of the data"
            return before, told

        for model, told in on_each(ranks[:2], fail):
            assert off(model, 5) <= NEAR
            assert len(told) == 2 and isinstance(told[-1], ultima.RanksGone)
            assert set(told[-1].receipt.culprit) <= {2, 3} and told[-1].receipt.culprit
        on_each([*ranks, *jobs], lambda _, each: each.coded.close() if isinstance(each, Rank) else each.close())
