# SPDX-License-Identifier: Apache-2.0
"""The models behind `make reproduce-coded`, against cases worked out by hand and closed forms."""

import numpy as np
import pytest

from tests.reproduce.coded import learning, loads, patterns, real, speed, stalls, steps, virtual
from tests.reproduce.coded.logistic import Logistic, Shares, decoded, given
from tests.reproduce.partial.trainers import trainers
from ultima.coded import Plan


def test_virtual__one_vector_at_a_time() -> None:
    ready = np.array([[5.0, 1.0, 1.5, 9.0]])
    assert virtual.received(ready, 1, 2.0).tolist() == [3.0]
    assert virtual.received(ready, 2, 2.0).tolist() == [5.0], "the second waits for the first"
    assert virtual.received(ready, 3, 2.0).tolist() == [7.0]
    assert virtual.received(ready, 4, 2.0).tolist() == [11.0]


def test_virtual__a_tree_of_sure_times() -> None:
    """Without chance: 10 s of computing everywhere, leaves are received one by one, then the inner nodes."""
    model = virtual.Model(a=0.1, mu=1e12, t_c=1.0, points=1000)
    rng = np.random.default_rng(1)
    assert virtual.tree_times(model, 0.1, 3, 2, 1, 1, rng) == pytest.approx([14.0])
    assert virtual.tree_times(model, 0.1, 3, 2, 0, 1, rng) == pytest.approx([16.0])
    assert virtual.tree_times(model, 0.1, 9, 1, 4, 1, rng) == pytest.approx([15.0])
    assert model.order_statistic(4, 1, 0.1) == pytest.approx(10.0)


def test_speed__order_statistic() -> None:
    model = virtual.Model(a=5e-5, mu=1 / 5e-5, t_c=0.05, points=49920)
    assert model.order_statistic(12, 5, 1 / 6) == pytest.approx(0.757073, abs=1e-5)
    drawn = np.sort(model.compute(1 / 6, (20_000, 12), np.random.default_rng(3)), axis=1)[:, 6]
    assert drawn.mean() == pytest.approx(0.757073, rel=0.01)


def test_speed__verdicts() -> None:
    verdicts = [row.verdict for row in speed.run(steps=100).rows]
    assert verdicts == ["pass", "pass", "pass", "not tested", "pass"]


def test_loads__verdicts() -> None:
    assert [row.verdict for row in loads.run().rows] == ["pass"] * 4


def test_patterns__a_wrong_coefficient_shows() -> None:
    plan = patterns.PLANS["tree (3, 2), s = 1"]
    found = patterns.look(plan, patterns.bearable)
    assert (found.patterns, found.decodable) == (81, 81) and found.double < 1e-10 and found.wire < 1e-6
    sums, wrong = patterns.Sums(plan, np.random.default_rng(1)), patterns.Found()
    sums.given[5] *= 1.001
    sums.look(set(range(1, 13)) - {2, 4}, wrong)
    assert wrong.double > 1e-6


def test_logistic__tree_sums_are_those_of_the_plan() -> None:
    """A node whose children do not suffice counts as late itself, and who is below it does not count at all."""
    plan, rng = Plan(12, stragglers=1, children=3), np.random.default_rng(2)
    gifts = rng.standard_normal((13, 5)).astype(np.float32)
    for came in patterns.drawn(plan, 100, rng):
        total, coefficients = decoded(plan, gifts, came), plan.decoding(came)
        assert (total is None) == (coefficients is None)
        if total is not None and coefficients is not None:
            expected = sum(each * gifts[rank].astype(float) for rank, each in coefficients.items())
            assert np.allclose(total, expected, atol=1e-5)


def test_logistic__gifts_and_shares_are_the_whole_gradient() -> None:
    task = Logistic()
    flat = np.random.default_rng(4).standard_normal(task.x.shape[1])
    whole, plan = task.rows(flat, 0, task.size), Plan(4, stragglers=1)
    total = decoded(plan, given(task, plan, flat), {0, 3})
    assert total is not None and np.allclose(total, whole, rtol=1e-5)
    shares = Shares(task, 3)
    mean = np.mean([shares.gradient(flat, rank, 0) for rank in range(3)], axis=0)
    assert np.allclose(flat - task.rate * mean, task.step(flat, whole))


def test_learning__ends_where_uncoded_does() -> None:
    task = Logistic()
    end = task.uncoded(60)
    for plan in (Plan(4, stragglers=1), Plan(12, stragglers=1, children=3)):
        flat, without = learning.train(task, plan, seed=1, stall=0.2, steps=60)
        assert learning.distance(flat, end) < 1e-6 and 0 < without < 60
    assert learning.distance(learning.dropped(task, 12, 3, seed=1, steps=60), end) > 1e-3


def test_steps__a_job_by_hand() -> None:
    """Two replicas of all data, a unit of computing. Rank 1 sleeps for 5 in the first step. Its host keeps three
    results, so the op of step 3, which takes the place of that of step 0, waits until the rank wakes."""
    compute, stalled = np.ones((6, 2)), np.zeros((6, 2))
    stalled[0, 1] = 5.0
    plan = Plan(2, stragglers=1)
    run = steps.run(compute, stalled, plan.decodable)
    assert run.ended.tolist() == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    assert run.unused == [1, 1, 1, 1, 0, 0]
    assert steps.run(compute, stalled, plan.decodable, lag=9).ended.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    both = steps.run(compute, np.ones((6, 2)), Plan(2, stragglers=0).decodable)
    assert both.ended.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_steps__who_wakes_joins_the_step_under_way() -> None:
    """Rank 1 wakes at 1.5, sees that step 0 is over, and is in time for step 1, in which rank 0 sleeps."""
    compute, stalled = np.ones((3, 2)), np.array([[0.0, 1.5], [4.0, 0.0], [0.0, 0.0]])
    run = steps.run(compute, stalled, Plan(2, stragglers=1).decodable)
    assert run.ended.tolist() == [1.0, 2.5, 3.5]


def test_stalls__closed_forms() -> None:
    assert [round(stalls.break_even(ranks), 1) for ranks in (4, 8, 16)] == [3.1, 1.9, 1.4]
    stalled = stalls.drawn(4000, 8)
    expected = 2 + 5 * (1 - 0.99**4)
    assert stalls.star(stalled, 5.0, interrupted=True).mean == pytest.approx(expected, rel=0.02)
    assert stalls.star(stalled[:500], 5.0, interrupted=False).mean > expected


def test_real__virtual_time_is_that_of_the_closed_forms() -> None:
    """Computing 20 ms uncoded, 40 in a star, 64 in the tree (3, 2), 100 under gradient coding with S = 4; 300 ms more
    where somebody is needed who stalls."""
    none, star = (real.expected(name, steps=4000) for name in (real.UNCODED, real.STAR))
    assert none == pytest.approx(20 + 300 * (1 - 0.9**12), rel=0.03)
    assert star == pytest.approx(40 + 300 * (1 - 0.99**6), rel=0.05)
    assert real.expected(real.TREE, steps=500) == pytest.approx(77, rel=0.1)
    assert real.expected(real.CODING, steps=500) == pytest.approx(101, rel=0.05)


def test_real__verdicts() -> None:
    rows = real.judge({real.MASTER: 235.0, real.STAR: 58.0, real.TREE: 100.0})
    assert [row.verdict for row in rows] == ["FAIL", "not tested", "pass"]
    told = "Traceback\nultima.base.errors.Unsupported: policy coded: no\n2026-11-22 INFO ultimad ready"
    assert real._last_line(told) == "ultima.base.errors.Unsupported: policy coded: no"


@pytest.mark.check
def test_real__a_gang_without_a_code() -> None:
    """Three daemons, three steps: the harness of the experiment, with a scheme that every job has."""
    with trainers(3, lead_s=0.1, module="tests.reproduce.coded.trainer") as gang:
        assert real.ask(gang, real.UNCODED, steps=3) > 0
