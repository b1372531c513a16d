# SPDX-License-Identifier: Apache-2.0
"""The models behind `make reproduce-eager` and `make reproduce-rna`: virtual time and replays against closed forms."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.reproduce.eager import real as eager_real
from tests.reproduce.eager import skew
from tests.reproduce.partial import blocking, learning, rounds, theory, workload
from tests.reproduce.partial.tasks import Digits, Hyperplane
from tests.reproduce.partial.trainer import Plane
from tests.reproduce.partial.workload import Values
from tests.reproduce.rna import accuracy, cost, speed
from tests.reproduce.rna import real as rna_real
from tests.reproduce.study import Study

SEED = 11  # of every random draw here, where no other is named


def test_picks__vectors_and_uniform() -> None:
    assert theory.splitmix64(0) == 0xE220A8397B1DCDAF
    assert [theory.picks(42, op, 8)[0] for op in range(16)] == [5, 0, 2, 4, 5, 6, 3, 3, 4, 0, 3, 3, 1, 4, 3, 4]
    pairs = [(5, 7), (0, 2), (2, 7), (4, 1), (5, 3), (6, 5), (3, 6), (3, 4)]
    assert [tuple(theory.picks(42, op, 8, 2)) for op in range(8)] == pairs
    counts = np.bincount([theory.picks(42, op, 8)[0] for op in range(8000)], minlength=8)
    assert counts.min() > 900 and counts.max() < 1100


def test_theory__vectors() -> None:
    for rho, row in ((0.9, (10, 2.614057, 2.027856)), (0.99, (100, 5.431997, 3.857847)), (0.5, (2, 1.265686))):
        for probes, expected in enumerate(row, 1):
            assert theory.queue_wait(rho, probes) == pytest.approx(expected, abs=1e-6)
    assert theory.learning_rate_terms(0.1, 8, 4, 1, 1, 2) == pytest.approx((0.258199, 0.447214, 0.00833333), rel=1e-5)
    assert theory.learning_rate_terms(0.1, 8, 8, 1, 1, 2) == pytest.approx((0.00833333,), rel=1e-5)
    assert theory.steps_needed(1, 0.1 / 12, 0.1) == pytest.approx(28800)
    assert [round(theory.probe_median(10, 50, q), 2) for q in (1, 2, 3, 4)] == [30, 21.72, 18.25, 16.36]
    assert theory.active_tolerance(32, 64) == pytest.approx(3.46, abs=0.01)


def test_blocking__a_job_by_hand() -> None:
    """Two ranks, two steps: who waits for whom, worked out on paper."""
    compute = np.array([[1.0, 3.0], [1.0, 1.0]])
    full = blocking.run(compute, "full", op_time=0.5)
    assert full.ended.tolist() == [3.5, 5.0] and full.left.tolist() == [[3.5, 3.5], [5.0, 5.0]]
    solo = blocking.run(compute, "solo", op_time=0.5)
    # Rank 0 starts op 0 at 1; rank 1 is late for it, and for op 1, too.
    assert solo.started.tolist() == [1.0, 2.5] and solo.left.tolist() == [[1.5, 3.0], [3.0, 4.0]]
    assert solo.active.tolist() == [[True, False], [True, False]]
    assert solo.rate == 2 / 4.0 and full.rate == 2 / 5.0
    assert blocking.run(compute, "quorum", quorum=2).ended.tolist() == blocking.run(compute, "full").ended.tolist()
    synced = blocking.run(compute, "solo", op_time=0.5, sync=1)
    assert synced.arrived[1].tolist() == [4.0, 4.0], "a synchronization waits for the last"


def test_blocking__an_op_waits_for_the_one_before() -> None:
    """Where an op takes longer than the computing, ops follow each other without a gap."""
    run = blocking.run(np.full((5, 3), 0.1), "solo", op_time=1.0)
    assert np.allclose(np.diff(run.ended), 1.1), "no rank has a gradient before it has the result of the op before"
    seeded = blocking.run(np.random.default_rng(SEED).random((200, 4)), "majority", op_time=0.4)
    assert np.all(seeded.started[1:] >= seeded.ended[:-1])


@pytest.mark.parametrize(("ranks", "step"), skew.SETTINGS)
def test_skew__latencies_are_those_of_theory(ranks: int, step: float) -> None:
    for policy in skew.POLICIES:
        run = blocking.skewed(ranks, step, 4000, policy, seed=SEED)
        assert run.latency_mean == pytest.approx(theory.skew_latency(policy, ranks, step), rel=0.05, abs=1e-9)
        assert run.active_mean == pytest.approx(theory.active_mean(policy, ranks), rel=0.05)
    # With the initiators known there is no chance left: the exact ratio.
    drawn = [theory.picks(SEED, op, ranks)[0] for op in range(64)]
    full, majority = (blocking.skewed(ranks, step, 64, policy, seed=SEED) for policy in ("full", "majority"))
    assert full.latency_mean / majority.latency_mean == pytest.approx(skew.drawn_bound(ranks, drawn))
    assert skew.drawn_bound(ranks, list(range(ranks))) == pytest.approx(skew.ratio_bound(ranks))


def test_skew__verdicts() -> None:
    good = skew.judge("here", 8, {"full": 35, "majority": 14, "solo": 0.3}, {"majority": 4.6, "solo": 1}, 2.6, 64)
    assert [row.verdict for row in good] == ["pass"] * 6
    eager = skew.judge("here", 8, {"full": 35, "majority": 0.2, "solo": 0.3}, {"majority": 2, "solo": 2}, 2.6, 64)
    assert [row.verdict for row in eager] == ["FAIL", "FAIL", "pass", "FAIL", "FAIL", "FAIL"]
    assert skew.paper_op_ms(2.46, "majority") == pytest.approx(1.64, abs=0.01)


@pytest.mark.parametrize("work", workload.ALL, ids=lambda work: work.name)
def test_workload__moments_after_clipping(work: workload.Workload) -> None:
    drawn = work.draw(np.random.default_rng(SEED), (60_000,))
    assert drawn.mean() == pytest.approx(work.mean, rel=0.02) and drawn.std() == pytest.approx(work.sd, rel=0.04)
    assert drawn.min() >= work.low and drawn.max() <= work.high


def test_workload__what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="flat: no clipped log-normal"):
        workload.Workload("flat", 1, 2, 1.5, 5).fit()


def test_workload__injections() -> None:
    slow = workload.one_slow(50, 6, 10, 3, 2, np.random.default_rng(SEED))
    assert np.all((slow == 13).sum(axis=1) == 2) and np.all((slow == 10).sum(axis=1) == 4)
    moved = workload.shifting(9, 8, 100, 50, 400)
    assert np.array_equal(np.sort(moved[3]), 100 + np.linspace(50, 400, 8)) and moved[1, 0] == moved[0, 1]
    assert np.array_equal(moved[8], moved[0])


def test_rounds__by_hand() -> None:
    """Rank 0 has gradients at 1, 2, 3, ..., rank 1 at 2.5, 5, ...: a round that asks rank 1 takes two of rank 0's."""
    finished = np.array([[1.0, 2.5], [2.0, 5.0], [3.0, 7.5], [4.0, 10.0], [5.0, 12.5], [6.0, 15.0]])
    made = rounds.run(finished, 3, lambda at: [[1], [0], [1]][at], op_time=0.25)
    assert made.started.tolist() == [2.5, 3.0, 5.0] and made.ended.tolist() == [2.75, 3.25, 5.25]
    assert made.response.tolist() == [2.5, 0.25, 1.75]
    assert made.fresh.tolist() == [[2, 1], [1, 0], [2, 1]]
    assert made.until(3.25).ended.tolist() == [2.75, 3.25]
    pending = rounds.run(finished, 2, lambda at: [0], op_time=2.0)
    assert pending.started.tolist() == [1.0, 3.0], "what was ready during an op starts the next at once"
    with pytest.raises(ValueError, match="rank 0 has only 6"):
        rounds.run(finished, 9, lambda at: [0])


def test_rounds__medians_and_contributors() -> None:
    rng = np.random.default_rng(SEED)
    for q in (1, 2, 3):
        found = rounds.independent(40, 8000, 10, 50, q, rng)
        assert np.median(found) == pytest.approx(theory.probe_median(10, 50, q), rel=0.03)
        expected = theory.active_mean("probe", 40, q)
        assert rounds.independent_contributors(40, 8000, q, rng) == pytest.approx(expected, rel=0.05)
    finished = np.cumsum(rng.uniform(10, 50, (1500, 40)), axis=0)
    two = rounds.run(finished, 1500, rounds.chooser(40, 2, rng))
    assert two.contributors_mean == pytest.approx(41 / 3, rel=0.05)
    assert np.all(np.diff(two.taken, axis=0) >= 0) and two.taken[-1].sum() == two.fresh.sum()


def test_groups__share_a_server_that_serves_one_at_a_time() -> None:
    """Two groups that push at the same time: one waits for the other, and neither for the other's gradients."""
    finished = np.array([[1.0, 1.0], [2.0, 50.0], [3.0, 60.0], [4.0, 70.0], [9.0, 99.0]])
    alone = [lambda at: [0], lambda at: [0]]
    split = rounds.grouped(finished, [[0], [1]], until=5.0, picks=alone, server_time=0.5)
    assert split.ended[0].tolist() == [1.5, 2.5, 3.5, 4.5] and split.ended[1].tolist() == [2.0]
    assert split.waited == pytest.approx(0.5 / 7), "the first push of the second group waits; two end too late to count"
    together = rounds.grouped(finished, [[0, 1]], until=80.0, picks=[lambda at: [1]], server_time=0.5)
    assert together.ended[0].tolist() == [1.5, 50.5, 60.5, 70.5]


def test_sample_gain__is_the_ratio_of_maximum_and_mean() -> None:
    compute = workload.uniform(800, 8, 20, 0, 50, np.random.default_rng(SEED))
    ours, bound, _ = speed.sample_gain(compute, SEED)
    assert ours == pytest.approx(bound, rel=0.05) and bound == pytest.approx((20 + 400 / 9) / 45, rel=0.02)


class Scalar:
    """A model of one number whose gradients are given: by rank and step."""

    def __init__(self, gradients: dict[tuple[int, int], float], rate: float = 1.0) -> None:
        self.rate, self._gradients = rate, gradients

    def start(self) -> Values:
        return np.zeros(1)

    def gradient(self, flat: Values, rank: int, step: int) -> Values:
        return np.array([self._gradients[rank, step]])

    def loss(self, flat: Values) -> float:
        return float(flat[0])


def test_eager__the_papers_own_walk_through() -> None:
    """Its Figure 7: rank 0 is late with 6, so op 0 gives 4 / 2; then it adds 10, and op 1 gives (6 + 10 + 8) / 2."""
    task = Scalar({(0, 0): 6, (1, 0): 4, (0, 1): 10, (1, 1): 8})
    run = blocking.run(np.array([[5.0, 1.0], [1.0, 9.0]]), "solo")
    assert run.started.tolist() == [1.0, 6.0]
    learned = learning.eager(task, run)
    # Both apply 2, then 8 too late: rank 0 starts op 1 with 16 alone, rank 1's 8 stays in its slot.
    assert learned.replicas[:, 0].tolist() == [-(2 + 8), -(2 + 8)]
    both = blocking.run(np.array([[5.0, 1.0], [1.0, 5.0]]), "full")
    assert learning.eager(task, both).replicas[:, 0].tolist() == [-(5 + 9), -(5 + 9)]
    # Op 1 waits for both, op 0 did not: 6 + 10 + 8.
    late = blocking.Run(*map(np.array, ([1.0, 6.0], [1.0, 6.0], [[5.0, 1.0], [6.0, 6.0]], [[5.0, 1.0], [6.0, 6.0]])))
    assert learning.eager(task, late).replicas[:, 0].tolist() == [-(2 + 12), -(2 + 12)]


def test_eager__a_rank_that_is_far_behind_takes_the_newest_result() -> None:
    task = Scalar({**{(0, step): 10.0**step for step in range(4)}, **{(1, step): 0.0 for step in range(4)}})
    run = blocking.run(np.array([[1.0, 3.5], [1.0, 10.0], [1.0, 1.0], [1.0, 1.0]]), "solo")
    # Rank 1 comes to op 0 at 3.5, when op 2 has ended with 100 / 2; to the others when op 3 has, with 1000 / 2.
    assert learning.eager(task, run).replicas[:, 0].tolist() == [-1111 / 2, -(50 + 3 * 500)]


def test_eager__full_is_plain_sgd_and_nothing_is_lost_in_solo() -> None:
    task = Hyperplane(SEED, size=12, batch=8)
    compute = np.random.default_rng(SEED).uniform(1, 9, (60, 4))
    learned = learning.eager(task, blocking.run(compute, "full"))
    flat = task.start()
    for step in range(60):
        flat -= task.rate * np.mean([task.gradient(flat, rank, step) for rank in range(4)], axis=0)
    assert np.allclose(learned.replicas, flat)
    # Constant gradients: every one ends in a slot or in exactly one result.
    ones = Scalar(dict.fromkeys(itertools.product(range(4), range(60)), 1.0))
    run = blocking.run(compute, "solo", sync=1)
    applied = -learning.eager(ones, run, sync=1).replicas[:, 0]
    waiting = 4 * 60 - 4 * applied
    assert np.all(applied == applied[0]) and np.all(waiting >= 0) and np.all(waiting <= 4)


def test_local_reduce__vectors() -> None:
    def of(steps: list[int], values: list[float], eta: int) -> float:
        pending = [(at, np.array([value])) for at, value in zip(steps, values, strict=True)]
        return float(learning.local_reduce(pending, eta)[0][0])

    assert of([3, 4, 5], [1, 2, 3], 4) == pytest.approx(14 / 6)
    assert of([3, 5], [1, 3], 4) == 2.5
    assert of([5], [7], 4) == 7
    assert of([5, 7, 8, 10], [1, 2, 3, 4], 3) == pytest.approx(24 / 7)


@pytest.mark.parametrize("every", [True, False])
def test_rna__by_hand(every: bool) -> None:
    """Rank 1 computes while two rounds end: it must apply both results, or misses the first if it takes the newest."""
    finished = np.array([[1.0, 3.5], [2.0, 7.0], [3.0, 99.0]])
    made = rounds.run(finished, 3, lambda at: [0])
    assert made.started.tolist() == [1.0, 2.0, 3.0]
    task = Scalar({(0, 0): 1, (0, 1): 2, (0, 2): 4, (1, 0): 10, (1, 1): 20}, rate=2.0)
    more = rounds.Rounds(*(np.append(part, 3.5) for part in (made.probed, made.started, made.ended)),
                         np.vstack([made.taken, [[3, 1]]]))  # fmt: skip
    learned = learning.rna(task, finished, more, every_result=every)
    # rate 2 over 2 ranks: a result counts as the sum of its gradients. Rank 0 finds none at 1 and uses its own, then
    # those of 1 and 2. Rank 1 finds three at 3.5: 1, 2 and 4; its own 10 is in the fourth.
    assert learned.replicas[:, 0].tolist() == [-(1 + 1 + 2), -(1 + 2 + 4) if every else -4]
    assert learned.local_steps == 1 and learned.gaps == [0, 0, 0, 0]


def test_rna__with_one_rank_and_instant_rounds_is_sgd_of_stale_results() -> None:
    task = Digits(SEED, batch=4)
    finished = np.arange(1.0, 41.0)[:, None]
    made = rounds.run(finished, 40, lambda at: [0], op_time=0.5)
    learned = learning.rna(task, finished, made)
    flat, last = task.start(), None
    for step in range(40):
        gradient = task.gradient(flat, 0, step)
        flat = flat - task.rate * (gradient if last is None else last)
        last = gradient
    assert np.allclose(learned.replicas[0], flat)


def test_digits__gradient_descends_and_loss_is_that_of_the_net() -> None:
    task = Digits(SEED)
    flat = task.start()
    before = task.loss(flat)
    for step in range(30):
        flat = flat - task.rate * task.gradient(flat, 0, step)
    assert task.loss(flat) < 0.8 * before and task.accuracy(flat) > 50
    assert np.array_equal(task.gradient(flat, 1, 2), task.gradient(flat, 1, 2))
    assert not np.array_equal(task.gradient(flat, 1, 2), task.gradient(flat, 2, 1))


@pytest.mark.parametrize("make", [lambda: Hyperplane(SEED, size=8, batch=100_000)])
def test_hyperplane__gradient_is_that_of_the_loss(make: Callable[[], Hyperplane]) -> None:
    task = make()
    flat = np.full(8, 0.5)
    ours = task.gradient(flat, 0, 0)
    step = 1e-4 * np.eye(8)
    slope = np.array([(task.loss(flat + one) - task.loss(flat - one)) / 2e-4 for one in step])
    assert np.allclose(ours, slope, atol=0.5, rtol=0.1)


def test_learned__time_to_a_loss_needs_two_points() -> None:
    learned = learning.Learned(np.zeros((1, 1)), [0.0, 1.0, 2.0, 3.0], [5.0, 1.0, 3.0, 1.0])
    assert learned.time_to(1.0) == 3.0 and learned.time_to(0.5) == float("inf") and learned.time_to(5.0) == 0.0
    assert accuracy.smooth([5, 1, 9, 1, 1]) == [5, 3, 1, 1, 1]


def _receipt(op: int, included: int, initiator: list[int], kept: bool = False) -> dict[str, Any]:
    return {"op_seq": op, "included": included, "initiator": initiator, "kept": kept}


def test_real__what_ranks_answered_is_counted_by_op() -> None:
    """An op counts once, however many ranks tell of it, and however late."""
    answers = [
        {"latency_s": [0.1, 0.3], "receipts": [_receipt(0, 2, [1]), _receipt(1, 1, [0])]},
        {"latency_s": [0.0, 0.2], "receipts": [_receipt(0, 2, [1], kept=True), _receipt(2, 4, [])]},
        {"latency_s": [0.0, 0.3], "receipts": [_receipt(2, 4, [], kept=True), _receipt(2, 4, [], kept=True)]},
    ]
    assert eager_real.latency_of(answers) == pytest.approx(0.15)
    assert eager_real.active_of(answers) == (1 + 2) / 2
    assert eager_real.initiators_of(answers) == [1, 0]
    run = [{**one, "seconds": 2.0, "computed": 5} for one in answers]
    found = rna_real.found(run)
    assert (found.rounds, found.computed, found.taken) == (3, 15, 7)
    assert rna_real.found([{"receipts": [], "seconds": 1.0, "computed": 0}]).rounds == 0


def test_real__verdicts_of_rna() -> None:
    study = Study("", "", "")
    rna_real.judge(study, rna_real.Found(rounds=360, seconds=20, contributors=2.9, computed=1060, taken=1044))
    assert [row.verdict for row in study.rows] == ["pass"] * 3
    study = Study("", "", "")
    rna_real.judge(study, rna_real.Found(rounds=800, seconds=20, contributors=1.0, computed=600, taken=400))
    assert [row.verdict for row in study.rows] == ["FAIL"] * 3


def test_plane__error_of_a_model_is_that_of_fresh_data() -> None:
    request = {"seed": 3, "size": 6, "noise": 1.5, "batch": 200_000}
    plane, flat = Plane(request, 0), np.full(6, 0.5)
    step = 0.01 * np.eye(6)
    slope = [(Plane.excess(request, flat + one) - Plane.excess(request, flat - one)) / 0.02 for one in step]
    assert np.allclose(plane.gradient(flat), slope, atol=0.1)
    truth = np.random.default_rng(3).standard_normal(6)
    assert Plane.excess(request, truth) == 1.5**2


def test_cost__verdicts() -> None:
    told = {"announce": {"p50_ms": 2.6, "p95_ms": 5.8, "count": 150}, "decide": {"p50_ms": 1.4},
            "probe": {"one_caller_per_s": 1473, "16_callers_per_s": 3124, "daemon_cpu_us": 20_000}}  # fmt: skip
    study = Study("", "", "")
    cost.judge(study, told, 60)
    # A probe that costs as much as a task is not worth a second one.
    assert [row.verdict for row in study.rows] == ["pass", "not tested", "FAIL"] and "best q = 1" in study.rows[2].ours
    told["announce"]["p50_ms"] = 3.4
    slow = Study("", "", "")
    cost.judge(slow, told, 60)
    assert slow.rows[0].verdict == "FAIL"
    free = cost.rounds_per_second(0.0, 300)
    assert free[1] < free[2] < free[4] < free[16]
