# SPDX-License-Identifier: Apache-2.0
"""`ultima demo --elastic`: that it ends as it says, finds what is untrue, and leaves no process behind."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from ultima import Status
from ultima.cli import main
from ultima.demo import elastic_report
from ultima.demo.elastic_marks import marked, unmarked, untruth, who_is_in
from ultima.demo.elastic_play import Outcome

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
runner = CliRunner()
DEMO = [sys.executable, "-m", "ultima.cli", "demo", "--elastic", "--data", "digits"]


def a_result(rank: int, **said: Any) -> dict[str, Any]:
    told = {"rank": rank, "first_step": 0, "steps": 9, "accuracy": 0.98, "test_images": 600, "digest": "d", "ops": 9}
    counts = {"complete": 9, "partial": 0, "insufficient": 0, "untrue": [], "results": {"3 1": "x"}}
    return {**told, **counts, **said}


def a_view(number: int, *ranks: int) -> dict[str, Any]:
    return {"number": number, "ranks": list(ranks), "since": 3 * number, "why": "host 1 is gone"}


def an_outcome() -> Outcome:
    """Host 0 has rank 2, host 2 rank 0; host 1 with rank 1 dies, and host 3 comes into its seat."""
    views = {each["number"]: each for each in (a_view(1, 0, 1, 2), a_view(2, 0, 2), a_view(4, 0, 1, 2))}
    results = {0: a_result(2), 2: a_result(0), 3: a_result(1, first_step=7, ops=2)}
    states = {3: [{"step": 7, "bytes": 493_648, "seconds": 0.5, "sources": [0, 2]}]}
    return Outcome("change", {0: 2, 1: 1, 2: 0, 3: 1}, views, states, results, (1, 3), (3, 6))


def test_report__names_the_hosts_of_each_view_and_what_happened() -> None:
    first, second = Outcome("stay", results={0: a_result(0)}), an_outcome()
    assert elastic_report.hosts_of(second) == {1: [0, 1, 2], 2: [0, 2], 4: [0, 2, 3]}
    assert not list(elastic_report.faults(first, second))
    console = Console(width=110, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    elastic_report.print_summary(console, first, second, 3.0)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "2 6 0 2 0 2 rank 1 is gone" in lines
    assert "4 12 0 1 2 0 2 3 rank 1 is gone" in lines
    assert "one is killed, one comes 98.00% 9 20 27 0 equal 0" in lines
    assert any("got 0.5 MB of state from ranks 0, 2 in 0.50 s, and took part from step 7 on" in each for each in lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({0: a_result(2, digest="e")}, "change: the replicas differ"),
        ({0: a_result(2, untrue=["op 3"])}, "change: untrue receipt: host 0: op 3"),
        ({2: a_result(0, results={"3 1": "y"})}, "op 3 of view 1: complete, and another sum on host 2 than on 0"),
        ({each: a_result(0, accuracy=0.92) for each in (0, 2, 3)}, "accuracy: 98.00% and 92.00%: allowed"),
        ({3: a_result(1, ops=0)}, "host 3 came too late to take part"),
    ],
)
def test_faults__name_what_is_not_as_it_has_to_be(change: dict[int, dict[str, Any]], said: str) -> None:
    second = an_outcome()
    second.results = {**second.results, **change}
    assert any(said in each for each in elastic_report.faults(Outcome("stay", results={0: a_result(0)}), second))


def test_faults__a_death_that_no_view_tells_of_is_one() -> None:
    second = an_outcome()
    del second.views[2]
    (text,) = elastic_report.faults(Outcome("stay", results={0: a_result(0)}), second)
    assert text == "host 1 was killed, and no view is without it"


def test_marks__show_who_is_in_a_sum_and_what_a_receipt_says_wrong() -> None:
    gradients = [np.arange(100, dtype=np.float32) * (rank + 1) for rank in range(4)]
    whole = sum(marked(each, rank) for rank, each in enumerate(gradients))
    assert who_is_in(whole) == [{0, 1, 2, 3}] * 16
    assert np.array_equal(unmarked(whole, 100), np.arange(100) * 10)
    torn = whole.copy()
    torn[5] -= marked(gradients[1], 1)[5]
    assert who_is_in(torn)[5] == {0, 2, 3} and who_is_in(torn)[4] == {0, 1, 2, 3}
    torn[6, 0] = 0.5
    assert who_is_in(torn)[6] == {-1}
    base = SimpleNamespace(
        op_seq=3, view=1, status=Status.COMPLETE, members=(0, 1, 2, 3), contributors=(0, 1, 2, 3), bytes_expected=8,
        bytes_used=8, bytes_missing=0,
    )  # fmt: skip

    def told(bucket: np.ndarray, **said: Any) -> str:
        return untruth(SimpleNamespace(**{**vars(base), **said}), who_is_in(bucket), 0)  # type: ignore[arg-type]

    part = {"status": Status.PARTIAL, "contributors": (0, 2, 3)}
    assert not told(whole) and not told(torn[:6], **part)
    assert not told(marked(gradients[0], 0), status=Status.INSUFFICIENT)
    for wrong in (
        told(torn[:6]),
        told(torn[:6], **{**part, "contributors": (0, 1, 2)}),
        told(torn[:6], **{**part, "members": (0, 2, 3)}),
        told(torn, **part),
        told(whole, members=(0, 1, 2)),
        told(whole, status=Status.INSUFFICIENT),
        told(whole, bytes_missing=1),
    ):
        assert wrong.startswith("op 3 of view 1")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--policy", "solo"], "--policy"),
        (["--backend", "gloo"], "--backend"),
        (["--sparse", "1%"], "--sparse"),
        (["--seeds", "2"], "--seeds"),
        (["--ranks", "2"], "3 to 15 with --elastic"),
    ],
)
def test_demo_elastic__what_does_not_go_with_it_is_refused(asked: list[str], said: str) -> None:
    result = runner.invoke(main.build(), ["demo", "--elastic", *asked])
    assert result.exit_code == 2 and said in result.stderr, result.output


@pytest.fixture
def children() -> Iterator[list[psutil.Process]]:
    found: list[psutil.Process] = []
    yield found
    for process in found:
        if process.is_running():
            process.kill()


@needs_torch
@pytest.mark.check
@pytest.mark.timeout(180)
def test_demo_elastic__a_host_dies_another_comes_and_accuracy_is_the_same() -> None:
    done = subprocess.run([*DEMO, "--ranks", "3", "--json"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    stay, change = facts["trainings"]
    assert facts["faults"] == [] and abs(stay["accuracy"] - change["accuracy"]) <= facts["allowed"]
    assert stay["receipts"]["complete"] == stay["receipts"]["ops"] and len(stay["views"]) == 1
    assert change["killed"]["host"] == 1 and change["came"]["host"] == 3
    reached = [view["hosts"] for view in change["views"]]
    assert reached[0] == [0, 1, 2] and [0, 2] in reached and reached[-1] == [0, 2, 3]
    newcomer = change["hosts"][-1]
    assert newcomer["host"] == 3 and newcomer["first_step"] > change["came"]["after_step"] and newcomer["state"]
    assert "host 1 is killed" in done.stderr


@needs_torch
@pytest.mark.check
@pytest.mark.timeout(120)
def test_demo_elastic__a_ctrl_c_leaves_no_process_behind(children: list[psutil.Process]) -> None:
    command = [*DEMO, "--ranks", "3", "--epochs", "10000"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with demo:
        assert demo.stdout is not None
        folder = next(line for line in demo.stdout if "daemons on loopback" in line).split()[-1]
        assert any("loss" in line for line in demo.stdout), demo.communicate(timeout=30)[1]
        children += psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 8
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=30)
        assert demo.returncode == 130 and "Traceback" not in errors
        assert not psutil.wait_procs(children, timeout=10)[1] and not Path(folder).exists()


@needs_torch
@pytest.mark.check
@pytest.mark.timeout(60)
def test_demo_elastic__a_rank_that_cannot_start_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultima.demo.elastic_play.MODULE", "ultima.demo.no_such_module")
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    result = runner.invoke(main.build(), ["demo", "--elastic", "--data", "digits", "--ranks", "3"])
    assert result.exit_code == 1 and "ended with status 1" in result.stderr, result.output
