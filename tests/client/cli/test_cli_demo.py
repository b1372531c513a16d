# SPDX-License-Identifier: Apache-2.0
"""`ultima demo`: its images, that it trains and tells what came of it, and that it never leaves a process behind."""

import gzip
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.nursery import DAEMON, TORCH, Process, nursery_of
from ultima.cli import main
from ultima.demo import data, report
from ultima.demo.cluster import ChildFailed, Cluster

runner = CliRunner()
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
QUICK = ["--data", "digits", "--ranks", "2", "--epochs", "2"]


def test_digits__are_those_of_the_readme() -> None:
    raw = gzip.decompress(data.DIGITS_FILE.read_bytes())
    readme = (data.DIGITS_FILE.parent / "README.md").read_text()
    assert hashlib.sha256(raw).hexdigest() in readme
    assert "CC BY 4.0" in readme and "Alpaydin" in readme


def test_digits__all_images_are_there_once() -> None:
    images = data.load("digits")
    assert images.train_images.shape == (1197, 28, 28)
    assert images.test_images.shape == (600, 28, 28)
    # The source has these numbers of the digits 0 to 9.
    counts = np.bincount(images.train_labels, minlength=10) + np.bincount(images.test_labels, minlength=10)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images.train_images.max() == 255


def test_digits__enlarging_keeps_what_is_where() -> None:
    """One bright pixel of 8 by 8 becomes a spot of the same weight around the same place of 28 by 28."""
    small = np.zeros((1, 8, 8), np.uint8)
    small[0, 2, 5] = 16
    large = data._enlarge(small)[0].astype(float)
    rows, columns = np.indices(large.shape)
    assert (large * rows).sum() / large.sum() == pytest.approx((2 + 0.5) * 3.5 - 0.5, abs=0.01)
    assert (large * columns).sum() / large.sum() == pytest.approx((5 + 0.5) * 3.5 - 0.5, abs=0.01)
    assert large.sum() == pytest.approx(255 * 3.5**2, rel=0.01)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\0\0\x08", "starts with 00 00 08"),
        (b"\0\0\x0d\1\0\0\0\1\0\0\0\0", "an IDX file of bytes starts with 00 00 08"),
        (b"\0\0\x08\1\0\0\0\5abc", r"holds 3 values; its header says \(5,\)"),
    ],
)
def test_read_idx__names_what_is_wrong(raw: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(raw))
    with pytest.raises(ValueError, match=complaint):
        data.read_idx(path)


def test_load__fashion_mnist_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Debian's layout; auto takes it where it is and the digits where it is not."""
    monkeypatch.setattr(data, "FASHION_FOLDERS", (tmp_path,))
    assert data.load("auto").name == "digits"
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        data.load("fashion-mnist")
    for name, count in zip(data.FASHION_FILES, (6, 6, 4, 4), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        head = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
        content = np.arange(np.prod(shape)) % (256 if "images" in name else 10)
        (tmp_path / name).write_bytes(gzip.compress(head + content.astype(np.uint8).tobytes()))
    images = data.load("auto")
    assert images.name == "fashion-mnist"
    assert images.test_labels.tolist() == [0, 1, 2, 3]
    assert images.train_images[0, 1, 0] == 28


def summary(**changes: float) -> dict[str, float]:
    counts = {"ops": 10, "complete": 9, "partial": 1, "insufficient": 0, "failed": 0}
    amounts = {"expected_bytes": 1000, "missing_bytes": 10, "repaired_bytes": 5, "p50_us": 1500.0, "p99_us": 2500.0}
    return {**counts, **amounts, **changes}


def a_run(seed: int, accuracy: float, receipts: list[dict[str, float]]) -> report.Run:
    result = {"accuracy": accuracy, "step_ms": 20.0, "train_s": 9.0, "replicas_equal": True, "receipts": receipts}
    return report.Run(seed, {"event": "start", "ranks": 2}, {"event": "result", **result})


def test_report__adds_up_receipts_of_all_ranks_and_seeds() -> None:
    runs = [a_run(1, 0.5, [summary(), summary(p99_us=9000.0)]), a_run(2, 0.75, [summary(), summary(p50_us=1700.0)])]
    facts = report.to_json("ultima", runs, 12.0)
    assert facts["accuracy_mean"] == 0.625
    assert facts["receipts"]["ops"] == 40
    assert facts["receipts"]["missing_bytes"] == 40
    assert facts["receipts"]["p50_us"] == 1500.0
    assert facts["receipts"]["p99_us"] == 9000.0
    assert [run["seed"] for run in facts["runs"]] == [1, 2]
    console = Console(width=80, record=True, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_summary(console, runs, 12.0)
    text = console.export_text()
    for piece in ("50.00%", "75.00%", "Mean accuracy of 2 seeds: 62.50%", "40 (1.0000%)", "1.50 ms", "9.00 ms"):
        assert piece in text, piece


def test_left_texts__tell_who_left_and_what_it_was_to_the_others() -> None:
    run = a_run(1, 0.5, [summary()])
    assert list(report.left_texts([run])) == []
    run.start["leaves"] = [2, 1.5]
    run.result.update(stayed=[0, 1, 3], longest_step_ms=123.4)
    assert list(report.left_texts([run])) == [
        "Seed 1: site 2 left after 1.5 s. Sites 0, 1, 3 made all their steps; the longest took site 0 123 ms, half of "
        "them 20.0 ms at most."
    ]
    run.result["stayed"] = [0]
    assert "Site 0 made all its steps;" in next(report.left_texts([run]))
    run.result["stayed"] = [0, 1, 2, 3]
    assert list(report.left_texts([run])) == ["Seed 1: the training was over before site 2 was to leave, after 1.5 s."]


def test_cluster__a_child_that_fails_is_reported_with_its_last_words() -> None:
    with Cluster() as cluster:
        command = [sys.executable, "-c", "import sys; sys.exit('the reason')"]
        child = cluster._start("rank 7", command, dict(os.environ), output=True)
        cluster._ranks.append(child)
        with pytest.raises(ChildFailed, match="rank 7 ended with status 1\n  the reason"):
            for _ in cluster._lines(child.process):
                pass
        folder = cluster.folder
    assert not folder.exists()


def test_cluster__a_silent_training_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultima.demo.cluster.SILENCE_S", 0.3)
    mute = "import sys, time; print('waiting for a peer', file=sys.stderr, flush=True); time.sleep(60)"
    with Cluster() as cluster:
        child = cluster._start("rank 0", [sys.executable, "-c", mute], dict(os.environ), output=True)
        cluster._ranks.append(child)
        while not child.log.read_text():
            time.sleep(0.01)
        with pytest.raises(ChildFailed, match=r"rank 0 has said nothing for 0\.3 s\n  waiting for a peer"):
            for _ in cluster._lines(child.process):
                pass
    assert child.process.returncode == -signal.SIGTERM


def test_cluster__a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultima.demo.cluster.STOP_S", 0.3)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    with Cluster() as cluster:
        child = cluster._start("rank 0", [sys.executable, "-c", stubborn], dict(os.environ), output=True)
        cluster._ranks.append(child)
        assert child.process.stdout is not None
        assert child.process.stdout.readline() == b"up\n"
    assert child.process.returncode == -signal.SIGKILL


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's children come out of nurseries: a rank need not import torch for itself."""

    def popen(command: list[str], env: dict[str, str], stdout: Any, stderr: Any, **rest: Any) -> Process:
        assert command[:2] == [sys.executable, "-m"]
        modules = DAEMON if command[2].startswith("ultima.daemon.") else TORCH
        return nursery_of(modules).start(command[2], command[3:], env, stdout, stderr)

    replaced = SimpleNamespace(Popen=popen, **{name: getattr(subprocess, name) for name in
                                               ("PIPE", "DEVNULL", "TimeoutExpired")})  # fmt: skip
    monkeypatch.setattr("ultima.demo.cluster.subprocess", replaced)
    monkeypatch.setattr("ultima.demo.cluster.dies_with_parent", list)  # a nursery's child is a fork of it


@needs_torch
@pytest.mark.check
def test_demo__with_gloo_trains_and_prints_a_summary(forked: None) -> None:
    result = runner.invoke(main.build(), ["demo", "--backend", "gloo", *QUICK])
    assert result.exit_code == 0, result.output
    assert "2 ranks, 2 x 37 steps of 16 images a rank, backend gloo, seed 1" in result.output
    assert "epoch 2/2  step 37/37" in result.output
    assert "equal" in result.output
    assert "No receipts" in result.output


@needs_torch
@pytest.mark.timeout(120)
def test_demo__with_ultima_says_what_the_receipts_say(forked: None) -> None:
    result = runner.invoke(main.build(), ["demo", *QUICK, "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    (run,) = facts["runs"]
    assert run["replicas_equal"] is True
    assert 0 <= facts["accuracy_mean"] <= 1
    # Each rank: an all-reduce of the one bucket in each of 74 steps (DDP may cut the first one in two), one to count.
    assert facts["receipts"]["ops"] >= 2 * 75
    assert facts["receipts"]["complete"] == facts["receipts"]["ops"]
    assert facts["receipts"]["missing_bytes"] == 0
    assert facts["receipts"]["expected_bytes"] >= 2 * 74 * 61706 * 4
    assert facts["receipts"]["p50_s"] > 0


@needs_torch
@pytest.mark.check
@pytest.mark.timeout(150)
def test_demo__trains_dense_and_sparse(forked: None) -> None:
    """The same net twice; what a rank sent is told beside each other."""
    result = runner.invoke(main.build(), ["demo", *QUICK, "--sparse", "1%", "--json"])
    assert result.exit_code == 0, result.output
    dense, sparse = json.loads(result.stdout)["runs"]
    assert (dense["sparse"], sparse["sparse"]) == (None, 0.01)
    assert dense["replicas_equal"] and sparse["replicas_equal"]
    whole, part = (run["ranks"][0]["sent_bytes"] for run in (dense, sparse))
    assert whole == 74 * 61706 * 4
    # Ten of 74 steps are dense. Of the others goes 1 % of three matrices, exactly, for they are small, and the rest of
    # the parameters whole: 24 + 480 + 100 and 1226 of 61706.
    assert part is None or 10 / 74 < part / whole < 0.25, "None where daemons sum, which do not tell"
    assert sparse["ranks"][0]["ratio"] == pytest.approx(1830 / 61706)
    assert "buckets sparse, 10 dense" in sparse["ranks"][0]["summary"]


def test_report__puts_dense_and_sparse_side_by_side() -> None:
    runs = []
    ways = ((1, None, 4e6), (1, 0.01, 1e6), (2, None, 4e6), (2, 0.01, 2e6), (1, "int8", 1e6))
    for seed, share, sent in ways:
        run = a_run(seed, 0.5 if share is None else 0.75, [summary()])
        run.start["wire" if isinstance(share, str) else "sparse"] = share
        told = {} if share is None else {"summary": "9 buckets sparse"}
        run.result["ranks"] = [{"sent_bytes": sent, **told}]
        runs.append(run)
    console = Console(width=90, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_summary(console, runs, 12.0)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "dense 50.00% 4.0 MB 1.000 20.0 ms 9.0 s" in lines
    assert "1 % of them 75.00% 1.5 MB 0.375 20.0 ms 9.0 s" in lines
    assert "in int8 75.00% 1.0 MB 0.250 20.0 ms 9.0 s" in lines
    assert "Mean accuracy of 2 seeds, 1 % of them: 75.00%" in lines
    assert "Seed 2, rank 0: 9 buckets sparse" in lines


@needs_torch
@pytest.mark.check
@pytest.mark.timeout(150)
def test_demo__trains_dense_and_quantised(forked: None) -> None:
    result = runner.invoke(main.build(), ["demo", *QUICK, "--wire", "int8", "--json"])
    assert result.exit_code == 0, result.output
    dense, few = json.loads(result.stdout)["runs"]
    assert (dense["wire"], few["wire"]) == (None, "int8")
    assert dense["replicas_equal"] and few["replicas_equal"]
    whole, part = (run["ranks"][0]["sent_bytes"] for run in (dense, few))
    assert part / whole == pytest.approx(0.2557, rel=0.01)
    assert abs(few["accuracy"] - dense["accuracy"]) < 0.05
    assert "74 buckets quantised, 0 dense" in few["ranks"][0]["summary"]


@needs_torch
@pytest.mark.check
@pytest.mark.timeout(300)
def test_demo__trains_again_on_a_network_that_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay counts what it lost, the receipts say that all was repaired, and the model is the same one."""
    monkeypatch.delenv("ULTIMA_SOCKET", raising=False)
    options = ["--data", "digits", "--ranks", "2", "--epochs", "1", "--loss", "3%", "--rate", "500Mbit", "--json"]
    result = runner.invoke(main.build(), ["demo", *options])
    assert result.exit_code == 0, result.output
    still, lossy = json.loads(result.stdout)["runs"]
    network = still["network"]
    assert (network["loss"], network["rate"], network["lost"]) == (0.0, 0.0, 0) and network["came"] > 37
    network = lossy["network"]
    assert (network["loss"], network["rate"]) == (0.03, 5e8)
    assert 0.01 < network["lost"] / network["came"] < 0.06
    assert still["replicas_equal"] and lossy["replicas_equal"]
    assert lossy["accuracy"] == still["accuracy"], "a sum of two has the same bits in any order"
    assert sum(receipt["repaired_bytes"] for receipt in lossy["receipts"]) > 0
    assert "Network: 3 % lost, 500 Mbit/s" in result.stderr


def test_report__puts_two_networks_side_by_side() -> None:
    still = {"loss": 0.0, "rate": 0.0, "came": 900, "lost": 0, "overflowed": 0, "late_s": 0.0, "unread": 0}
    lossy = {"loss": 0.01, "rate": 2e8, "came": 1000, "lost": 12, "overflowed": 3, "late_s": 0.0312, "unread": 2}
    runs = [
        replace(a_run(1, 0.5, [summary(missing_bytes=0)]), network=still),
        replace(a_run(1, 0.75, [summary(repaired_bytes=2_000_000)]), network=lossy),
    ]
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_summary(console, runs, 12.0)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "as loopback is 50.00% 20.0 ms 2.5 ms 0.0000% 0.00 MB" in lines
    assert "1 % lost, 200 Mbit/s 75.00% 20.0 ms 2.5 ms 1.0000% 2.00 MB" in lines
    assert "1 1 % lost, 200 Mbit/s 75.00% 20.0 ms 9.0 s equal" in lines
    assert "Seed 1: the relay lost 12 of 1,000 datagrams (1.20%), and 3 more at full queues." in lines
    assert any("datagrams left up to 31 ms late, and 2 were never read." in line for line in lines)
    assert report.to_json("ultima", runs, 1.0)["runs"][1]["network"] == lossy


@needs_torch
def test_demo__loads_no_torch_before_it_starts_the_ranks() -> None:
    """Each rank loads it, which takes seconds; whoever only starts them must not make a user wait as long again."""
    code = """
import sys
from ultima.cli import main
from ultima.demo.cluster import Cluster
def ranks(*arguments): print([name for name in sys.modules if name == "torch"]); raise SystemExit(0)
Cluster.run_ranks = ranks
main.build()(["demo", "--backend", "gloo", "--slow-rank", "1:1ms", "--ranks", "2"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stdout + done.stderr


# Found in the place of `ultima.demo.train`: says that it trains, and waits.
STAND_IN = """
import importlib.util, json, sys, time

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, __file__) if name == "ultima.demo.train" else None

sys.meta_path.insert(0, Finder)
if __name__ == "__main__":
    facts = dict.fromkeys(("parameters", "train_images", "ranks", "epochs", "steps", "batch", "seed"), 1)
    print(json.dumps({"event": "start", "data": "nothing", "backend": "none", **facts}))
    print(json.dumps({"event": "step", "epoch": 1, "step": 1, "loss": 1.0}), flush=True)
    time.sleep(600)
"""


@needs_torch
@pytest.mark.parametrize(
    ("how", "real"), [(signal.SIGINT, False), pytest.param(signal.SIGTERM, False, marks=pytest.mark.check),
                      (signal.SIGKILL, False), pytest.param(signal.SIGINT, True, marks=pytest.mark.check)],
    ids=["SIGINT", "SIGTERM", "SIGKILL", "SIGINT in training"],
)  # fmt: skip
def test_demo__leaves_no_process_behind(how: signal.Signals, real: bool, tmp_path: Path) -> None:
    """Stopped in the middle, in three ways: the last one cannot be caught, so the kernel has to see to the children.
    It is enough that there are ranks; `make check` lets a Ctrl-C meet some that really train.
    """
    command = [sys.executable, "-m", "ultima.cli", "demo", "--backend", "gloo", "--data", "digits", "--ranks", "2"]
    command += ["--epochs", "10000"]
    environment = dict(os.environ)
    if not real:
        (tmp_path / "sitecustomize.py").write_text(STAND_IN)
        environment["PYTHONPATH"] = str(tmp_path)
    demo = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    children: list[psutil.Process] = []
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "epoch" in line and "loss" in line:
                break
        else:
            raise AssertionError(f"it ended by itself: {demo.communicate(timeout=30)[1][-3000:]}")
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 2
        demo.send_signal(how)
        _, errors = demo.communicate(timeout=30)
        assert demo.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
        assert "Traceback" not in errors
        _, left = psutil.wait_procs(children, timeout=10)
        assert not left
    finally:
        for process in (demo, *children):
            if isinstance(process, subprocess.Popen):
                process.kill()
                process.wait()
            elif process.is_running():
                process.kill()


@needs_torch
def test_demo__a_rank_that_cannot_start_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    monkeypatch.setattr("ultima.demo.cluster.sys.executable", "/bin/false")
    started = time.monotonic()
    result = runner.invoke(main.build(), ["demo", "--backend", "gloo", *QUICK])
    assert result.exit_code == 1
    assert "rank" in result.stderr and "ended with status 1" in result.stderr
    assert time.monotonic() - started < 20


@needs_torch
@pytest.mark.timeout(150)
@pytest.mark.parametrize("policy", ["majority", pytest.param("probe", marks=pytest.mark.check)])
def test_demo__with_a_policy_says_who_was_in_the_rounds(forked: None, policy: str) -> None:
    asked = [*QUICK[:-1], "1", "--policy", policy, "--slow-rank", "1:30ms", "--json"]
    result = runner.invoke(main.build(), ["demo", *asked])
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)["runs"]
    assert run["policy"] == policy
    assert run["replicas_equal"] is True
    assert run["rounds"] >= 37
    first, slow = run["ranks"]
    assert slow["steps"] < first["steps"], "the slow rank made fewer steps of its own"
    assert first["averaged"] > 0 and 0 < first["fresh"]["0"] <= 1
    assert "ultima status --socket /" in result.stderr


@pytest.mark.check
@needs_torch
@pytest.mark.timeout(150)
def test_demo__coded_says_who_was_not_waited_for(forked: None) -> None:
    """A rank that sleeps in each step is over in nearly all, and every step has the exact gradient."""
    result = runner.invoke(main.build(), ["demo", *QUICK, "--coded", "1", "--slow-rank", "1:300ms", "--json"])
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)["runs"]
    assert run["coded"] == 1 and run["replicas_equal"] is True and run["rounds"] == 74
    first, slow = run["ranks"]
    assert first["exact"] == first["steps"] == slow["exact"] == slow["steps"] == 74
    assert slow["over"] > first["over"] and first["late"]["1"] > 37


def test_report__says_who_was_in_the_rounds() -> None:
    ranks = [
        {
            "steps": 100,
            "seconds": 10.0,
            "averaged": 80,
            "fresh": {"0": 1.0, "1": 0.25},
            "stale": {"1": 0.5},
            "sync_s": 0.1,
        },
        {"steps": 20, "seconds": 10.0, "averaged": 15, "fresh": {"1": 1.0}, "stale": {}, "sync_s": 0.4},
    ]
    run = a_run(1, 0.5, [summary()])
    run.start["policy"] = "solo"
    run.result.update(ranks=ranks, rounds=100)
    console = Console(width=90, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.print_summary(console, [run], 12.0)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "0 100 10.0 100% 100% 0%" in lines
    assert "1 20 2.0 75% 25% 50%" in lines
    assert "100 rounds, 10.0 a second; 0.4 s in meetings that average the models." in lines


def test_report__says_who_was_not_waited_for() -> None:
    rank = {"seconds": 10.0, "steps": 100, "exact": 100, "over": 0, "again": 0, "late": {"1": 90, "0": 2}, "waiting": 8}
    slow = {**rank, "over": 90, "late": {"1": 88}}
    run = a_run(1, 0.5, [summary()])
    run.start["coded"] = 1
    run.result.update(ranks=[rank, slow], rounds=100)
    for exact, told in ((100, "in every step"), (97, "in 97 of 100 steps")):
        slow["exact"] = exact
        console = Console(width=90, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        report.print_summary(console, [run], 12.0)
        lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
        assert "0 100 100 2 (2%)" in lines and "1 100 10 90 (90%)" in lines
        assert f"The gradient was the exact one of all images {told}; 10.0 steps a second." in lines


@needs_torch
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--slow-rank", "9:1s"], "a rank from 0 to 1"),
        (["--slow-rank", "fast"], "RANK:TIME"),
        (["--slow-rank", "1:soon"], "slow-rank"),
        (["--policy", "solo", "--backend", "gloo"], "waits for everybody"),
        (["--coded", "1", "--backend", "gloo"], "not with --backend gloo"),
        (["--coded", "1", "--policy", "solo"], "it is a policy itself"),
        (["--coded", "2"], "one of the 2 workers must be in time"),
        (["--sparse", "1%", "--backend", "gloo"], "none with --backend gloo"),
        (["--sparse", "1%", "--policy", "solo"], "with a --policy"),
        (["--sparse", "few"], "a share above 0"),
        (["--wire", "int8", "--backend", "gloo"], "none with --backend gloo"),
        (["--wire", "int3"], "int16, int8, int4"),
        (["--sparse", "101%"], "a share above 0"),
        (["--loss", "50%"], "--loss is '50%'; allowed: a share above 0, to 30%"),
        (["--rate", "fast"], "--rate is 'fast'; allowed: a rate from 1Mbit"),
        (["--wan", "50,1%"], "--wan is '50,1%'; allowed: ROUND TRIP,LOSS,RATE as in 50ms,1%,50Mbit"),
        (["--wan", "50ms,1%,50Mbit", "--loss", "1%"], "none with --sparse, --loss or --rate"),
        (["--wan", "50ms,1%,50Mbit", "--policy", "solo"], "with a --policy"),
        (["--leave", "1:1s"], "--leave is '1:1s'; allowed: none without --wan"),
        (["--wan", "50ms,1%,50Mbit", "--leave", "0:1s"], "a site from 1 to 1, and a time"),
        (["--wan", "50ms,1%,50Mbit", "--leave", "2:1s"], "a site from 1 to 1, and a time"),
        (["--wan", "50ms,1%,50Mbit", "--leave", "soon"], "leave is 'soon'; allowed: SITE:TIME, as in 2:10s"),
        (["--loss", "1%", "--backend", "gloo"], "--loss is '1%'; allowed: none with --backend gloo"),
    ],
)
def test_demo__refuses_what_cannot_be(options: list[str], complaint: str) -> None:
    result = runner.invoke(main.build(), ["demo", "--ranks", "2", *options])
    assert result.exit_code != 0
    assert complaint in result.stderr + str(result.exception), result.output
