# SPDX-License-Identifier: Apache-2.0
"""Partial collectives under torch: two ranks, two daemons, real processes. `partial_cases.py` has what the ranks do."""

import pytest

from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster

pytestmark = pytest.mark.timeout(150)

EXACT = 1e-6  # single precision, sums in another order


@pytest.fixture(scope="module")
def ranks(cluster: Cluster) -> list[Outcome]:
    """What the cases brought back, per rank."""
    return run_ranks("shared", 2, cluster.sockets, 120, module="tests.torch.partial_cases")


def test_hook__averages_all_buckets_together(ranks: list[Outcome]) -> None:
    for outcome in ranks:
        found = outcome.case("values")
        assert found["error"] < EXACT
        assert (found["rounds"], found["steps"]) == (3, 3), "one round a backward pass, however many buckets"
        assert found["fresh"] == {"0": 3, "1": 3}


def test_hook__a_late_rank_holds_up_nobody_and_takes_the_newest_round(ranks: list[Outcome]) -> None:
    for rank, outcome in enumerate(ranks):
        found = outcome.case("late")
        assert found["error"] < EXACT, "rank 0's sixth gradient, by the number of ranks, is both ranks' average"
        assert found["rounds"] == 6
        assert found["steps"] == (8, 3)[rank]
        assert found["missed"] >= (0, 5)[rank]


def test_hook__meetings_make_replicas_equal(ranks: list[Outcome]) -> None:
    first, second = (outcome.case("meetings") for outcome in ranks)
    assert first["syncs"] >= 1
    assert first["parameters"] == second["parameters"]


@pytest.mark.parametrize("name", ["eager majority", "eager quorum", "rna probe", "rna seeded"])
def test_optimizers__train_and_end_equal(name: str, ranks: list[Outcome]) -> None:
    first, second = (outcome.case("optimizers")[name] for outcome in ranks)
    assert first["gain"] < 0.8, "it learned"
    assert first["parameters"] == second["parameters"]
    assert all(ratio > 0 for ratio in first["included"])


def test_hierarchy__groups_form_and_end_and_see_each_others_model(ranks: list[Outcome]) -> None:
    found = [outcome.case("hierarchy") for outcome in ranks]
    for each in found:
        assert each["groups"] == [[[0, 1]], [[0], [1]], [[0, 1]]]
        assert 2.0 < each["shared"] < 6.0
        assert len(set(each["last"])) == 1
    assert found[0]["last"] == found[1]["last"]


def test_hook__refuses_what_would_wait_for_everybody(ranks: list[Outcome]) -> None:
    for outcome in ranks:
        found = outcome.case("refusals")
        assert {name: field for name, (field, _) in found.items()} == {name: name for name in found}
        assert found.keys() == {"find_unused_parameters", "broadcast_buffers", "model"}
