# SPDX-License-Identifier: Apache-2.0
"""Two daemons on loopback for all tests of this folder, and ranks that are processes, as under torchrun.

Importing torch takes each process seconds. So the cases of `cases.py` that need no process of their own run one after
the other in one pair of ranks, and each test looks at what its case brought back.
"""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster


@pytest.fixture(autouse=True, scope="session")
def torch_is_here() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


@pytest.fixture(scope="session")
def cluster(torch_is_here: None) -> Iterator[Cluster]:
    with Cluster() as running:
        running.start_daemons(2)
        yield running


@pytest.fixture(scope="session")
def shared(cluster: Cluster) -> list[Outcome]:
    """What the shared cases brought back, per rank."""
    return run_ranks("shared", 2, cluster.sockets, timeout_s=100)
