# SPDX-License-Identifier: Apache-2.0
"""A torch model trained by real daemons and ranks, to which a newcomer comes for which nobody waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import ultima
from tests.e2e.elastic import enter, enter_all
from tests.e2e.hosts import Hosts, everywhere, new_job_name, running
from tests.torch.elastic.test_torch_state import MAKES, bits
from ultima.torch import ElasticTraining
from ultima.torch.elastic.torch_state import TorchState

PAUSE_S = 0.02  # that computing a gradient takes
SECONDS = 60.0

pytestmark = [pytest.mark.check, pytest.mark.timeout(120)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with running(3) as found:
        yield found


@dataclass
class Rank:
    """One rank: its model, what it computed, and what its ops brought."""

    job: Any
    seed: int
    optimizer: str
    computed: int = 0
    receipts: list[ultima.Receipt] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.seed)
        self.model = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 5))
        for each in self.model.parameters():
            with torch.no_grad():
                each.copy_(torch.randn(each.shape, generator=draw) / 8)
        self.inner = MAKES[self.optimizer](list(self.model.parameters()))
        self.training = ElasticTraining(self.job, self.model, self.inner, bucket_bytes=6_000, deadline="5s")

    def step(self) -> None:
        def compute() -> None:
            time.sleep(PAUSE_S)
            draw = torch.Generator().manual_seed(100 * self.training.steps + self.job.rank)
            self.model(torch.randn(16, 40, generator=draw)).square().mean().backward()
            self.computed += 1

        self.receipts += self.training.step(compute)

    def state(self) -> dict[str, bytes]:
        return bits(TorchState(self.model, self.inner).arrays())


def wait_for(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < until, f"not in {SECONDS} s"
        time.sleep(0.005)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_training__a_newcomer_follows_and_has_the_same_replica(hosts: Hosts, optimizer: str) -> None:
    """While it stands still the others go on. Once it is in, all three compute, and have the same bits. On a busy
    machine an op may end without the slowest, and then replicas may differ: such a training is not the one to judge."""
    assert any(trained(hosts, optimizer) for _ in range(6)), "an op of each training was not complete"


def trained(hosts: Hosts, optimizer: str) -> bool:
    """Judges one training; whether all its ops were complete."""
    name, ends = new_job_name(), [10**9]
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, most=3, follow=True)
    ranks = {number: Rank(job, 7 + number, optimizer) for number, job in jobs.items()}
    passed: list[int] = []

    def member(number: int) -> int:
        rank = ranks[number]
        assert rank.training.begin() == 0
        while rank.training.steps < ends[0]:
            rank.step()
        return rank.training.steps

    def newcomer(_: int) -> int:
        try:
            wait_for(lambda: ranks[0].training.steps >= 5)
            job = jobs[2] = enter(hosts[2], hosts[0], name, most=3, follow=True)
            rank = ranks[2] = Rank(job, 99, optimizer)
            began = rank.training.begin()
            assert began >= 5
            wait_for(lambda: ranks[0].training.steps >= began + 10)
            passed.append(ranks[0].training.steps - began)
            while not rank.computed:
                rank.step()
            ends[0] = rank.training.steps + 6
            while rank.training.steps < ends[0]:
                rank.step()
            return rank.training.steps
        except BaseException:
            ends[0] = 0
            raise

    work = {0: member, 1: member, 2: newcomer}
    last = everywhere([0, 1, 2], lambda _, number: work[number](number))
    try:
        assert last == [ends[0]] * 3, last
        if not all(receipt.complete for rank in ranks.values() for receipt in rank.receipts):
            return False
        assert ranks[0].state() == ranks[1].state() == ranks[2].state()
        assert passed[0] >= 10 and ranks[0].computed == ranks[1].computed == ends[0], "nobody waited for it"
        own = [receipt for receipt in ranks[2].receipts if jobs[2].rank in receipt.contributors]
        assert len(own) in (13, 14), "two ops a step; in the first one of its own it may have come in with the second"
        assert ranks[2].computed == 7 and all(len(receipt.contributors) == 3 for receipt in own)
        return True
    finally:
        for job in jobs.values():
            job.close()
