# SPDX-License-Identifier: Apache-2.0
"""The logic behind `make tta` by its values, and the whole of it once with a few steps."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.bench.criteria import Check
from tests.bench.tta import curves, report
from tests.bench.tta.curves import BBR, BEST_EFFORT, CALM, GLOO, INT8, LOSSY, NARROW, OWN, SPARSE, Run, time_to
from tests.bench.tta.study import SLOW, Bench, Course, Plan, Study, _run_of


def a_run(contender: str, network: str, pace: float, seed: int = 1, last: float = 0.8, **more: Any) -> Run:
    """A curve of four points, |pace| seconds apart: 0.5, 0.7, |last|, |last|."""
    accuracies = (0.5, 0.7, last, last)
    points = [(10 * at, pace * at, accuracy) for at, accuracy in enumerate(accuracies, 1)]
    return Run("wide", network, contender, seed, points, last, [100 * pace] * 40, **more)


def by_name(checks: list[Check], contender: str) -> dict[str, Check]:
    return {check.name: check for check in checks if check.case.endswith(contender)}


def test_time_to__straight_between_points_and_from_chance() -> None:
    points = [(1, 10.0, 0.5), (2, 20.0, 0.4), (3, 30.0, 0.6)]
    assert time_to(points, 0.3) == pytest.approx(5.0)  # half way from 0.1 to 0.5
    assert time_to(points, 0.5) == pytest.approx(10.0)
    assert time_to(points, 0.55) == pytest.approx(25.0)  # a fall before it takes nothing back
    assert math.isinf(time_to(points, 0.7))


def test_targets__are_the_lossless_gloo_of_the_same_seed() -> None:
    runs = [a_run(GLOO, CALM, 1, seed=1), a_run(GLOO, CALM, 1, seed=2, last=0.9), a_run(OWN, CALM, 1, seed=3)]
    assert curves.targets(runs, "wide") == pytest.approx({1: 0.797, 2: 0.897})
    assert math.isnan(curves.time_of(curves.of(runs, "wide", CALM, OWN), curves.targets(runs, "wide")))


def test_checks__every_ratio_by_its_value() -> None:
    runs = [
        a_run(GLOO, CALM, 2), a_run(OWN, CALM, 2.2), a_run(GLOO, LOSSY, 10), a_run(BBR, LOSSY, 5),
        a_run(OWN, LOSSY, 2.31, last=0.798),
    ]  # fmt: skip
    found = by_name(curves.checks(runs, "wide"), OWN)
    # 0.797 is reached 0.97 of the way from the second to the third point; of the own curve at 0.98980 of it.
    gloo, own = 2 + 0.97, 2 + 0.097 / 0.098
    assert found["time to accuracy, to Gloo over cubic"].value == pytest.approx(2.31 * own / (10 * gloo))
    assert found["time to accuracy, to the better Gloo"].value == pytest.approx(2.31 * own / (5 * gloo))
    assert found["time to accuracy, to its own without loss"].value == pytest.approx(2.31 * own / (2.2 * gloo))
    assert found["time to accuracy, to its own without loss"].verdict == "pass"
    assert found["final accuracy, points below lossless Gloo"].value == pytest.approx(0.2)
    assert found["final accuracy, points below lossless Gloo"].verdict == "pass"
    assert found["median step, to Gloo over cubic"].value == pytest.approx(1.1)
    assert found["median step, to Gloo over cubic"].verdict == "FAIL"


def test_time_of__is_that_of_the_mean_curve_of_the_seeds_that_are_asked_for() -> None:
    runs = {seed: a_run(OWN, CALM, pace, seed, last) for seed, pace, last in ((1, 2, 0.78), (2, 4, 0.82), (3, 9, 0.9))}
    wanted = {1: 0.79, 2: 0.80}
    assert curves.there(runs, wanted) == 1, "the first seed misses its own mark"
    # The mean of both has 0.8 after 9 s and 0.7 after 6, and 0.795 are wanted.
    assert curves.time_of(runs, wanted) == pytest.approx(6 + 3 * 0.95)
    assert math.isinf(curves.time_of(runs, {1: 0.79, 2: 0.82}))


def test_ratio__of_a_run_that_did_not_get_there_is_no_success() -> None:
    short, done = {1: a_run(OWN, CALM, 3, last=0.75)}, {1: a_run(GLOO, CALM, 2)}
    assert math.isinf(curves.ratio(short, done, {1: 0.8}, rivals=True))
    assert math.isnan(curves.ratio(done, short, {1: 0.8}, rivals=False))
    # A rival that does not get there is given the time that it ran: to its favour, and finite.
    assert curves.ratio(done, short, {1: 0.8}, rivals=True) == pytest.approx(6 / 12)
    assert math.isnan(curves.ratio(done, short, {2: 0.8}, rivals=True)), "nothing is known of that seed"


def test_ratio__is_over_the_seeds_that_both_have() -> None:
    mine = {seed: a_run(OWN, CALM, seed, seed) for seed in (1, 2, 3)}
    theirs = {seed: a_run(GLOO, CALM, 4, seed) for seed in (2, 3, 4)}
    wanted = dict.fromkeys((1, 2, 3, 4), 0.8)
    assert curves.ratio(mine, theirs, wanted, rivals=True) == pytest.approx(2.5 / 4)


def test_everywhere__a_seed_of_gloo_has_its_curve_on_the_clock_of_another_network() -> None:
    runs = [a_run(GLOO, CALM, 2, seed, last) for seed, last in ((1, 0.8), (2, 0.9))]
    runs += [a_run(BBR, LOSSY, 5, 1), a_run(OWN, LOSSY, 7, 1)]
    found = curves.everywhere(runs, "wide", LOSSY, BBR)
    assert found[1] == runs[2]
    assert found[2].points == [(10, 5, 0.5), (20, 10, 0.7), (30, 15, 0.9), (40, 20, 0.9)]
    assert list(curves.everywhere(runs, "wide", LOSSY, OWN)) == [1], "ours may lose something"
    assert curves.everywhere(runs, "wide", LOSSY, GLOO) == {}, "it has no clock there"


def test_checks__sparse_is_held_against_dense_on_the_same_link() -> None:
    runs = [a_run(OWN, NARROW, 30), a_run(SPARSE, NARROW, 8), a_run(SPARSE, NARROW, 8, seed=2)]
    (check,) = curves.checks(runs, "wide")
    assert check.case == f"wide, {NARROW}, {SPARSE}"
    assert check.value == pytest.approx(8 / 30) and check.verdict == "pass"
    runs[1] = a_run(SPARSE, NARROW, 8, last=0.79)
    (check,) = curves.checks(runs, "wide")
    assert math.isinf(check.value) and check.verdict == "FAIL", "it never gets there"
    assert len(curves.checks([*runs, a_run(OWN, CALM, 1)], "wide")) == 2, "the median step, too"


def test_checks__few_bits_are_held_against_the_better_gloo_without_loss() -> None:
    runs = [a_run(GLOO, CALM, 4), a_run(BBR, CALM, 3), a_run(INT8, CALM, 1.5, last=0.798), a_run(OWN, CALM, 4)]
    found = by_name(curves.checks(runs, "wide"), INT8)
    assert found["median step, to Gloo over cubic"].value == pytest.approx(0.375)
    assert found["time to accuracy, to the better Gloo"].value == pytest.approx(0.5 * (2 + 0.097 / 0.098) / 2.97)
    assert found["time to accuracy, to the better Gloo"].limit == found["median step, to Gloo over cubic"].limit == 0.6
    assert found["final accuracy, points below lossless Gloo"].value == pytest.approx(0.2)
    assert by_name(curves.checks(runs, "wide"), OWN).keys() == {"median step, to Gloo over cubic"}


def test_checks__one_that_never_gets_there_fails_and_is_not_left_out() -> None:
    runs = [a_run(GLOO, CALM, 2), a_run(GLOO, LOSSY, 10, last=0.6), a_run(BEST_EFFORT, LOSSY, 1, last=0.75)]
    found = by_name(curves.checks(runs, "wide"), BEST_EFFORT)
    assert found["time to accuracy, to Gloo over cubic"].verdict == "FAIL"
    assert found["time to accuracy, to the better Gloo"].verdict == "not measured", "bbr did not run"
    assert found["final accuracy, points below lossless Gloo"].value == pytest.approx(5.0)


def test_accuracy__is_the_mean_over_common_seeds() -> None:
    runs = [a_run(GLOO, CALM, 1, seed=seed, last=0.8) for seed in (1, 2, 3)]
    runs += [a_run(OWN, LOSSY, 1, seed=seed, last=last) for seed, last in ((2, 0.79), (3, 0.80), (4, 0.1))]
    check = curves.accuracy_check(runs, "wide", OWN)
    assert check.value == pytest.approx(0.5) and check.verdict == "FAIL"
    assert check.note == "79.50 and 80.00 %, 2 seeds"


def test_limits__are_those_of_the_issue() -> None:
    """Typed a second time on purpose: a limit must not move without two places saying so."""
    limits = (curves.TO_CUBIC, curves.TO_BETTER, curves.TO_OWN, curves.STEP_TO_GLOO, curves.POINTS_BELOW)
    assert limits == (0.5, 0.75, 1.06, 1.0, 0.3)
    assert curves.SPARSE_TO_DENSE == 1 / 3 and curves.QUANTISED_TO_GLOO == 0.6


def test_run__takes_the_slowest_rank_and_adds_the_bytes() -> None:
    def answer(seconds: float, missing: int, step_ms: float) -> dict[str, Any]:
        receipts = {"expected_bytes": 100, "missing_bytes": missing}
        return {"points": [[5, seconds, 30, 40]], "final": [7, 10], "step_ms": [step_ms, 1.0], "receipts": receipts,
                "op_ms": step_ms / 2}  # fmt: skip

    run = _run_of([answer(1.0, 0, 8.0), answer(1.5, 3, 6.0)], "wide", CALM, OWN, 1, None)
    assert run.points == [(5, 1.5, 0.75)] and run.final == 0.7
    assert run.step_ms == [8.0, 1.0] and run.op_ms == 4.0
    assert run.missing == 3 / 200


def test_report__is_the_same_from_its_file(tmp_path: Path) -> None:
    receipts = {"expected_bytes": 4_000_000, "missing_bytes": 100_000}
    runs = [a_run(GLOO, CALM, 2), a_run(GLOO, LOSSY, 10), a_run(BBR, LOSSY, 5), a_run(OWN, LOSSY, 1, receipts=receipts)]
    study = Study(runs, {"a fact": 7}, [])
    path = report.save(study, {"cores": 2}, tmp_path / "tta.json")
    again, machine = report.load(path)
    assert again == study and machine == {"cores": 2}
    last = report.rows(again.runs, "wide")[-1]
    assert last == [LOSSY, OWN, "1 of 1", "100.0", "4.0", "3.0", "0.20", "80.00", "0.1 MB (2.500 %)"]
    console = Console(width=150, record=True, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    report.show(console, again)
    text = console.export_text()
    assert "time to accuracy, to Gloo over cubic" in text and "a fact: 7" in text and "pass" in text
    png = report.draw(again, tmp_path / "tta.png", "today").read_bytes()
    assert png.startswith(b"\x89PNG") and len(png) > 10_000


@pytest.mark.root
@pytest.mark.check
@pytest.mark.timeout(500)
def test_bench__a_few_steps_of_everything(tmp_path: Path) -> None:
    """Digits, two steps a model: that each part speaks to the next, not what comes of it."""
    pytest.importorskip("torch", reason="torch is not installed")
    models = {"lenet": Course(4, 40, seeds=(1, 2)), "wide": Course(2, 40, seeds=(1, 2))}
    plan = Plan(models, points=2, networks=(CALM, LOSSY, SLOW), contenders=(GLOO, OWN), data="digits", alone_steps=1)
    notes: list[str] = []
    study = Bench(plan, notes.append).run()
    assert study.failures == []
    found = [(run.model, run.network, run.contender, run.seed) for run in study.runs]
    each = [(CALM, GLOO, 1), (CALM, OWN, 1), (LOSSY, GLOO, 1), (LOSSY, OWN, 1), (SLOW, GLOO, 1), (SLOW, OWN, 1),
            (CALM, GLOO, 2), (CALM, OWN, 2), (LOSSY, OWN, 2)]  # fmt: skip
    assert found == [(model, *rest) for model in ("lenet", "wide") for rest in each]
    for run in study.runs:
        steps = plan.models[run.model].steps
        assert [point[0] for point in run.points] == [steps // 2, steps]
        assert 0 < run.points[0][1] < run.points[1][1] and len(run.step_ms) == steps
        assert 0 <= run.final <= 1
        own = run.contender == OWN
        assert run.receipts.get("ops", 0) >= (4 * steps if own else 0)
        assert (run.deadline_s is not None) == (own and run.network == SLOW)
    wide = [run for run in study.runs if run.model == "wide"]
    (calm,) = (run for run in wide if (run.network, run.contender, run.seed) == (CALM, OWN, 1))
    assert calm.receipts["missing_bytes"] == 0 and calm.receipts["expected_bytes"] > 4 * 2 * 24_000_000
    # The same seed trains the same model wherever nothing is missing.
    first = {run.contender: run.final for run in wide if run.network == CALM and run.seed == 1}
    assert first[GLOO] == pytest.approx(first[OWN], abs=0.02)
    assert any("own work" in name for name in study.facts)
    content = json.loads(report.save(study, {}, tmp_path / "x.json").read_text())
    assert len(content["runs"]) == 18


@pytest.mark.root
@pytest.mark.long
@pytest.mark.timeout(300)
def test_bench__sparse_gradients_on_a_narrow_link() -> None:
    """They take more steps, send a part of the bytes, and are quicker."""
    pytest.importorskip("torch", reason="torch is not installed")
    plan = Plan({"wide": Course(2, 40, seeds=(1,))}, points=2, networks=(NARROW,), contenders=(OWN, SPARSE),
                data="digits", alone_steps=1, sparse_steps=2.0)  # fmt: skip
    study = Bench(plan, lambda text: None).run()
    assert study.failures == []
    dense, sparse = study.runs
    assert [(run.contender, len(run.step_ms)) for run in (dense, sparse)] == [(OWN, 2), (SPARSE, 4)]
    assert dense.receipts["missing_bytes"] == sparse.receipts["missing_bytes"] == 0
    of_dense = sparse.receipts["expected_bytes"] / dense.receipts["expected_bytes"]
    assert of_dense == pytest.approx(2, rel=1e-4), "in bytes of the dense tensor, and the small ops besides"
    assert min(dense.step_ms) > 2 * 24_800_000 * 8 * 0.75 / 100e6 * 1e3, "no step can be quicker over this link"
    assert min(sparse.step_ms) < min(dense.step_ms)


@pytest.mark.root
@pytest.mark.long
@pytest.mark.timeout(300)
def test_bench__gradients_in_few_bits() -> None:
    """They train, nothing is missing, and they are quicker than dense ones."""
    pytest.importorskip("torch", reason="torch is not installed")
    plan = Plan({"wide": Course(4, 40, seeds=(1,))}, points=2, networks=(CALM,), contenders=(OWN, INT8),
                data="digits", alone_steps=1)  # fmt: skip
    study = Bench(plan, lambda text: None).run()
    assert study.failures == []
    dense, few = study.runs
    assert [run.contender for run in study.runs] == [OWN, INT8]
    assert dense.receipts["missing_bytes"] == few.receipts["missing_bytes"] == 0
    assert few.receipts["expected_bytes"] == dense.receipts["expected_bytes"]
    assert min(few.step_ms) < min(dense.step_ms)


def test_rank__batches_and_rate() -> None:
    """Every image once before any comes again, on every rank the same; a rate that rises for a tenth and ends at 0."""
    pytest.importorskip("torch", reason="torch is not installed")
    from tests.bench.tta.rank import batches, rate

    found = batches(100, 7, 12, 16)
    assert [len(batch) for batch in found] == [16] * 12
    assert len({int(image) for batch in found[:6] for image in batch}) == 96
    assert all((one == two).all() for one, two in zip(found, batches(100, 7, 12, 16), strict=True))
    assert (found[0] != batches(100, 8, 12, 16)[0]).any()
    assert [rate(step, 20) for step in (0, 1, 2, 10, 19)] == pytest.approx([0.5, 0.95, 0.9, 0.5, 0.05])
