# SPDX-License-Identifier: Apache-2.0
"""What callers may rely on, told once and run twice: on real daemons, and on the fake of `ultima.testing`.

The fake drives the C core without sockets and without the daemon's Python. Whoever tests a training step with it must
meet what production has: the same values, receipts, exceptions and words. A scenario sees only jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, everywhere, ranks
from ultima import (
    DeadlineExceeded,
    Desync,
    Gift,
    InvalidArgument,
    Job,
    Options,
    RanksGone,
    ResourceExhausted,
    Status,
)
from ultima.base.words import OPS
from ultima.testing import FakeDaemon

WORLD = 3
Open = Callable[..., AbstractContextManager[list[Job]]]


@contextmanager
def fake_ranks(**options: Any) -> Iterator[list[Job]]:
    everything = {"timeout": 30, "deadline": 20, "arena": "16M", **options}
    with FakeDaemon(WORLD) as daemon:
        jobs = everywhere(range(WORLD), lambda rank, _: daemon.connect(rank, **everything))
        try:
            yield jobs
        finally:
            for job in jobs:
                job.close()


@pytest.fixture(params=["fake", "real"])
def jobs_of(request: pytest.FixtureRequest) -> Open:
    """Opens a job with a rank on each of three hosts."""
    if request.param == "fake":
        return fake_ranks
    hosts: Hosts = request.getfixturevalue("four")[:WORLD]
    return lambda **options: ranks(hosts, **options)


def values(rank: int, count: int = 1000, dtype: str = "float32") -> Any:
    return (np.arange(count) % 17 + rank).astype(dtype)


def on_all(jobs: list[Job], call: Callable[[Job], Any]) -> list[Any]:
    """The results of all ranks, raising what one of them raised."""
    answers = everywhere(jobs, lambda rank, job: call(job))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


# ---- whole jobs ----


@pytest.mark.parametrize(
    ("op", "dtype"),
    [*((op, "float32") for op in OPS), ("avg", "float16"), ("sum", "float64"), ("sum", "int32"), ("prod", "int64")],
)
def test_allreduce__values_and_receipt(jobs_of: Open, op: str, dtype: str) -> None:
    with jobs_of() as jobs:
        arrays = [values(job.rank, 999, dtype) for job in jobs]
        stack = np.stack([values(rank, 999, dtype) for rank in range(WORLD)]).astype("float64")
        wanted = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max, "prod": np.prod}[op](stack, axis=0)
        receipts = on_all(jobs, lambda job: job.allreduce(arrays[job.rank], op))
        for array, receipt in zip(arrays, receipts, strict=True):
            np.testing.assert_allclose(array.astype("float64"), wanted, rtol=2e-3 if dtype == "float16" else 1e-6)
            assert receipt.status is Status.COMPLETE and receipt.complete and receipt.op_seq == 0
            assert (
                receipt.contributors == (0, 1, 2) and receipt.partly == receipt.missing_ranks == receipt.culprit == ()
            )
            assert receipt.weight_min == receipt.world_size == WORLD and receipt.owners == (0, 1, 2)
            assert receipt.bytes_expected == receipt.bytes_used > 0 == receipt.bytes_missing
            assert [peer.ranks for peer in receipt.peers] == [(0,), (1,), (2,)]
            assert (receipt.policy, receipt.gift, receipt.eta, receipt.included) == ("none", None, 0, 0)
        assert len({receipt.digest for receipt in receipts}) == 1 and receipts[0].digest != 0


def test_allreduce__each_side_expects_the_same_bytes(jobs_of: Open) -> None:
    """A third of a bucket in each stage from each of the others; whoever plans by it plans alike on the fake."""
    with jobs_of() as jobs:
        receipts = on_all(jobs, lambda job: job.allreduce(values(job.rank, 900)))
        for job, receipt in zip(jobs, receipts, strict=True):
            rows = [(1200, 1200) if host != job.host_index else (0, 0) for host in range(WORLD)]
            assert [peer.expected_bytes for peer in receipt.peers] == rows


def test_allreduce__without_one_rank(jobs_of: Open) -> None:
    """It never calls: bounded ops end at their deadline with what there is, reliable ones raise."""
    with jobs_of() as jobs:
        callers = jobs[:2]
        arrays = [values(job.rank) for job in callers]
        began = time.monotonic()
        receipts = on_all(callers, lambda job: job.allreduce(arrays[job.rank], deadline="700ms"))
        assert time.monotonic() - began >= 0.5
        for receipt in receipts:
            assert receipt.status is Status.PARTIAL and 2 in receipt.missing_ranks and receipt.culprit == (2,)
            assert 0 < receipt.bytes_missing < receipt.bytes_expected
            assert receipt.bytes_used + receipt.bytes_missing == receipt.bytes_expected
            assert receipt.weight_min == 2 or receipt.partly
        answers = everywhere(callers, lambda rank, job: job.allreduce(values(rank), mode="reliable", deadline="700ms"))
        assert [type(answer) for answer in answers] == [DeadlineExceeded] * 2
        for answer in answers:
            assert answer.receipt is not None and answer.receipt.status is Status.FAILED
            assert answer.receipt.culprit == (2,)


def test_allreduce__alone(jobs_of: Open) -> None:
    with jobs_of() as jobs:
        mine = values(1)
        receipt = jobs[1].allreduce(mine, deadline="500ms")
        assert receipt.status is Status.INSUFFICIENT and (mine == values(1)).all()
        assert 1 in receipt.contributors and receipt.missing_ranks == (0, 2)


def test_allreduce__a_rank_that_left(jobs_of: Open) -> None:
    """Known to be gone: nobody waits for its deadline."""
    with jobs_of() as jobs:
        on_all(jobs, lambda job: job.allreduce(values(job.rank)))
        jobs[2].close()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            receipts = on_all(jobs[:2], lambda job: job.allreduce(values(job.rank), deadline="10s"))
            if all(receipt.peers[2].gone == (2,) for receipt in receipts):
                break
        for receipt in receipts:
            assert receipt.status is Status.PARTIAL and 2 in receipt.missing_ranks
            assert receipt.peers[2].gone == (2,) and receipt.elapsed_s < 5
        for how in ({"mode": "reliable"}, {"op": "max"}):  # that one is reliable by itself
            started = time.monotonic()
            answers = everywhere(
                jobs[:2], lambda rank, job, how=how: job.allreduce(values(rank), deadline="10s", **how)
            )
            assert [type(answer) for answer in answers] == [RanksGone] * 2, answers
            assert [answer.ranks for answer in answers] == [(2,)] * 2 and time.monotonic() - started < 5


def test_allreduce__a_rank_whose_others_are_through(jobs_of: Open) -> None:
    """They sum up their shards at their deadline, and take nothing more: the rank that comes later has its own values
    there, and in reliable mode an exception."""
    with jobs_of() as jobs:
        on_all(jobs[:2], lambda job: job.allreduce(values(job.rank), deadline="100ms"))
        late = values(2)
        receipt = jobs[2].allreduce(late, deadline="10s")
        assert not receipt.complete and receipt.op_seq == 0 and receipt.elapsed_s < 5
        assert 2 in (*receipt.contributors, *receipt.partly)
        answers = everywhere(jobs[:2], lambda rank, job: job.allreduce(values(rank), mode="reliable", deadline="100ms"))
        assert [type(answer) for answer in answers] == [DeadlineExceeded] * 2
        with pytest.raises(RanksGone):
            jobs[2].allreduce(values(2), mode="reliable", deadline="10s")
        assert all(receipt.complete for receipt in on_all(jobs, lambda job: job.allreduce(values(job.rank))))


CALLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("dtype", {"array": values(0)}, {"array": values(1, dtype="float64")}),
    ("op", {"op": "sum"}, {"op": "avg"}),
    ("count", {"array": values(0, 10)}, {"array": values(1, 11)}),
    ("mode", {"mode": "bounded"}, {"mode": "reliable"}),
    ("agree", {"agree": True}, {"agree": False}),
]


@pytest.mark.parametrize(("field", "here", "there"), CALLS, ids=[field for field, _, _ in CALLS])
def test_desync__names_what_differs(jobs_of: Open, field: str, here: dict[str, Any], there: dict[str, Any]) -> None:
    with jobs_of() as jobs:

        def call(rank: int, job: Job) -> Any:
            return job.allreduce(**({"array": values(rank), "deadline": "10s"} | (there if rank == 2 else here)))

        answers = everywhere(jobs, call)
        assert type(answers[2]) is Desync and answers[2].field == field, answers
        told = [answer for answer in answers[:2] if type(answer) is Desync]
        assert told, "one of the others at least hears it, too"
        for answer in told:
            assert (answer.field, answer.mine, answer.theirs) == (field, answers[2].theirs, answers[2].mine)
        for answer in answers[:2]:
            assert isinstance(answer, ultima.UltimaError), answer


def test_agree__not_where_results_are_forwarded(jobs_of: Open) -> None:
    with jobs_of(options=Options(algorithm="ring")) as jobs:
        for answer in everywhere(jobs, lambda rank, job: job.allreduce(values(rank), agree=True, deadline="10s")):
            assert type(answer) is InvalidArgument, answer


REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("op", {"op": "mean"}),
    ("mode", {"mode": "quick"}),
    ("mode", {"op": "max", "mode": "bounded"}),
    ("agree", {"agree": True, "mode": "best_effort"}),
    ("deadline", {"deadline": -1}),
    ("out", {"out": np.zeros(3, np.float32)}),
]


@pytest.mark.parametrize(("field", "said"), REFUSALS, ids=str)
def test_refusals__use_no_number(jobs_of: Open, field: str, said: dict[str, Any]) -> None:
    with jobs_of(bucket_bytes_max="64K") as jobs:
        with pytest.raises(InvalidArgument) as caught:
            jobs[0].allreduce(**({"array": values(0)} | said))
        assert caught.value.field == field
        with pytest.raises(ResourceExhausted):
            jobs[0].allreduce(np.zeros(1 << 15, np.float32))
        receipts = on_all(jobs, lambda job: job.allreduce(values(job.rank)))
        assert {receipt.op_seq for receipt in receipts} == {0}


def test_collectives__move_what_they_say(jobs_of: Open) -> None:
    with jobs_of() as jobs:
        assert all(job.collectives == jobs[0].collectives for job in jobs)
        assert {"broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"} <= jobs[0].collectives
        held = [values(job.rank, 90) for job in jobs]
        receipts = on_all(jobs, lambda job: job.broadcast(held[job.rank], root=1))
        assert all((each == values(1, 90)).all() for each in held)
        assert all(receipt.complete and receipt.contributors == (1,) for receipt in receipts)
        out = [np.zeros(90 * WORLD, np.float32) for _ in jobs]
        on_all(jobs, lambda job: job.all_gather(values(job.rank, 90), out[job.rank]))
        assert all((each == np.concatenate([values(rank, 90) for rank in range(WORLD)])).all() for each in out)
        part = [np.zeros(30, np.float32) for _ in jobs]
        on_all(jobs, lambda job: job.reduce_scatter(values(job.rank, 90), part[job.rank], "sum"))
        total = sum(values(rank, 90) for rank in range(WORLD))
        assert all((part[rank] == total[30 * rank : 30 * rank + 30]).all() for rank in range(WORLD))
        turned = [np.zeros(90, np.float32) for _ in jobs]
        on_all(jobs, lambda job: job.all_to_all(values(job.rank, 90), turned[job.rank]))
        for rank in range(WORLD):
            wanted = np.concatenate([values(other, 90)[30 * rank : 30 * rank + 30] for other in range(WORLD)])
            assert (turned[rank] == wanted).all()
        assert all(receipt.complete for receipt in on_all(jobs, lambda job: job.barrier(note=7)))
        answers = everywhere(jobs, lambda rank, job: job.barrier(note=rank // 2, deadline="10s"))
        assert (
            type(answers[2]) is Desync and answers[2].field == "note" and (answers[2].mine, answers[2].theirs) == (1, 0)
        )


def test_options__are_told_in_words(jobs_of: Open) -> None:
    with jobs_of(options=Options(incast=2, t_b="300ms", early_percent=20)) as jobs:
        told = jobs[0].options
        assert {job.options == told for job in jobs} == {True}
        assert (told["incast"], told["t_b"], told["early_percent"], told["policy"]) == ("2", "300ms", "20", "none")
        assert set(told) == set(Options.__dataclass_fields__)


# ---- jobs with a policy ----


def test_policy_full__everybody_is_in_every_op(jobs_of: Open) -> None:
    with jobs_of(options=Options(policy="full")) as jobs:
        for step in range(3):
            arrays = [values(job.rank) for job in jobs]
            receipts = on_all(jobs, lambda job, arrays=arrays: job.allreduce(arrays[job.rank]))  # type: ignore[misc]
            for array, receipt in zip(arrays, receipts, strict=True):
                np.testing.assert_allclose(array, np.mean([values(rank) for rank in range(WORLD)], axis=0), rtol=1e-6)
                assert receipt.op_seq == step and receipt.complete and receipt.policy == "full"
                assert receipt.fresh == (0, 1, 2) and receipt.stale == receipt.initiator == ()
                assert (receipt.included, receipt.gift, receipt.kept, receipt.eta) == (3, Gift.FRESH, False, 4)


def test_policy_solo__one_rank_is_enough(jobs_of: Open) -> None:
    """The others have given nothing, and find the result without having called."""
    with jobs_of(options=Options(policy="solo", eta=2)) as jobs:
        mine = values(1)
        receipt = jobs[1].partial(divisor="contributors").allreduce(mine)
        assert receipt.complete and (mine == values(1)).all()
        assert (receipt.fresh, receipt.stale, receipt.included) == ((1,), (), 1)
        assert (receipt.gift, receipt.initiator, receipt.eta) == (Gift.FRESH, (1,), 2)
        assert receipt.owners == (0, 1, 2) and receipt.waited_s >= 0
        out = np.zeros(1000, np.float32)
        found = jobs[2].partial(divisor="contributors").wait(out=out, deadline="10s")
        assert found is not None and (out == values(1)).all()
        assert (found.receipt.op_seq, found.receipt.gift, found.receipt.fresh) == (0, Gift.NULL, (1,))
        assert jobs[2].partial().poll(out=out) is None, "it has had it"


def test_policy_solo__divisor_is_the_world_by_default(jobs_of: Open) -> None:
    with jobs_of(options=Options(policy="solo")) as jobs:
        mine = values(0)
        assert jobs[0].allreduce(mine).included == 1
        np.testing.assert_allclose(mine, values(0) / WORLD, rtol=1e-6)
        whole = values(0)
        jobs[0].allreduce(whole, "sum")
        assert (whole == values(0)).all()


def test_policy_solo__what_came_too_late_is_in_the_next(jobs_of: Open) -> None:
    with jobs_of(options=Options(policy="solo")) as jobs:
        late, first = jobs[2].partial(divisor="none"), jobs[0].partial(divisor="none")
        first.allreduce(values(0), step=0)
        until(lambda: late.poll(out=np.zeros(1000, np.float32)) is not None)
        assert late.give(values(2), step=0) == 1, "op 0 is over: it is for op 1"
        out = np.zeros(1000, np.float32)
        found = first.wait(0, out=out, deadline="10s")
        assert found is not None and found.receipt.op_seq == 1 and (out == values(2)).all()
        assert 2 in (*found.receipt.fresh, *found.receipt.stale) and found.receipt.included == 1


def test_sticky__is_in_every_op_until_something_else_is_given(jobs_of: Open) -> None:
    with jobs_of(options=Options(policy="solo")) as jobs:
        model, other = jobs[0].partial(divisor="none"), jobs[1].partial(divisor="none")
        first = model.give(values(0), sticky=True)
        until(lambda: other.poll(out=np.zeros(1000, np.float32)) is not None)
        for step in (first + 1, first + 2):
            mine = values(1)
            receipt = other.allreduce(mine, step=step)
            assert receipt.op_seq >= step and (mine == values(0) + values(1)).all()
            assert set(receipt.fresh) | set(receipt.stale) == {0, 1}


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.005)
