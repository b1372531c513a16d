# SPDX-License-Identifier: Apache-2.0
"""Trouble under torch: ranks that disagree, leave, fork, lose their daemon, or are told to stop. `trouble.py` has what
the ranks do.
"""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.hosts import running
from tests.torch.ranks import Outcome, run_ranks, start_ranks, wait_for
from ultima.demo.cluster import Cluster

pytestmark = pytest.mark.timeout(150)
MODULE = "tests.torch.trouble"
run = partial(run_ranks, module=MODULE)


def results(outcomes: list[Outcome]) -> list[dict]:
    for outcome in outcomes:
        assert outcome.status == 0 and outcome.result is not None, outcome.errors
    return [outcome.result for outcome in outcomes]


def until(happened: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < limit, f"it did not happen within a minute: {what}"
        time.sleep(0.01)


def test_disagreement__is_a_desync_that_names_it_on_both_ranks(cluster: Cluster) -> None:
    """In all that Ultima does, and where Gloo does it for some rank or for all."""
    fields = {
        "shape": ["count"],
        "dtype": ["dtype"],
        "order": ["count", "count"],
        "number": ["collective"],
        "bytes": ["collective"],
        "reduce": ["collective"],
        "sizes": ["collective"],
        "lists": ["collective"],
        "root": ["root"],
        "gathered": ["count"],
        "scattered": ["count"],
    }
    values = {
        "shape": [(12, 15)],
        "dtype": [("float32", "float64")],
        "order": [(12, 7), (7, 12)],
        "number": [("allreduce", "barrier")],
        "root": [(0, 1)],
        "gathered": [(8, 10)],
        "scattered": [(8, 10)],
    }
    by_gloo = {"bytes": "allreduce", "reduce": "reduce", "sizes": "alltoall_base", "lists": "gather"}
    for rank, found in enumerate(results(run("disagreements", 2, cluster.sockets))):
        for name, errors in found.items():
            assert [error["kind"] for error in errors] == ["Desync"] * len(errors), (name, errors)
            assert [error["rank"] for error in errors] == [1 - rank] * len(errors), name
            if name != "operation":  # the modes differ as well then, and either may be named
                assert [error["field"] for error in errors] == fields[name]
                if name not in by_gloo:
                    mine = [(error["mine"], error["theirs"])[:: 1 - 2 * rank] for error in errors]
                    assert mine == values[name], name
                elif rank == 0:
                    assert errors[0]["theirs"] == "barrier", "which Gloo's are accompanied by"
                else:
                    assert errors[0]["mine"].startswith(by_gloo[name]) and "Gloo's" in errors[0]["mine"]


@pytest.mark.parametrize(("world", "hosts"), [(2, 2), pytest.param(2, 1, marks=pytest.mark.check), (4, 2)])
def test_disagreement__of_two_that_both_call_gloo(cluster: Cluster, world: int, hosts: int) -> None:
    """Gloo alone would wait for its timeout, or end the process. All ranks hear, in words, what differs, and live."""
    words = {
        "collective": ("collective", "gather (Gloo's)", "scatter (Gloo's)"),
        "barrier": ("collective", "gather (Gloo's)", "barrier"),
        "root": ("root", 0, 1),
        "op": ("op", "SUM", "MAX"),
        "dtype": ("dtype", "float32", "int32"),
        "count": ("count", 3, 5),
    }
    for rank, found in enumerate(results(run("disagreements_with_gloo", world, cluster.sockets[:hosts]))):
        for name, (field, usual, other) in words.items():
            error, odd = found[name], rank == world - 1
            assert error["kind"] == "Desync", (name, error)
            assert (error["field"], error["mine"], error["theirs"]) == (field, *(usual, other)[:: -1 if odd else 1]), (
                name
            )
            assert error["rank"] == 1 - rank or world > 2


@pytest.mark.parametrize(("case", "hosts"), [("calls", 2), ("exits", 2), ("exits", 1)])
def test_rank_that_leaves__is_named_to_the_one_that_calls_again(cluster: Cluster, case: str, hosts: int) -> None:
    """By leaving the group, or by ending without a word: in reliable mode that is an error, not a wait."""
    first, second = run(case, 2, cluster.sockets[:hosts], environment={"ULTIMA_MODE": "reliable"})
    assert (first.status, second.status) == (0, 0), first.errors + second.errors
    assert first.result["kind"] == "RanksGone", first.result
    assert "rank 1" in first.result["text"]


OWN_VALUE = "holds nothing of any other rank; rank 1 to blame: gone"


def test_rank_that_ends__stops_the_other_of_its_host_where_that_is_wanted(cluster: Cluster) -> None:
    first, second = run("exits", 2, cluster.sockets[:1], environment={"ULTIMA_ON_INSUFFICIENT": "raise"})
    assert (first.status, second.status) == (0, 0), first.errors + second.errors
    assert first.result["kind"] == "Insufficient" and OWN_VALUE in first.result["text"], first.result


def test_rank_that_ends__the_other_of_its_host_is_warned_that_it_trains_alone(cluster: Cluster) -> None:
    first, second = run("trains_alone", 2, cluster.sockets[:1])
    assert (first.status, second.status) == (0, 0), first.errors + second.errors
    found = first.result
    assert [OWN_VALUE in warning for warning in found["warnings"]] == [True], found
    assert found["receipt"]["status"] == "INSUFFICIENT"
    assert (found["receipt"]["contributors"], found["receipt"]["gone"]) == ([0], [1])


def test_deadline__is_for_what_may_be_lossy(cluster: Cluster) -> None:
    """The environment's; a barrier or a count has the patience of the group, as it had with Gloo."""
    found = results(run("slow_rank", 2, cluster.sockets, environment={"ULTIMA_DEADLINE": "200ms"}))
    assert found == [{"alone": 1.0, "number": 2, "copied": 0.0}] * 2


def test_destroy__with_ops_in_flight(cluster: Cluster) -> None:
    found = results(run("destroy_in_flight", 2, cluster.sockets))[0]
    assert found["waited"]["kind"] == found["reduce"]["kind"] == "ClosedHandle"
    assert "closed" in found["future"]


def test_data_loader__workers_may_fork_and_may_not_reduce(cluster: Cluster) -> None:
    """12 items twice, each of which tried; and the session of the parent outlives the workers' ends."""
    first, second = results(run("data_loader", 2, cluster.sockets))
    assert (first["refused"], second["refused"]) == (24, 24)
    assert (first["total"], second["total"]) == (2, 2)
    assert first["weights"] == second["weights"]


@pytest.mark.parametrize("victims", [pytest.param((1,), marks=pytest.mark.check), (0, 1)])
def test_restarted_daemon__between_two_steps_the_next_one_works(tmp_path: Path, victims: tuple[int, ...]) -> None:
    with running(2) as hosts:
        sockets = [host.socket for host in hosts]
        processes = start_ranks("restart", 2, sockets, {"ULTIMA_TEST_FOLDER": str(tmp_path)}, MODULE)
        for step in range(3):
            until(
                lambda step=step: (
                    all((tmp_path / f"step{step}-{rank}").exists() for rank in range(2))
                    or any(process.poll() is not None for process in processes)
                ),
                f"step {step}",
            )
            for victim in victims if step < 2 else ():
                # Killed in one step, told to end in the other.
                hosts[victim].kill() if step else hosts[victim].stop()
            for victim in victims if step < 2 else ():
                hosts[victim].launch()
                hosts[victim].wait_until_ready()
            (tmp_path / f"go{step}").touch()
        for found in results(wait_for(processes, 60)):
            assert found["sums"] == [2 * step + 1 for step in range(3)]
            assert found["alone"] == 0 or len(victims) == 1


@pytest.mark.check
@pytest.mark.parametrize("mode", ["reliable", "bounded"])
def test_upgraded_daemon__under_a_training_with_batch_norm(tmp_path: Path, mode: str) -> None:
    """No rank sees an exception, all make the same steps and, where nothing may be lost, hold the same weights."""
    variables = {"ULTIMA_TEST_FOLDER": str(tmp_path), "ULTIMA_MODE": mode}
    with running(2) as hosts:
        processes = start_ranks("upgraded", 2, [host.socket for host in hosts], variables, MODULE)

        def came(step: int) -> None:
            until(
                lambda: (
                    all((tmp_path / f"at-{rank}-{step}").exists() for rank in range(2))
                    or any(process.poll() is not None for process in processes)
                ),
                f"step {step}",
            )

        came(5)
        for victim in (1, 0):
            assert hosts[victim].stop() == 0
            hosts[victim].launch()
            hosts[victim].wait_until_ready()
            came(5 + max(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("at-*")))
        (tmp_path / "stop").touch()
        first, second = results(wait_for(processes, 60))
    assert first["steps"] == second["steps"]
    assert mode == "bounded" or first["weights"] == second["weights"]


@pytest.mark.parametrize("how", ["ddp", pytest.param("all_reduce", marks=pytest.mark.check), "barrier"])
def test_interrupt__ends_all_ranks_wherever_they_wait(cluster: Cluster, tmp_path: Path, how: str) -> None:
    """The groups have five minutes left; the ranks have what a busy machine needs to end two processes."""
    variables = {"ULTIMA_TEST_WAIT": how, "ULTIMA_TEST_FOLDER": str(tmp_path)}
    processes = start_ranks("interrupted", 2, cluster.sockets, variables, MODULE)
    until(
        lambda: (
            all((tmp_path / f"ready{rank}").exists() for rank in range(2))
            or any(process.poll() is not None for process in processes)
        ),
        "both ranks wait",
    )
    time.sleep(0.5)  # a step between the file and the wait itself, that nothing shows from outside
    for process in processes:
        process.send_signal(signal.SIGINT)
    outcomes = wait_for(processes, 30)
    assert outcomes[1].status == 130, outcomes[1].errors
    # Torch makes a RuntimeError of a KeyboardInterrupt that reaches it in the middle of a backward pass.
    assert outcomes[0].status == 130 or "KeyboardInterrupt" in outcomes[0].errors, outcomes[0].errors
    assert all(outcome.status > 0 for outcome in outcomes), "killed, for they did not end"
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)


def test_interrupt__of_a_program_that_handles_it(cluster: Cluster) -> None:
    assert results(run("handled", 2, cluster.sockets)) == [{"heard": [signal.SIGINT], "still": True}] * 2
