# SPDX-License-Identifier: Apache-2.0
"""The sparse allreduce of a Job on the fake daemon: what it takes, what it gives, and what it refuses."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.api.slots import at_once
from tests.e2e.test_sparse_reduce import SIZE, dense, entries
from tests.seeds import seeds
from ultima.base.sparse_form import Floats, SparseCall, float8_scale, rounded
from ultima.base.words import FORMS
from ultima.testing import FakeDaemon


@contextmanager
def jobs_of(ranks: int = 2, **options: Any) -> Iterator[list[ultima.Job]]:
    with FakeDaemon(ranks) as daemon, ExitStack() as stack:
        yield [stack.enter_context(daemon.connect(rank, arena="256K", **options)) for rank in range(ranks)]


def test_sum_and_average__over_ranks_with_other_entries() -> None:
    with jobs_of(3) as jobs:
        outs = [np.full(10, 7, np.float32), jobs[1].empty(10), np.full(10, 7, np.float32)]
        for op, divisor in (("sum", 1), ("avg", 3)):
            handles = [
                job.allreduce_sparse_async(indices, values, out, op=op, hint=2)
                for job, indices, values, out in zip(
                    jobs,
                    ([1, 4], np.array([4, 9], np.int64), np.empty(0, np.uint32)),
                    ([3.0, 6.0], [6.0, 9.0], []),
                    outs,
                    strict=True,
                )
                for indices, values in [(np.asarray(indices, np.uint32), np.asarray(values, np.float32))]
            ]
            receipts = [handle.wait() for handle in handles]
            expected = np.zeros(10, np.float32)
            expected[[1, 4, 9]] = np.array([3, 12, 9]) / divisor
            for receipt, out, handle in zip(receipts, outs, handles, strict=True):
                assert out.tolist() == expected.tolist()
                assert receipt.complete and receipt.bytes_expected == receipt.bytes_used + receipt.bytes_missing
                assert handle.result is out and handle.nbytes == 40


def test_group__indices_name_rows() -> None:
    with jobs_of(2) as jobs:
        outs = [np.empty((4, 3), np.float32) for _ in jobs]
        row = np.arange(3, dtype=np.float32)
        handles = [
            job.allreduce_sparse_async(np.array([at, 3]), np.stack([row, row + 1]), out, op="sum", group=3)
            for job, out, at in zip(jobs, outs, (0, 2), strict=True)
        ]
        assert all(handle.wait().complete for handle in handles)
        zero = np.zeros(3)
        assert outs[0].tolist() == outs[1].tolist() == np.stack([row, zero, row, 2 * row + 2]).tolist()


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("form", FORMS)
def test_form__what_arrives_is_what_rounded_says(form: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(200) * 10.0 ** rng.integers(-6, 4)).astype(np.float32)
    with jobs_of(1) as (job,):
        out = np.empty(400, np.float32)
        assert job.allreduce_sparse(np.arange(0, 400, 2), values, out, op="sum", form=form).complete
        assert out[::2].tolist() == rounded(values, form).tolist()
        assert not out[1::2].any()
    scale = np.abs(values) if form != "float8" else np.maximum(np.abs(values), 2.0**-6 * float8_scale(values))
    bound = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8": 2.0**-4}[form]
    assert (np.abs(rounded(values, form) - values) <= bound * scale + (2.0**-24 if form == "float16" else 0)).all()


def test_float8__is_e4m3_with_a_scale_of_two() -> None:
    exact = np.array([448.0, -416, 1, 1.125, 2.0**-6, 2.0**-9, 3 * 2.0**-9, 0, 240], np.float32)
    assert float8_scale(exact) == 1 and rounded(exact, "float8").tolist() == exact.tolist()
    for power in (-100, -3, 9, 60):
        moved = exact * np.float32(2.0**power)
        assert float8_scale(moved) == 2.0**power and rounded(moved, "float8").tolist() == moved.tolist()
    ties = np.array([448, 17, 19, 1.0625, 1.1875, 2.0**-10, 3 * 2.0**-10], np.float32)
    assert rounded(ties, "float8").tolist() == [448, 16, 20, 1, 1.25, 0, 2.0**-8]
    odd = rounded(np.array([np.inf, np.nan, 1], np.float32), "float8")
    assert np.isnan(odd[:2]).all() and odd[2] == 1
    assert float8_scale(np.array([448.1], np.float32)) == 2
    assert float8_scale(np.zeros(3, np.float32)) == 2.0**-117


def test_bad_input__is_named_before_anything_is_sent() -> None:
    with jobs_of(1) as (job,):
        out = np.zeros(12, np.float32)

        def call(indices: Any = (0, 3), values: Any = (1, 2), into: Any = out, **named: Any) -> None:
            job.allreduce_sparse(np.asarray(indices), np.asarray(values, np.float32), into, **named)

        rows: list[tuple[str, dict[str, Any]]] = [
            ("indices.*3 after 3 at place 1.*ascending", {"indices": (3, 3)}),
            ("indices.*2 after 3 at place 1", {"indices": (3, 2)}),
            ("indices.*12.*0 to 11", {"indices": (3, 12)}),
            ("indices.*-1.*0 to 11", {"indices": (-1, 2)}),
            ("indices.*2 dimensions", {"indices": ((1, 2),)}),
            ("indices.*float64", {"indices": (1.0, 2.0)}),
            ("indices.*13 entries.*12", {"indices": range(13), "values": range(13)}),
            ("values.*3 elements.*2: 1 for each", {"values": (1, 2, 3)}),
            ("values.*2 elements.*8: 4 for each", {"indices": (0, 1), "group": 4}),
            ("out.*multiple of group, 5", {"group": 5}),
            ("out.*float64", {"into": np.zeros(12)}),
            ("op.*max.*avg, sum", {"op": "max"}),
            ("form.*int4.*float32, float16, bfloat16, float8", {"form": "int4"}),
            ("down.*int4.*None or one of int8", {"down": "int4"}),
            ("group.*257.*1 to 256", {"group": 257}),
            ("group.*True", {"group": True}),
            ("hint.*-1.*0 to 4294967295", {"hint": -1}),
            ("mode.*fast", {"mode": "fast"}),
            ("agree.*best_effort", {"mode": "best_effort", "agree": True}),
        ]
        for words, named in rows:
            with pytest.raises(ultima.InvalidArgument, match=words):
                call(**named)
        with pytest.raises(ultima.InvalidArgument, match=r"values.*float64"):
            job.allreduce_sparse(np.arange(2), np.zeros(2), out)
        assert job.allreduce_sparse_async(np.arange(2), np.ones(2, np.float32), out).op_seq == 0, "none used a number"


@pytest.mark.parametrize(
    ("field", "mine", "theirs"),
    [("group", 1, 2), ("form", "float32", "float8"), ("hint", 5, 6), ("down", None, "int8")],
)
def test_desync__another_group_form_hint_or_down(field: str, mine: Any, theirs: Any) -> None:
    with jobs_of(2) as jobs:
        outs = [np.full(8, 9, np.float32) for _ in jobs]
        handles = [
            job.allreduce_sparse_async(np.arange(0), np.empty(0, np.float32), out, **{field: value})
            for job, out, value in zip(jobs, outs, (mine, theirs), strict=True)
        ]
        with pytest.raises(ultima.Desync) as raised:
            handles[0].wait()
        assert (raised.value.field, raised.value.mine, raised.value.theirs) == (field, mine, theirs)
        assert (outs[0] == 9).all()


def test_desync__a_dense_allreduce_meets_a_sparse_one() -> None:
    with jobs_of(2) as jobs:
        out = np.zeros(8, np.float32)
        handles = [jobs[0].allreduce_sparse_async(np.arange(1), out[:1], out), jobs[1].allreduce_async(out.copy())]
        for handle in handles:
            with pytest.raises(ultima.Desync) as raised:
                handle.wait()
            assert raised.value.field == "collective"


def test_down__a_daemon_that_does_not_know_it_is_named() -> None:
    with jobs_of(2) as jobs:
        out = np.zeros(4, np.float32)
        hosts = jobs[0]._connection.session.hosts
        jobs[0]._connection.session.hosts = (replace(hosts[0], wires=("int16", "int8")), *hosts[1:])
        with pytest.raises(ultima.Unsupported, match=r"down = 'int8': allowed: None; host 0 \(127.*knows int16, int8$"):
            jobs[0].allreduce_sparse(np.arange(1), out[:1], out, down="int8")


def test_jobs_without__a_policy_or_a_daemon_that_sums() -> None:
    out = np.zeros(4, np.float32)
    with FakeDaemon(1) as daemon:
        job = daemon.connect(0, options=ultima.Options(policy="solo"))
        with job, pytest.raises(ultima.Unsupported, match="policy"):
            job.allreduce_sparse(np.arange(1), out[:1], out)
    with jobs_of(1) as (job,):
        assert "allreduce_sparse" in job.collectives
        job._connection.session.sparse = False
        assert "allreduce_sparse" not in job.collectives
        with pytest.raises(ultima.Unsupported, match="tar"):
            job.allreduce_sparse(np.arange(1), out[:1], out)


def silent(rank: int, op_seq: int, mine: Any) -> None:
    """A rank that never calls."""


def test_missing_rank__average_over_those_that_arrived() -> None:
    with FakeDaemon(2, peer=silent) as daemon, daemon.connect(0, arena="64K") as job:
        out = np.zeros(4, np.float32)
        receipt = job.allreduce_sparse(np.array([2]), np.array([5], np.float32), out, deadline="50ms")
        assert not receipt.complete and out.tolist() == [0, 0, 5, 0]


def test_missing_rank__the_others_entries_and_ones_own() -> None:
    """The others' results hold each other's entries, divided by the two that came, and say what is missing."""
    with FakeDaemon(3, peer=silent) as daemon, ExitStack() as stack:
        jobs = [stack.enter_context(daemon.connect(rank)) for rank in range(2)]

        def train(job: ultima.Job) -> tuple[ultima.Receipt, Floats]:
            out = np.empty(SIZE, np.float32)
            return job.allreduce_sparse(*entries(job.rank, 0, 0.01), out, deadline="300ms"), out

        found = at_once(*(lambda job=job: train(job) for job in jobs))
        given = [entries(rank, 0, 0.01) for rank in range(2)]
        mean, own = dense(given, 1, "float32") / 2, [dense([each], 1, "float32") for each in given]
        for rank, (receipt, out) in enumerate(found):
            assert receipt.status is ultima.Status.PARTIAL and receipt.culprit == (2,)
            assert receipt.bytes_missing > 0
            assert ((out == mean) | (out == own[rank])).all(), "a mean of both, or what is our own where none came"
            assert (out[own[1 - rank] != 0] != 0).any()


def test_missing_host__holes_hold_the_average_of_the_ranks_that_are_here() -> None:
    """Where the other host's answers never come, as in the own shard; a hole that held their sum would be twice it."""
    with FakeDaemon(3, ranks_per_host=2, peer=silent) as daemon, ExitStack() as stack:
        jobs = [stack.enter_context(daemon.connect(rank)) for rank in range(2)]

        def train(job: ultima.Job) -> tuple[ultima.Receipt, Floats]:
            out = np.empty(SIZE, np.float32)
            return job.allreduce_sparse(*entries(job.rank, 0, 0.01), out, form="float16", deadline="300ms"), out

        found = at_once(*(lambda job=job: train(job) for job in jobs))
        mean = dense([entries(rank, 0, 0.01) for rank in range(2)], 1, "float16") / 2
        for receipt, out in found:
            assert receipt.status is ultima.Status.INSUFFICIENT and receipt.bytes_missing > 0
            np.testing.assert_array_equal(out, mean)


def test_call__scatters_what_its_bytes_say() -> None:
    call = SparseCall(2, 2, FORMS["float32"], 0)
    given = np.concatenate([np.array([0, 2], np.uint32).view(np.uint8), np.arange(4, dtype=np.float32).view(np.uint8)])
    out = np.full(6, 9, np.float32)
    call.scatter(given, out)
    assert (call.nbytes, out.tolist()) == (24, [0, 1, 0, 0, 2, 3])


def test_returned__what_the_result_lacks_and_all_of_an_op_that_failed() -> None:
    indices, values = np.array([1, 2], np.uint32), np.arange(6, dtype=np.float32)
    with jobs_of(2) as (one, _):
        out, back = np.empty(9, np.float32), list[Any]()
        with pytest.raises(ultima.DeadlineExceeded):
            one.allreduce_sparse(
                indices, values, out, group=3, mode="reliable", deadline=0.05, returns=lambda *found: back.append(found)
            )
        assert [each.tolist() for each in back[0]] == [[1, 2], values.tolist()] and len(back) == 1
    with jobs_of(2) as (one, two):
        handle = one.allreduce_sparse_async(indices, values, out, group=3)
        with pytest.raises(ultima.NotDone):
            _ = handle.returned
        two.allreduce_sparse(indices, values, np.empty(9, np.float32), group=3)
        assert handle.wait().complete and handle.returned[0].size == handle.returned[1].size == 0
        # As if the engine had said that the owner of the second row did not have it.
        handle._op.lacking = values * np.array([0, 0, 0, 1, 1, 1], np.float32)
        assert [each.tolist() for each in handle.returned] == [[2], [3, 4, 5]]
