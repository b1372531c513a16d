# SPDX-License-Identifier: Apache-2.0
"""The communication hooks: two ranks, two daemons, real processes. `hook_cases.py` has what the ranks do."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster

pytestmark = pytest.mark.timeout(150)

EXACT = 1e-6  # single precision, sums in another order
PARAMETERS_BYTES = 4 * 5383
BOTH_RANKS_BYTES = 2 * PARAMETERS_BYTES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks write their traces."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def hooked(cluster: Cluster, folder: Path) -> list[Outcome]:
    """What the cases brought back, per rank."""
    environment = {"HOOK_CASES_FOLDER": str(folder)}
    return run_ranks("shared", 2, cluster.sockets, 120, environment, "tests.torch.hook_cases")


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


def test_allreduce_hook__hadamard(hooked: list[Outcome]) -> None:
    assert max(outcome.case("hadamard")["error"] for outcome in hooked) < 4 * EXACT


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


def test_overlap__first_bucket_is_averaged_before_backward_ends(hooked: list[Outcome]) -> None:
    for outcome in hooked:
        found = outcome.case("overlap")
        assert found["came"] == [True]
        assert found["all"]


def test_trace__shows_ops_during_backward(hooked: list[Outcome], folder: Path) -> None:
    """By the order of its events. The first bucket's op began and ended inside, the last began there."""
    for rank, outcome in enumerate(hooked):
        first, last = outcome.case("overlap")["ops"]
        events = json.loads((folder / f"trace-{rank}.json").read_text())["traceEvents"]
        moments = {(event["name"], event["ph"]): at for at, event in enumerate(events)}
        order = [("backward", "B"), (f"op {first}", "b"), (f"op {first}", "e"), (f"op {last}", "b"), ("backward", "E")]
        assert [moments[each] for each in order] == sorted(moments[each] for each in order)
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
        assert {event["pid"] for event in events} == {rank}


def test_trace__says_of_each_op_what_its_receipt_says(hooked: list[Outcome], folder: Path) -> None:
    for rank, outcome in enumerate(hooked):
        first, last = outcome.case("overlap")["ops"]
        events = json.loads((folder / f"trace-{rank}.json").read_text())["traceEvents"]
        rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        lanes = len(rows) - 1
        assert set(rows.values()) == {"trainer", *(f"lane {lane}" for lane in range(lanes))}
        for op in (first, last):
            mine = [event for event in events if event.get("id2") == {"local": str(op)}]
            assert [(event["name"], event["ph"]) for event in mine] == [
                (f"op {op}", "b"),
                ("stage 1", "b"),
                ("stage 1", "e"),
                ("stage 2", "b"),
                ("stage 2", "e"),
                (f"op {op}", "e"),
            ]
            assert {event["tid"] for event in mine} == {op % lanes}
            told: dict[str, Any] = mine[0]["args"]
            assert (told["lane"], told["status"], told["bytes_missing"]) == (op % lanes, "COMPLETE", 0)
            assert told["contributors"] == [0, 1]
        # Ops that lost something are in there as well, and say how much.
        statuses = {event["args"]["status"] for event in events if "status" in event.get("args", {})}
        assert "INSUFFICIENT" in statuses
        lost = [event["args"] for event in events if event.get("args", {}).get("status") == "INSUFFICIENT"]
        assert all(each["bytes_missing"] == each["bytes_expected"] > 0 for each in lost)


def test_trace__torch_profiler_sees_the_buckets(hooked: list[Outcome], folder: Path) -> None:
    for rank, outcome in enumerate(hooked):
        assert outcome.status == 0
        events = json.loads((folder / f"profile-{rank}.json").read_text())["traceEvents"]
        names = {event.get("name") for event in events}
        assert {"backward", "ultima bucket 0", "ultima bucket 1"} <= names


def test_placement__hooked_buckets_are_never_copied(hooked: list[Outcome]) -> None:
    """The gradients themselves lie in shared memory. Without a hook each bucket is copied in and out, once."""
    for outcome in hooked:
        found = outcome.case("copies")
        for name in ("average", "allreduce"):
            case = found[name]
            assert case["moved"] == [0, 0] and all(case["inside"]), name
            assert case["error"] < EXACT
        assert found["none"]["moved"] == [PARAMETERS_BYTES] * 2
        assert not any(found["none"]["inside"])
        assert found["none"]["error"] < EXACT
