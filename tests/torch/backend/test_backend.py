# SPDX-License-Identifier: Apache-2.0
"""The backend "ultima" under stock torch: two ranks, two daemons, real processes. `cases.py` has what the ranks do."""

from pathlib import Path

import pytest

from tests.torch.ranks import Outcome, run_ranks
from ultima.demo.cluster import Cluster

pytestmark = pytest.mark.timeout(150)


def test_allreduce__every_type_operation_and_count(shared: list[Outcome]) -> None:
    for outcome in shared:
        found = outcome.case("values")
        assert found["wrong"] == []
        # 6 types, 5 operations, 6 counts, each an op of Ultima's: none of them may have gone to Gloo.
        assert (found["checked"], found["ops"]) == (180, 180)


def test_allreduce__strided_scalar_and_leaf_tensors(shared: list[Outcome]) -> None:
    for outcome in shared:
        assert outcome.case("shapes") == {"strided": True, "outside": 0.0, "scalar": 3, "leaf": True}


def test_allreduce__async_op(shared: list[Outcome]) -> None:
    for outcome in shared:
        assert outcome.case("asynchronous") == {
            "ours": True,
            "right": True,
            "halved": True,
            "completed": True,
            "result": True,
            "receipts": ["COMPLETE"],
        }


def test_allreduce__small_async_op_wakes_no_thread(shared: list[Outcome]) -> None:
    """A thread copies a large result out while the trainer goes on; for a small one it would only be in the way. One
    sleeps until somebody drops one.
    """
    threads = {"small": 1, "small again": 1, "large": 2}
    wanted = {name: {"sum": 1.0, "threads": count} for name, count in threads.items()}
    assert [outcome.case("unasked") for outcome in shared] == [wanted] * 2


def test_allreduce__inside_a_callback_of_another(shared: list[Outcome]) -> None:
    assert [outcome.case("nested") for outcome in shared] == [{"value": 4.0}, {"value": 4.0}]


def test_wait__gives_up_and_can_be_called_again(shared: list[Outcome]) -> None:
    assert [outcome.case("patience") for outcome in shared] == [{"gave_up": True, "value": 2.0}] * 2


def test_allreduce__tensor_of_several_pieces(shared: list[Outcome]) -> None:
    assert [outcome.case("pieces") for outcome in shared] == [{"right": True, "receipts": 2}] * 2


def test_other_collectives(shared: list[Outcome]) -> None:
    assert [outcome.case("others") for outcome in shared] == [{"wrong": []}] * 2


def test_allreduce__unsupported_type_is_named(shared: list[Outcome]) -> None:
    for outcome in shared:
        error = outcome.case("unsupported")["error"]
        assert "tensor.dtype is torch.float8_e4m3fn" in error
        assert "torch.bfloat16" in error and "torch.uint8" in error


def test_groups__beside_the_default_one(shared: list[Outcome]) -> None:
    expected = {"right": True, "twice": True, "alone": True, "receipts": 1}
    assert [outcome.case("subgroups") for outcome in shared] == [expected] * 2


def test_receipts__of_a_group_of_another_backend(shared: list[Outcome]) -> None:
    for outcome in shared:
        assert 'a process group of the backend "ultima"' in outcome.case("not_ours")["error"]


def test_ddp__trains_as_with_gloo(shared: list[Outcome]) -> None:
    """Replicas must be equal to the bit; Gloo adds in another order, so against it there is a tolerance."""
    first, second = (outcome.case("ddp") for outcome in shared)
    assert first["ultima"] == second["ultima"]
    assert first["hooked"] == second["hooked"]
    assert first["ultima"] == pytest.approx(first["gloo"], rel=1e-4, abs=1e-6)
    assert first["hooked"] == pytest.approx(first["gloo"], rel=1e-4, abs=1e-6)
    assert first["losses"] != second["losses"], "both ranks saw the same data: the averages prove nothing"
    assert first["losses"][-1] < first["losses"][0]
    assert first["ops"] >= 9, (
        "DDP cuts the parameters in buckets after the first step: one op, then four times two or more"
    )


def test_receipts__of_the_last_ops(shared: list[Outcome]) -> None:
    for outcome in shared:
        found = outcome.case("receipts")
        numbers = found.pop("numbers")
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert found == {
            "ops": 3,
            "complete": 3,
            # Two hosts: half a bucket in, half a bucket back.
            "expected": 3 * 4000,
            "missing": 0,
            "failed": 0,
            "contributors": [[0, 1]] * 3,
            "times": True,
        }


def test_deadline__is_the_groups_timeout_and_not_what_was_measured(shared: list[Outcome]) -> None:
    for outcome in shared:
        found = outcome.case("unhurried")
        assert found["measured"]
        assert 18 < found["seconds"] <= 20


def test_deadline__is_what_the_groups_timeout_was_set_to(shared: list[Outcome]) -> None:
    for outcome in shared:
        for limit, found in zip((7, 9), outcome.case("retimed")["found"], strict=True):
            assert (found["group"], found["gloo"]) == (limit, limit)
            assert all(limit - 2 < seconds < limit * 1.1 for seconds in found["seconds"])


def test_desync__names_field_and_values_on_both_ranks(shared: list[Outcome]) -> None:
    for rank, outcome in enumerate(shared):
        found = outcome.case("desync")
        assert (found["field"], found["rank"]) == ("count", 1 - rank)
        assert (found["mine"], found["theirs"]) == (100 + rank, 101 - rank)
        assert found["failed"] == 1
        assert found["seconds"] < 20, "not within the timeout of the group"


def test_end__without_destroying_the_group(cluster: Cluster) -> None:
    """An open op with a minute to go must not hold the process."""
    outcomes = run_ranks("no_destroy", 2, cluster.sockets)
    assert [outcome.status for outcome in outcomes] == [0, 0], [outcome.errors for outcome in outcomes]
    assert max(outcome.seconds for outcome in outcomes) < 50


def test_destroy__ends_all_threads(cluster: Cluster) -> None:
    """A thread that takes the GIL while the interpreter ends aborts the process, so none may be left, whoever holds
    the group.
    """
    for outcome in run_ranks("destroyed", 2, cluster.sockets):
        assert outcome.status == 0, outcome.errors
        before = outcome.result.pop("before")
        assert before[:2] == ["pt_gloo_runloop", "ultima-torch-0"]
        assert all(name.startswith("ultima-torch-") for name in before[2:])  # one more, if the first was not idle yet
        assert outcome.result == {
            "names": ["0", "default_pg", "ultima"],
            "after": [],
            "error": "the process group was destroyed",
        }


def test_init__without_a_daemon_is_told_on_every_rank(cluster: Cluster, tmp_path: Path) -> None:
    outcomes = run_ranks("start_only", 2, [cluster.sockets[0], tmp_path / "none.sock"])
    found = [outcome.result for outcome in outcomes]
    assert [result["kind"] for result in found] == ["DaemonUnavailable"] * 2
    assert "rank 1 has no daemon" in found[0]["error"]
    assert str(tmp_path / "none.sock") in found[1]["error"]


def test_init__wrong_mode_is_named(cluster: Cluster) -> None:
    outcomes = run_ranks("start_only", 2, cluster.sockets, environment={"ULTIMA_MODE": "sometimes"})
    for outcome in outcomes:
        assert outcome.result["kind"] == "InvalidArgument"
        assert outcome.result["error"] == "ULTIMA_MODE is 'sometimes'; allowed: bounded, best_effort, reliable"


def test_peer_killed__the_others_go_on(cluster: Cluster) -> None:
    first, second = run_ranks("one_leaves", 2, cluster.sockets)
    assert second.status == -9
    assert first.status == 0, first.errors
    found = first.result
    assert found["value"] == 3.0
    assert found["status"] == "INSUFFICIENT"
    assert found["missing"] == [1]
    assert found["seconds"] < 20
