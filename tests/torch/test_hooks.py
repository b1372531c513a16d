# SPDX-License-Identifier: Apache-2.0
"""The communication hooks: two ranks, two daemons, real processes. `hook_cases.py` has what the ranks do."""

import pytest

from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster

pytestmark = pytest.mark.timeout(150)

EXACT = 1e-6  # single precision, sums in another order
PARAMETERS_BYTES = 4 * 5383
BOTH_RANKS_BYTES = 2 * PARAMETERS_BYTES


@pytest.fixture(scope="module")
def hooked(cluster: Cluster) -> list[Outcome]:
    """What the cases brought back, per rank."""
    return run_ranks("shared", 2, cluster.sockets, timeout_s=120, module="tests.torch.hook_cases")


def test_allreduce_hook__averages_buckets_of_any_size(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("values")
        assert all(each["error"] < EXACT for each in found.values()), found
        assert {name: each["ops"] for name, each in found.items()} == {
            "small": [1, 2, 2],  # DDP cuts the buckets after the first backward pass
            "one": [1, 1, 1],
            "each": [1, 6, 6],
            "views": [1, 2, 2],
        }


def test_allreduce_hook__more_buckets_than_the_daemon_takes_at_once(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("many")
        assert found["ops"] == 120
        assert found["error"] < EXACT


def test_allreduce_hook__gradient_accumulation(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("accumulation")
        for name, times in {"no_sync": 1, "each": 2}.items():
            case = found[name]
            assert case.pop("error") < EXACT
            assert case == {"ops": 2 * times, "steps": 1, "taken": True, "expected": times * BOTH_RANKS_BYTES}, name


def test_allreduce_hook__unused_parameters(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("unused")
        assert found["error"] < EXACT
        assert found["nobody"] == [True, True], "what nobody used has no gradient"


def test_allreduce_hook__mixed_precision(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("mixed")
        assert found["bfloat16"]["dtype"] == "torch.bfloat16"
        assert found["bfloat16"]["error"] < 2**-7
        assert found["autocast"]["dtype"] == "torch.float32"
        assert found["autocast"]["error"] < EXACT


def test_hook_fsdp__averages_over_replicas(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("fsdp")
        assert found.pop("error") < EXACT
        assert found == {"ops": 6, "steps": 2, "expected": 2 * BOTH_RANKS_BYTES}
        assert "fully_shard" in outcome.case("not_fsdp")["error"]


def test_fsdp__shards_over_the_backend(hooked: list[Outcome]) -> None:
    assert max(outcome.case("fsdp_shards")["error"] for outcome in hooked) < EXACT


def test_guard__step_that_is_insufficient_is_taken_by_nobody(hooked: list[Outcome]) -> None:
    """And the bucket goes reliably from then on, so that the second late rank costs time and nothing else."""
    first, second = (outcome.case("late") for outcome in hooked)
    assert first["parameters"] == second["parameters"]
    for found in (first, second):
        lost, waited, calm = found["steps"]
        assert lost["status"] == "INSUFFICIENT" and lost["error"] > 0.1
        assert (lost["skipped"], lost["reliable"], lost["moved"]) == (1, 0, False)
        assert waited["status"] == "COMPLETE" and waited["error"] < EXACT
        assert (waited["skipped"], waited["reliable"], waited["moved"]) == (1, 1, True)
        assert calm["status"] == "COMPLETE" and calm["error"] < EXACT
        # All of one step in three.
        assert found["missing"] == BOTH_RANKS_BYTES
        assert found["share"] == pytest.approx(1 / 3)
        assert found["rate"] == pytest.approx(1e-4), "the scheduler went on"


def test_allreduce_hook__keeps_the_budget_alone(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        assert outcome.case("by_hook_alone") == {"made": [0, 1], "steps": 1}


def test_policy__per_bucket(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        expected = ["COMPLETE", "INSUFFICIENT"]
        assert outcome.case("policy") == {"table": expected, "function": expected}


def test_guard__averages_the_parameters_when_it_is_due(hooked: list[Outcome]) -> None:
    """Every three steps, and only because something was lost: not a second time."""
    for rank, outcome in enumerate(hooked):
        found = outcome.case("drift")
        assert found["syncs"] == [0, 0, 1, 1, 1, 1, 1]
        assert found["values"] == [float(rank)] * 2 + [0.5] * 5
        assert (found["divergence"], found["cost"]) == (0.5, True)


def test_guard__refuses_a_closure(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        assert "closure" in outcome.case("closure")["error"]


def test_hook_state__pickled_in_use(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("pickled")
        assert found == {"default": True, "ops": [1, 2], "steps": [1, 2], "same": True, "ok": True}
