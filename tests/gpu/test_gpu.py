# SPDX-License-Identifier: Apache-2.0
"""`make gpu` itself, where there is no GPU: it says so, and all its checks run with the stand-in."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.gpu import main as gpu  # noqa: E402  # only where torch is
from tests.gpu.wheels import needed  # noqa: E402
from ultima.torch.tested import OLDEST  # noqa: E402


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_main__without_a_gpu_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == gpu.NO_GPU not in (0, 1, 2)
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "no GPU" in said and "--fake" in said


@pytest.mark.check
def test_main__with_the_stand_in_runs_every_check(tmp_path: Path) -> None:
    report = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "tests.gpu.main", "--fake", "--json", str(report)]
    done = subprocess.run(command, cwd=gpu.ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text())
    assert told["ok"] and [row["name"] for row in told["checks"]] == [*gpu.CHECKS, gpu.TESTS]
    assert all(len(row["said"]) == gpu.WORLD for row in told["checks"][:-1])
    gates = {row["name"]: row["said"][0] for row in told["checks"]}
    assert gates[gpu.TESTS]["skipped"] == 11, "the tests that need a GPU"
    assert gates["staging"]["kernels_went_on"] > 0


@pytest.mark.check
def test_checks__one_that_fails_leaves_the_next_its_turn() -> None:
    """Its ranks end; others go on."""
    rows = gpu.run_checks(["nonsense", "pinning"], True, time.monotonic() + 60)
    assert [(row.name, row.ok) for row in rows] == [("nonsense", False), ("pinning", True)]
    assert "its ranks ended" in rows[0].wrong[0]


def test_checks__of_which_one_rank_said_nothing_are_wrong() -> None:
    row = gpu._row("values", [{"rank": 0, "ok": True, "wrong": [], "seconds": 1.0}])
    assert not row.ok


def test_first_failure__is_of_pytest_s_summary_and_has_its_message() -> None:
    printed = "FAILURES\nE  assert 1\nFAILED a.py::b[cuda] - AssertionError: step 9\nFAILED a.py::c - no\n2 failed"
    assert gpu.first_failure(printed) == ["first of 2: FAILED a.py::b[cuda] - AssertionError: step 9"]
    assert gpu.first_failure("11 passed") == []


def test_bounded__keeps_both_ends() -> None:
    text = "a" * gpu.OUTPUT_CHARACTERS + "b" * gpu.OUTPUT_CHARACTERS
    kept = gpu.bounded(text)
    assert len(kept) < gpu.OUTPUT_CHARACTERS + 50 and kept[0] == "a" and kept[-1] == "b" and "[20000 char" in kept
    assert gpu.bounded("short") == "short"


@pytest.mark.parametrize(("version", "said"), [("2.11.0+cu130", True), ("2.16.1", True), ("2.13.0+cpu", False)])
def test_release_note__of_a_torch_that_is_not_tested(version: str, said: bool) -> None:
    note = gpu.release_note(version)
    assert (version in note and OLDEST in note) if said else not note


def test_wheels__are_those_of_all_that_is_needed() -> None:
    assert {"grpcio", "cffi", "pycparser", "protobuf", "numpy", "typer", "pydantic"} <= needed()
    assert not {"torch", "pytest", "ruff", "aiohttp", "ultimad"} & needed(), "of other extras there is none"
