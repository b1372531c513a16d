# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients in training: two ranks, two daemons, real processes. `sparse_cases.py` has what the ranks do.

The gradients go whichever way the daemons offer: summed in the network, or as containers. The values are the same.
"""

import pytest

from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster

pytestmark = [pytest.mark.timeout(150), pytest.mark.check]

EXACT = 1e-6  # single precision, sums in another order


@pytest.fixture(scope="module")
def sparse(cluster: Cluster) -> list[Outcome]:
    """What the cases brought back, per rank."""
    return run_ranks("shared", 2, cluster.sockets, 120, None, "tests.torch.sparse_cases")


def test_sparse_hook__averages_what_the_memories_let_go(sparse: list[Outcome]) -> None:
    for outcome in sparse:
        found = outcome.case("ddp")
        assert all(max(each["errors"]) < EXACT for each in found.values()), found
        assert found["small"]["counts"] == [1 + 4 * 2, 4 * 2, 5, 0, 0]
        assert found["views"]["counts"] == [5, 4, 5, 0, 0]
        assert found["views"]["text"].startswith("4 buckets sparse, 1 dense; sparse: ")


def test_sparse_hook__trains(sparse: list[Outcome]) -> None:
    first, second = (outcome.case("learns") for outcome in sparse)
    assert first["finals"]["sparse"] == second["finals"]["sparse"], "the same bits on all ranks"
    for found in (first, second):
        losses = found["losses"]
        assert losses["sparse"] < 0.3 and losses["sparse"] < losses["dense"] + 0.1, losses


def test_sparse_hook__fsdp(sparse: list[Outcome]) -> None:
    for outcome in sparse:
        found = outcome.case("fsdp")
        assert max(found["errors"]) < EXACT
        assert found["kept"] == ["0.weight", "2.weight", "4.weight"]


def test_sparse_state__pickled_in_use(sparse: list[Outcome]) -> None:
    for outcome in sparse:
        assert outcome.case("pickled") == {"same": True, "memories": ["0", "1", "2", "3", "4", "5"]}


def test_embedding__sparse_gradients_are_averaged_as_such(sparse: list[Outcome]) -> None:
    for outcome in sparse:
        for name, found in outcome.case("embedding").items():
            assert found["error"] < EXACT and found["sparse"] and found["dense"], (name, found)
            assert found["rows"] == [3, 5, 700, 701, 900], name


def test_all_reduce__sparse_tensors(sparse: list[Outcome]) -> None:
    """By Ultima, which each op's receipt shows, and not by Gloo."""
    for rank, outcome in enumerate(sparse):
        found = outcome.case("coordinates")
        assert all(found["right"].values()) and len(found["right"]) == 12, found["right"]
        assert found["average"] == [0, 3, 0, 0, 4.5, 0] and found["empty"] == 0
        assert found["ops"] == 12, "of the 13 one has no entries anywhere, which the first exchange shows"
        assert f"rank {1 - rank}" in found["told"] and "shape[0]" in found["told"]


def test_sparse_hook__is_the_same_whatever_the_default_element_type(sparse: list[Outcome]) -> None:
    first, second = (outcome.case("defaults") for outcome in sparse)
    assert first == second and len(first) == 3
    one, *others = first.values()
    assert any(one) and all(other == one for other in others)
