# SPDX-License-Identifier: Apache-2.0
"""The logic behind the reproduced claims: fits, schedules, transforms, verdicts, controlled worlds of the simulator."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.rig import OWN, Series
from tests.reproduce import main, report
from tests.reproduce.study import ROOT, Grid, Plot, Row, Study, World, at_least, at_most, line_fit
from tests.reproduce.ultima import hadamard, incast, mse, table1, timeouts
from tests.sim.test_sim import built, run


def test_fit__finds_the_papers_own_line() -> None:
    slope, intercept, r2 = line_fit([incast.rounds(i) for i in incast.PAPER_S], list(incast.PAPER_S.values()))
    assert (round(slope, 1), round(intercept, 1)) == (78.7, 123.5) or abs(slope - 79.1) < 2
    assert r2 > 0.98
    assert line_fit([1, 2, 3], [1, 5, 1])[2] < 0.1


def test_verdict__what_was_not_measured_does_not_pass() -> None:
    assert at_most(math.nan, 1) is None and at_least(math.nan, 1) is None
    assert [Row("", "", "", "", holds).verdict for holds in (True, False, None)] == ["pass", "FAIL", "not tested"]


@pytest.mark.parametrize("name", list(mse.SCHEDULES))
def test_schedules__without_loss_all_nodes_have_the_mean(name: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 5 * mse.PACKET * 3))
    assert np.allclose(mse.SCHEDULES[name](x, 0.0, rng), x.mean(axis=0))


@pytest.mark.parametrize("name", list(mse.SCHEDULES))
def test_schedules__error_is_that_of_theory(name: str) -> None:
    """At 1 %, where a few thousand packets are enough; second-order terms and chance stay below 15 %."""
    n, loss = 6, 0.01
    assert mse.error(name, n, loss, 12_000, seed=7) == pytest.approx(mse.theory(name, n, loss), rel=0.15)


def test_transform__is_its_own_inverse_and_keeps_length() -> None:
    rng = np.random.default_rng(5)
    for n in (1, 2, 8, 128, 4096):
        x = rng.standard_normal(n)
        y = hadamard.transform(x)
        assert np.allclose(hadamard.transform(y), x) and np.isclose(np.sum(y**2), np.sum(x**2))
    assert np.allclose(hadamard.transform(np.array([1.0, 0, 0, 0])), 0.5)
    assert np.allclose(hadamard.transform(np.array([0.0, 1, 0, 0])), [0.5, -0.5, 0.5, -0.5])


def test_encoded_drop__is_unbiased_and_spreads_a_tail() -> None:
    x = np.zeros(1024)
    x[-10:] = 1.0
    drops = [hadamard.encoded(0.25, tail=True)(x, np.random.default_rng(seed)) for seed in range(400)]
    assert np.mean(drops, axis=0)[-10:] == pytest.approx(np.ones(10), abs=0.1)
    assert np.all(hadamard.plain(0.25, tail=True)(x, np.random.default_rng(0)) == 0)
    zero_filled, bare = hadamard.spike_error(rescale=False)
    assert zero_filled / bare < 0.02


def test_net__gradient_is_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(9)
    net, x, labels = hadamard.Net(rng), rng.random((5, 64)), np.array([0, 3, 9, 3, 1])

    def loss(flat: Any) -> float:
        w1, b1, w2, b2 = net.parts(flat)
        scores = np.maximum(x @ w1 + b1, 0) @ w2 + b2
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(5), labels]))

    slope = net.gradient(x, labels)
    for at in (0, 70, 64 * 64 + 3, 64 * 64 + 64 + 100, len(net.flat) - 1):
        step = np.zeros_like(net.flat)
        step[at] = 1e-6
        assert (loss(net.flat + step) - loss(net.flat - step)) / 2e-6 == pytest.approx(slope[at], abs=1e-6)


def _series(name: str, us: float, heard: int = 3, missing: int = 0) -> Series:
    receipt = {"heard": [heard, heard], "bytes_expected": 1_000_000, "bytes_missing": missing}
    return Series(name, [us] * 50, receipts=[[receipt]])


def test_table1__verdicts() -> None:
    found = {loss: {OWN: _series(OWN, 1000.0), table1.GLOO: _series(table1.GLOO, 1000.0)} for loss in table1.LOSSES}
    found[1.0][table1.GLOO] = _series(table1.GLOO, 3500.0)
    found[1.0][OWN] = _series(OWN, 1050.0, missing=13_000)
    rows = {row.claim: row for row in table1.judge(found, t_b_us=800.0)}
    gloo = "Gloo's ring over TCP (the paper's Ring)"
    assert rows["U1: Ultima keeps its rate at 1 %"].ours == "0.95"
    assert rows[f"U1: {gloo} collapses at 1 %"].verdict == "pass"
    assert rows[f"U1: Ultima to {gloo} at 1 %"].ours == "3.33"
    assert rows["U1: our ring over our reliable transport collapses at 1 %"].verdict == "not tested"
    assert rows["U3: bytes dropped by Ultima"].verdict == "FAIL"  # 1.3 % of 1 %
    assert rows["U4: mean time of an op over TCP grows at 1 %"].verdict == "pass"
    assert rows["U4: Ultima's p99 to t_B at 1 %"].verdict == "pass"
    assert {row.claim: row for row in table1.judge(found, 0.0)}["U4: Ultima's p99 to t_B at 1 %"].holds is None


def test_table1__a_schedule_that_did_not_run_is_seen() -> None:
    assert table1.in_force(_series("ultima ring", 1.0, heard=1), "ring")
    assert not table1.in_force(_series("ultima ring", 1.0, heard=3), "ring")
    assert table1.in_force(_series("ultima bcube", 1.0, heard=1), "bcube")
    assert not table1.in_force(_series("ultima bcube", 1.0, heard=3), "bcube")
    assert not table1.in_force(Series("ultima ring"), "ring")


def test_paper__its_headline_is_not_in_its_table() -> None:
    average, drift = table1.paper_rows()
    assert "29 %" in average.ours and "8 %" in drift.ours
    assert not average.holds and not drift.holds


def _world(early: int, hard: int, t_c_us: int = 1000, missing: int = 0) -> World:
    ends = [[4, 1]] * early + [[2, 1]] * hard
    host = {"status": 2, "elapsed_us": 2000.0, "expected": 1000, "missing": missing, "stage_us": [1500.0, 2000.0],
            "t_b_us": 5000, "t_c_us": [t_c_us, t_c_us]}  # fmt: skip
    return World("", [[{**host, "end": end}] for end in ends])


def test_timeouts__rows_and_reasons() -> None:
    rows = timeouts._early_rows([_world(19, 1)], [_world(0, 20)], "")
    assert [row.holds for row in rows] == [False, None, True]
    assert rows[2].ours.endswith("0.950")
    refused = timeouts._early_rows([], [], "this build has no t_B and t_C yet")
    assert [row.verdict for row in refused] == ["not tested"] * 3
    assert timeouts._trouble([World("", [[{"status": 4, "t_b_us": 1}]])]).startswith("ops failed")
    assert timeouts._trouble([World("O1 deadline", [])]).startswith("the simulator stopped")


def test_timeouts__the_slope_of_the_wait() -> None:
    study = Study("", "", "")
    rows = {percent: [_world(5, 0, missing=20 - percent)] for percent in timeouts.PERCENTS}
    for percent, worlds in rows.items():
        for op in worlds[0].ops:
            op[0]["stage_us"] = [1000.0 + 10 * percent, 2000.0]
    timeouts._wait_rows(study, rows, "")
    assert [row.verdict for row in study.rows] == ["pass", "pass"]
    assert "1.00 of it" in study.rows[0].ours


def test_page__holds_every_row_and_plot(tmp_path: Path) -> None:
    study = Study(
        "s",
        "A study",
        "How.",
        [Row("claim | one", "1", "2", "at most 1", False)],
        [Grid("g", ("a", "b"), [("1", "2")])],
    )
    study.plots.append(Plot("p", "t", "x", "y", {"l": ([1, 10], [0.0, 5])}, log_x=True, log_y=True))
    facts = {"date": "today", "commit": "c", "cores": 2, "cpu": "x", "kernel": "6"}
    text = report.page([study], facts, "make reproduce-ultima")
    assert "* **FAIL**: claim | one.\n  Paper: 1. Here: 2. Criterion: at most 1.\n" in text
    assert "**0 pass, 1 FAIL, 0 not tested.**" in text
    assert "![t](p.svg)" in text and "| 1 | 2 |" in text
    assert report.draw(study.plots[0], tmp_path).read_text().startswith("<?xml")
    study.plots.append(Plot("q", "t", "x", "y", {"l": (list(range(20_000)), [float(at) for at in range(20_000)])}))
    assert report.draw(study.plots[1], tmp_path).stat().st_size < 30_000


def test_thinned__keeps_both_ends_and_few_points_as_they_are() -> None:
    few = [(float(at), 0.0) for at in range(report.POINTS_MAX)]
    assert report.thinned(few) == few and report.thinned([]) == []
    many = [(float(at), 2.0 * at) for at in range(10 * report.POINTS_MAX + 3)]
    found = report.thinned(many)
    assert len(found) == report.POINTS_MAX and (found[0], found[-1]) == (many[0], many[-1])
    assert set(found) < set(many) and found == sorted(found)


def test_simulator__controlled_worlds() -> None:
    """The same seed gives the same ops; loss is repaired; jitter makes ops late; a wrong knob is named."""
    (program,) = built("sim")
    plain = run(program, "--study", "ops=4", "hosts=3", "bytes=60000", "seed=5")
    assert (
        plain.returncode == 0
        and plain.stdout == run(program, "--study", "ops=4", "hosts=3", "bytes=60000", "seed=5").stdout
    )
    told = json.loads(plain.stdout)
    assert told["failure"] == "" and told["lost"] == 0 and len(told["ops"]) == 4
    hosts = [host for op in told["ops"] for host in op["hosts"]]
    # Two of three shards come in, twice: 2 * 2/3 of the bucket.
    assert all(host["expected"] == 80000 and host["missing"] == 0 and host["status"] == 1 for host in hosts)
    lossy = json.loads(run(program, "--study", "ops=4", "loss_ppm=50000").stdout)
    assert lossy["lost"] > 0 and all(host["missing"] == 0 for op in lossy["ops"] for host in op["hosts"])
    late = json.loads(
        run(program, "--study", "ops=4", "hosts=3", "bytes=60000", "jitter_ppm=200000", "jitter_us=20000").stdout
    )
    slowest = [max(host["elapsed_us"] for op in one["ops"] for host in op["hosts"]) for one in (told, late)]
    assert slowest[1] > 2 * slowest[0]
    wrong = run(program, "--study", "loss=1")
    assert wrong.returncode == 2 and "loss=1" in wrong.stderr and "loss_ppm" in wrong.stderr


@pytest.mark.parametrize("paper", main.PAPERS)
def test_papers__each_study_is_there_and_has_a_page(paper: str) -> None:
    known = main.PAPERS[paper].studies
    assert all(callable(main.study_of(paper, name)) for name in known)
    figures = json.loads((ROOT / f"docs/reproduction/{paper}.json").read_text())
    assert {study["name"] for study in figures["studies"]} == set(known)


def test_main__runs_what_is_asked_for_and_tells_of_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def study_of(paper: str, name: str) -> Callable[[], Study]:
        def fails() -> Study:
            raise OSError("no lab")

        return fails if name == "real" else lambda: Study(name, f"Study {name}", "How.")

    monkeypatch.setattr(main, "study_of", study_of)
    assert main.main(["rna", "--only", "real", "probes", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "== Study probes" in said.out and said.err == "real: no lab\n"
    assert "make reproduce-rna" in (tmp_path / "rna.md").read_text()
    assert [study["name"] for study in json.loads((tmp_path / "rna.json").read_text())["studies"]] == ["probes"]
    with pytest.raises(SystemExit, match="2"):
        main.main(["rna", "--only", "table1"])
    assert "table1" in capsys.readouterr().err
