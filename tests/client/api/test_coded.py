# SPDX-License-Identifier: Apache-2.0
"""Coded jobs on the fake, which decodes by the functions of `ultima.coded`: late ranks, lost ones, and steps that fail.

The gradient of part k is 4^k, so that a result shows how often each part is in it.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.api.slots import at_once
from ultima import Behind, DeadlineExceeded, InvalidArgument, Job, Options, RanksGone, Unsupported
from ultima.coded import Plan
from ultima.testing import FakeDaemon

SIZE = 12


def part_of(plan: Plan, rank: int, step: int = 0, size: int = SIZE) -> Any:
    """What a rank gives: the weighted sum of the gradients of its data."""
    points = 4.0 ** np.arange(size) + step
    return np.array([sum(row[2] * points[row[0] : row[1]].sum() for row in plan.allocation(rank, size)), rank * 0.0])


def whole(step: int = 0, size: int = SIZE) -> float:
    return float((4.0 ** np.arange(size) + step).sum())


@contextlib.contextmanager
def coded(plan: Plan, exact: bool = True, **options: Any) -> Iterator[tuple[FakeDaemon, list[Job]]]:
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(FakeDaemon(plan.hosts))
        said = Options(**plan.options(exact))
        options = {"arena": "4M", "deadline": 5, **options}
        yield daemon, [stack.enter_context(daemon.connect(rank, options=said, **options)) for rank in range(plan.hosts)]


def give(job: Job, step: int = 0, **options: Any) -> tuple[Any, ultima.Receipt]:
    array = part_of(job.coded().plan, job.rank, step)
    receipt = job.coded().reduce(array, step, **options)
    return array, receipt


def taken(job: Job, step: int) -> tuple[Any, ultima.Receipt]:
    """The result, by a rank that gives nothing."""
    result = job.coded().wait(step, out=np.zeros(2))
    return result.array, result.receipt


def test_reduce__goes_on_without_one_replica_and_is_exact() -> None:
    plan = Plan(4, stragglers=1)
    with coded(plan) as (daemon, jobs):
        daemon.op_takes(0.3)
        assert jobs[0].coded(plan).plan == plan and jobs[0].coded().exact
        (first, receipt), (second, _), (third, _) = at_once(*[lambda job=job: give(job) for job in jobs[:3]])
        assert first[0] == second[0] == third[0] == whole()
        assert (receipt.step, receipt.exact, receipt.policy) == (0, True, "coded")
        assert (receipt.late, receipt.complete, receipt.residual) == ((3,), True, 0.0)
        assert "step 0, exact, did not wait for rank 3" in str(receipt)
        late = jobs[3].coded()
        assert late.over(0) and not late.over(1)
        array, receipt = give(jobs[3])
        assert array[0] == whole() and receipt.gift is ultima.Gift.NULL, "the result of its step, at once"
        result = late.wait(0)
        assert result.array[0] == whole() and result.receipt.step == 0


def test_reduce__a_rank_that_gives_while_the_op_runs_is_in() -> None:
    with coded(Plan(2, stragglers=0)) as (_, jobs):
        started: list[Any] = []
        thread = threading.Thread(target=lambda: started.append(give(jobs[0])))
        thread.start()
        time.sleep(0.05)
        array, receipt = give(jobs[1])
        thread.join()
        assert array[0] == started[0][0][0] == whole() and receipt.included == 2


@pytest.mark.parametrize(
    "plan", [Plan(3, stragglers=1), Plan(12, stragglers=1, children=3), Plan(6, stragglers=1, children=2)]
)
def test_reduce__linear_codes_and_trees(plan: Plan) -> None:
    """Each rank is late in some step, and gets the same bytes as those that were enough; so do ranks over the workers,
    which give nothing."""
    with coded(plan) as (_, jobs):
        for step, late in enumerate(range(plan.first, plan.hosts)):
            there = [rank for rank in range(plan.hosts) if rank != late]
            assert plan.decodable(there)
            givers = [jobs[rank] for rank in there if rank >= plan.first]
            takers = [*jobs[: plan.first], jobs[late]]
            found = at_once(
                *(lambda job=job, step=step: give(job, step) for job in givers),
                *(lambda job=job, step=step: taken(job, step) for job in takers),
            )
            for array, receipt in found:
                np.testing.assert_allclose(array[0], whole(step), rtol=1e-12)
                assert receipt.exact and receipt.complete and receipt.step == step and late in receipt.late
                assert array.tobytes() == found[0][0].tobytes()


def test_reduce__fails_without_both_replicas_and_takes_the_same_gradient_again() -> None:
    plan = Plan(4, stragglers=1)
    with coded(plan) as (daemon, jobs):
        daemon.leave_out(2, 3)
        before = part_of(plan, 0)

        def failing(job: Job) -> Any:
            array = part_of(plan, job.rank)
            with pytest.raises((DeadlineExceeded, RanksGone), match="coded, step 0"):
                job.coded().reduce(array, 0, deadline=0.2)
            return array

        arrays = at_once(*[lambda job=job: failing(job) for job in jobs[:2]])
        assert (arrays[0] == before).all(), "the array is what was given"
        daemon.leave_out()
        (array, receipt), *_ = at_once(*[lambda job=job: give(job) for job in (jobs[0], jobs[2])])
        assert array[0] == whole() and receipt.exact and receipt.step == 0


def test_reduce__fails_at_once_when_both_replicas_are_gone() -> None:
    with coded(Plan(4, stragglers=1)) as (_, jobs):
        jobs[2].close()
        jobs[3].close()
        began = time.monotonic()
        for outcome in at_once(*[lambda job=job: _gone(job) for job in jobs[:2]]):
            assert outcome.receipt is not None and outcome.receipt.culprit
        assert time.monotonic() - began < 4.9


def _gone(job: Job) -> RanksGone:
    with pytest.raises(RanksGone) as caught:
        give(job)
    return caught.value


def test_reduce__an_estimate_where_that_is_preferred() -> None:
    with coded(Plan(4, stragglers=1), exact=False) as (_, jobs):
        (array, receipt), _ = at_once(*[lambda job=job: give(job, deadline=0.2) for job in jobs[:2]])
        half = (4.0 ** np.arange(SIZE // 2)).sum()
        assert array[0] == 2 * half, "the one group's sum stands for both"
        assert receipt.exact is False and receipt.status is ultima.Status.PARTIAL and receipt.residual == 2.0
        assert "not exact (residual 2)" in str(receipt)


def test_wait__behind_by_more_steps_than_are_kept() -> None:
    # Whoever is four steps ahead of a host waits for it, for a quarter of the time that the call has.
    with coded(Plan(2, stragglers=1), deadline="400ms") as (_, (ahead, late)):
        for step in range(8):
            give(ahead, step)
        for step in (5, 6, 7):
            assert late.coded().wait(step, out=np.zeros(2)).array[0] == whole(step)
        with pytest.raises(Behind, match="step 1: its result is not here; the job is past step 7") as caught:
            late.coded().wait(1)
        assert (caught.value.step, caught.value.newest, caught.value.go_on_with) == (1, 7, 8)
        assert str(caught.value).endswith("take the model from another rank, and go on with step 8")
        with pytest.raises(Behind):
            give(late, 0)
        array, _ = give(late, 8)
        assert array[0] == whole(8), "it goes on with the next step"


def test_coded__what_is_refused_by_name() -> None:
    plan = Plan(4, stragglers=1)
    with coded(plan) as (_, jobs):
        mine = jobs[0].coded()
        with pytest.raises(InvalidArgument, match="plan"):
            jobs[0].coded(Plan(4, stragglers=3))
        for step in (-1, 2**32, 1.5, True, None):
            with pytest.raises(InvalidArgument, match="step"):
                mine.reduce(np.zeros(2), step)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="float32 or float64"):
            mine.reduce(np.zeros(2, np.int32), 0)
        with pytest.raises(InvalidArgument, match="out"):
            mine.wait(0)
        with pytest.raises(Unsupported, match="coded"):
            jobs[0].allreduce(np.zeros(2))
        with pytest.raises(Unsupported, match="coded"):
            jobs[0].partial()
        give_both = at_once(lambda: give(jobs[0]), lambda: give(jobs[2]))
        assert len(give_both) == 2
        with pytest.raises(InvalidArgument, match="2 elements of float64, as in the calls before"):
            mine.reduce(np.zeros(3), 1)
    with FakeDaemon(1) as daemon, daemon.connect(0) as job, pytest.raises(InvalidArgument, match="policy"):
        job.coded()


@pytest.mark.parametrize("first", [np.ones(3), np.ones(2, np.float32), np.ones(1)], ids=["long", "float32", "short"])
def test_reduce__another_array_after_one_that_got_no_result(first: Any) -> None:
    """Nobody else gave, so the step failed, and nothing is known of the vector yet. What was sent of the next one was
    once as long as the first, or its numbers in the first one's type."""
    plan = Plan(4, stragglers=1)
    with coded(plan) as (_, jobs):
        with pytest.raises((DeadlineExceeded, RanksGone)):
            jobs[0].coded().reduce(first, 0, deadline=0.05)
        for array, receipt in at_once(*[lambda job=job: give(job) for job in jobs]):
            assert array.tolist() == [whole(), 0.0] and receipt.exact


def test_coded__ranks_that_name_other_plans() -> None:
    one, other = Options(**Plan(4, 1).options()), Options(**Plan(4, 3).options())
    with FakeDaemon(4) as daemon, daemon.connect(0, options=one), pytest.raises(ultima.Desync, match="stragglers"):
        daemon.connect(1, options=other)


@pytest.mark.parametrize("plan, exact, lacks", [
    (Plan(20, stragglers=1, children=4), False, "has no estimates in trees, exact no"),
    (Plan(5, stragglers=2), False, "has no estimates with linear codes, exact no"),
])  # fmt: skip
def test_coded__what_the_engine_of_this_release_lacks(plan: Plan, exact: bool, lacks: str) -> None:
    with pytest.raises(Unsupported, match=f"the engine of this release {lacks}"):
        ultima.connect("job", 0, plan.hosts, "/nowhere/ultima.sock", options=Options(**plan.options(exact)), timeout=1)


def test_frozen_daemon__is_no_result_and_the_step_can_be_given_again() -> None:
    """A rank's own part is no sum. However often it asks meanwhile, the daemon gets nothing more."""
    with coded(Plan(2, stragglers=0)) as (daemon, jobs):
        daemon.freeze()
        for _ in range(2):
            with pytest.raises(ultima.DaemonLost, match="did not hang up"):
                give(jobs[0], deadline="20ms")
            assert len(jobs[0]._connection.session._flying) == 1
        daemon.thaw()
        for array, receipt in at_once(*[lambda job=job: give(job) for job in jobs]):
            assert receipt.exact and array[0] == whole()
