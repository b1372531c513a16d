# SPDX-License-Identifier: Apache-2.0
"""DiLoCo over real daemons among sites that come and go: of three sites one leaves in the midst of the training, and
then a fourth comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ultima
from tests.e2e.hosts import running
from tests.e2e.outer_sites import EVERY, Site, check_nothing_is_lost, come_and_go, said
from ultima import ElasticJob
from ultima.torch import DiLoCo

pytestmark = [pytest.mark.timeout(180), pytest.mark.check]

SEED = 20261129
INPUTS, BATCH = 64, 16
RULE = ultima.Nesterov()
TRUE = torch.linspace(-1, 1, INPUTS)[:, None]


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(SEED + number)


def batch(random: torch.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(size, INPUTS, generator=random)
    return inputs, inputs @ TRUE


class TorchSite(Site):
    """A site that trains a net by AdamW."""

    def open(self, job: ElasticJob, **options: Any) -> Any:
        self.random = seeded(self.number)
        self.model = nn.Sequential(nn.Linear(INPUTS, 96), nn.ReLU(), nn.Linear(96, 1))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=self.random))
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.progress: Any = 0.0
        return DiLoCo(self.model, self.inner, EVERY, job=job, **options)

    def step(self) -> None:
        before = self.phi().astype(np.float64)
        inputs, targets = batch(self.random, BATCH)
        self.inner.zero_grad()
        nn.functional.mse_loss(self.model(inputs), targets).backward()
        self.inner.step()
        self.progress += self.phi() - before
        self.outer.step(tokens=BATCH)

    def did(self) -> Any:
        return self.progress

    def loss(self, flat: Any) -> float:
        """Of an outer model, on inputs that no site has seen."""
        with torch.no_grad():
            values = torch.from_numpy(np.asarray(flat, np.float32).copy())
            nn.utils.vector_to_parameters(values, self.model.parameters())
            inputs, targets = batch(seeded(99), 512)
            return float(nn.functional.mse_loss(self.model(inputs), targets))


@pytest.mark.parametrize(
    ("options", "share"),
    [({}, 1e-3), ({"wire": "int8", "feedback": True}, 0.1), ({"sparse": 1 / 8, "feedback": 1.0}, 0.1)],
    ids=["float32", "int8", "sparse"],
)  # fmt: skip
def test_diloco__one_leaves_and_one_joins_and_no_step_of_those_that_stay_is_lost(
    options: dict[str, Any], share: float
) -> None:
    """All that a site's inner optimizer did is in the outer model once, by Nesterov's rule, or still with the site.

    Fails if replicas differ in a bit, if a newcomer counts what it had before it came, or if steps are discarded.
    """
    sites: list[Site] = [TorchSite(number) for number in range(4)]
    with running(4) as hosts:
        found = come_and_go(hosts, sites, "leaves", outer=RULE, **options)
    check_nothing_is_lost(sites, RULE, share)
    for number in (0, 2, 3):
        site = sites[number]
        assert np.array_equal(found[number], found[0]), f"seed {SEED}, site {number}"
        assert np.array_equal(site.phi(), found[0]), f"seed {SEED}, site {number}"
        told = site.outer.summary()
        print(f"site {number}: {told}")
        assert told.discarded_tokens == 0 and not told.differed and not told.missed, said(sites)
        assert told.tokens == BATCH * told.steps and 0 < told.computed <= 1
        assert f"{told.rounds} rounds in {told.steps} steps; computed " in str(told)
    assert sites[3].told[0][0].number > 4 and sites[3].begin is None
    assert sites[3].outer.summary().rounds < sites[0].outer.summary().rounds
    loss = sites[0].loss  # type: ignore[attr-defined]
    first, last = loss(sites[0].begin), loss(found[0])
    assert last < first, f"seed {SEED}: {first} became {last}"
