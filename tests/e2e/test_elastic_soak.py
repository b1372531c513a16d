# SPDX-License-Identifier: Apache-2.0
"""Hosts join, leave and die in random order while ops go on: no result is wrong and no receipt untrue."""

from __future__ import annotations

import os
import random

import pytest

from tests.e2e.hosts import running
from tests.soak.churn import churn

HOSTS = 4


@pytest.mark.check
@pytest.mark.parametrize(("kept", "ranks"), [(None, 1), (892133, 1), (None, 2)])
def test_elastic_soak__random_order(kept: int | None, ranks: int) -> None:
    """ULTIMA_TEST_SEED and ULTIMA_TEST_EVENTS replay or prolong it. `python -m tests.soak.elastic` measures it, too. Of
    the seed that is kept a host dies while it waits to be taken in, and the next one gets its seat. Where hosts have
    several ranks, each of them goes at its own pace."""
    seed = kept or int(os.environ.get("ULTIMA_TEST_SEED") or random.SystemRandom().randrange(10**6))
    events = int(os.environ.get("ULTIMA_TEST_EVENTS") or 8)
    print(f"ULTIMA_TEST_SEED={seed} ULTIMA_TEST_EVENTS={events}")
    with running(HOSTS) as hosts:
        found = churn(hosts, events, seed, ranks=ranks)
    ops, complete = sum(len(life.log) for life in found.past), sum(life.complete for life in found.past)
    print(f"{ops} ops, {complete} of them complete")
    assert not found.wrong, (seed, found.wrong)
    assert complete > ops / 4, f"seed {seed}: {complete} of {ops} ops were complete"
