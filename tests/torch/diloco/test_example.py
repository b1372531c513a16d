# SPDX-License-Identifier: Apache-2.0
"""`examples/diloco.py`, with a daemon for each site: one rank a site, and two over which FSDP2 cuts the model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.e2e.hosts import free_port, running
from tests.e2e.scripts import Rank, run_example
from tests.nursery import TORCH

pytestmark = [pytest.mark.timeout(180), pytest.mark.check]
STEPS, EVERY = 120, 20


def run_all(ranks: Sequence[Rank]) -> list[str]:
    arguments = ["--steps", str(STEPS), "--every", str(EVERY)]
    return run_example("diloco", TORCH, [(host, [*arguments, *more], variables) for host, more, variables in ranks])


def loss_of(said: str) -> str:
    found = re.search(r"loss ([0-9.]+); 7 rounds in 120 steps", said)
    assert found is not None, said
    return found[1]


def test_one_rank_a_site__learns_and_has_the_same_model() -> None:
    with running(2) as hosts:
        shared = {"WORLD_SIZE": "2", "ULTIMA_RENDEZVOUS": hosts[0].rendezvous}
        said = run_all([(hosts[rank], [], shared | {"RANK": str(rank)}) for rank in range(2)])
    losses = {loss_of(each) for each in said}
    assert len(losses) == 1 and 0 < float(losses.pop()) < 1.45, "what it is to learn has a variance of 1.5"


def test_sites_of_two_ranks__under_fsdp2() -> None:
    with running(2) as hosts:
        ranks = []
        for site in range(2):
            port = str(free_port())
            for place in range(2):
                ranks.append((hosts[site], ["--site", str(site), "--meet", hosts[0].rendezvous], {
                    "RANK": str(place), "LOCAL_RANK": str(place), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port}))  # fmt: skip
        said = run_all(ranks)
    losses = {loss_of(each) for each in said}
    assert len(losses) == 1 and 0 < float(losses.pop()) < 1.45
    assert sum("site 1 of 2" in each for each in said) == 2
