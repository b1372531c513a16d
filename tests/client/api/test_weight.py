# SPDX-License-Identifier: Apache-2.0
"""Weighted averages of a Job on the fake daemon, which has the real core: who is in them, and with what weight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import ultima
from tests.quantised import drawn
from tests.quantised import reduced as quantised
from ultima.testing import FakeDaemon
from ultima.testing.lan import PACKET_BYTES

SIZE = 5003
"""Elements: several packets of each shard, and no multiple of anything."""


@contextmanager
def jobs_of(ranks: int, *, ranks_per_host: int = 1, **options: Any) -> Iterator[tuple[FakeDaemon, list[ultima.Job]]]:
    with FakeDaemon(ranks, ranks_per_host=ranks_per_host) as daemon, ExitStack() as stack:
        yield daemon, [stack.enter_context(daemon.connect(rank, arena="4M", **options)) for rank in range(ranks)]


def given(rank: int, dtype: Any = np.float32) -> Any:
    """Whole numbers of which every weighted sum of a test is exact, and each subset's another one."""
    return (np.arange(SIZE) % 13 + 64 * 2**rank).astype(dtype)


def reduced(
    jobs: list[ultima.Job], arrays: list[Any], weights: list[Any], **said: Any
) -> tuple[list[Any], list[ultima.Receipt]]:
    handles = [
        job.allreduce_async(array, weight=weight, **said)
        for job, array, weight in zip(jobs, arrays, weights, strict=True)
    ]
    return arrays, [handle.wait() for handle in handles]


def mean(arrays: list[Any], weights: list[int], dtype: Any = np.float32) -> Any:
    total = sum(weight * array.astype(np.float64) for weight, array in zip(weights, arrays, strict=True) if weight)
    return (total / sum(weights)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    "options", [{}, {"algorithm": "ps"}, {"deterministic": True}], ids=["tar", "ps", "deterministic"]
)
def test_result__is_the_weighted_mean_on_all_ranks(dtype: Any, options: dict[str, Any]) -> None:
    weights = [3, 0, 1000]
    with jobs_of(3, options=ultima.Options(**options)) as (_, jobs):
        arrays, receipts = reduced(jobs, [given(rank, dtype) for rank in range(3)], weights)
    wanted = mean([given(rank, dtype) for rank in range(3)], weights, dtype)
    for array, receipt in zip(arrays, receipts, strict=True):
        np.testing.assert_array_equal(array, wanted)
        assert receipt.complete and receipt.weight_in == receipt.weight_due == 1003
        assert [row.weight_given for row in receipt.peers] == weights


def test_result__of_halves_does_not_overflow_and_nan_without_a_weight_is_not_in_it() -> None:
    arrays = [np.full(SIZE, 60000, np.float16), np.full(SIZE, np.nan, np.float16)]
    with jobs_of(2) as (_, jobs):
        _, receipts = reduced(jobs, arrays, [2**24 - 1, 0])
    for array, receipt in zip(arrays, receipts, strict=True):
        np.testing.assert_array_equal(array, np.full(SIZE, 60000, np.float16))
        assert receipt.nonfinite == 0


def test_result__of_ranks_that_share_hosts() -> None:
    weights = [5, 1, 0, 7, 2]
    with jobs_of(5, ranks_per_host=2) as (_, jobs):
        for _ in range(5):  # all places of an op
            arrays, receipts = reduced(jobs, [given(rank) for rank in range(5)], weights)
    wanted = mean([given(rank) for rank in range(5)], weights)
    for array, receipt in zip(arrays, receipts, strict=True):
        np.testing.assert_array_equal(array, arrays[0])
        np.testing.assert_allclose(array, wanted, rtol=1e-6)  # a host's mean is rounded before it is sent
        assert [row.weight_given for row in receipt.peers] == [6, 7, 2]


def test_result__where_nothing_weighs_anything_is_zero() -> None:
    for ranks in (1, 3):
        with jobs_of(ranks) as (_, jobs):
            arrays, receipts = reduced(jobs, [given(rank) for rank in range(ranks)], [0] * ranks)
        for array, receipt in zip(arrays, receipts, strict=True):
            assert not array.any() and receipt.complete and receipt.weight_due == 0


def test_result__of_one_rank_alone_is_its_own() -> None:
    with jobs_of(1) as (_, jobs):
        out = np.empty(SIZE, np.float32)
        receipt = jobs[0].allreduce(given(0), out=out, weight=9)
    np.testing.assert_array_equal(out, given(0))
    assert receipt.weight_in == receipt.weight_due == 9


@pytest.mark.check
def test_result__what_lacks_a_rank_is_the_mean_of_the_others() -> None:
    weights = [3, 5, 7]
    with jobs_of(3) as (daemon, jobs):
        reduced(jobs, [given(rank) for rank in range(3)], weights)
        daemon.leave_out(1)
        arrays = [given(0), given(2)]
        reduced_by = [
            job.allreduce_async(array, weight=weight, deadline=5)
            for job, array, weight in zip((jobs[0], jobs[2]), arrays, (3, 7), strict=True)
        ]
        receipts = [handle.wait() for handle in reduced_by]
    wanted = mean([given(0), given(2)], [3, 7])
    for rank, array, receipt in zip((0, 2), arrays, receipts, strict=True):
        both, alone = array == wanted, array == given(rank)
        assert np.all(both | alone) and 0.6 < np.mean(both) < 0.7, "what rank 1 would have summed is the rank's own"
        assert receipt.weight_due == 10 and [row.weight_given for row in receipt.peers] == [3, 0, 7]
        assert receipt.weight_in == weights[rank] and receipt.partly


@pytest.mark.parametrize("hadamard", ["off", "on"])
def test_result__is_whole_where_packets_and_records_are_lost(hadamard: str) -> None:
    weights, size = [2, 3, 11], 60_000
    with jobs_of(3, options=ultima.Options(hadamard=hadamard)) as (daemon, jobs):
        daemon.lose(0.3)
        for _ in range(6):
            arrays, receipts = reduced(
                jobs, [np.full(size, 2.0**rank, np.float32) for rank in range(3)], weights, mode="reliable"
            )
            for array in arrays:
                np.testing.assert_allclose(array, np.full(size, 3.25, np.float32), rtol=1e-5 if hadamard == "on" else 0)
            assert [receipt.weight_in for receipt in receipts] == [16, 16, 16]


@pytest.mark.parametrize(("wire", "answer"), [("int16", None), ("int8", None), ("int4", "int8")])
def test_wire__rounds_what_is_weighed_to_the_bit(wire: str, answer: str | None) -> None:
    weights, drawings = [300, 0, 7], [drawn(rank, 9001) for rank in range(3)]
    drawings[1][5] = np.nan
    weighed = [
        np.float32(weight) * (x if weight else 0 * drawings[0]) for weight, x in zip(weights, drawings, strict=True)
    ]
    with jobs_of(3) as (_, jobs):
        for nearest in (False, True):
            arrays, receipts = reduced(
                jobs,
                [x.copy() for x in drawings],
                weights,
                wire=wire,
                answer=answer,
                rounding="nearest" if nearest else "random",
            )
            seq = receipts[0].op_seq
            wanted = quantised(
                weighed, "avg", wire, answer, seq=seq, payload=PACKET_BYTES - 32, nearest=nearest, ranks=307
            )
            for array, receipt in zip(arrays, receipts, strict=True):
                np.testing.assert_array_equal(array, wanted)
                assert receipt.complete and receipt.weight_in == 307 and receipt.nonfinite == 0
            exact = np.add.reduce(weighed, dtype=np.float64) / 307
            told = np.sqrt(sum((w * r.error_given) ** 2 for w, r in zip(weights, receipts, strict=True))) / 307
            off = np.sqrt(np.mean((arrays[0] - exact) ** 2))
            assert 0.7 < off / np.hypot(told, receipts[0].error_answer) < 1.4


def test_wire__feedback_is_of_what_was_given_whatever_it_weighs() -> None:
    drawings = [drawn(rank, 5000) for rank in range(2)]
    with jobs_of(2) as (_, jobs):
        kept = [job.empty(5000) for job in jobs]
        for array in kept:
            array[:] = 0
        lost: list[float] = []
        for step in range(6):
            before = [array.copy() for array in kept]
            handles = [
                job.allreduce_async(x.copy(), weight=weight, wire="int4", answer="int8", feedback=left)
                for job, x, weight, left in zip(jobs, drawings, (50, 0 if step == 3 else 3), kept, strict=True)
            ]
            for handle in handles:
                handle.wait()
            if step == 3:
                np.testing.assert_array_equal(kept[1], before[1])
            lost.append(max(float(np.abs(array).max()) for array in kept))
        assert 0 < max(lost) < 2 * lost[0], "in units of what was given, and it does not grow"


def test_wire__several_ranks_of_a_host() -> None:
    drawings, weights = [drawn(rank, 3000) for rank in range(4)], [1, 5, 2, 0]
    with jobs_of(4, ranks_per_host=2) as (_, jobs):
        arrays, receipts = reduced(jobs, [x.copy() for x in drawings], weights, wire="int16")
    wanted = sum(weight * x.astype(np.float64) for weight, x in zip(weights, drawings, strict=True)) / 8
    for array, receipt in zip(arrays, receipts, strict=True):
        np.testing.assert_array_equal(array, arrays[0])
        assert np.sqrt(np.mean((array - wanted) ** 2)) < 1e-3 and receipt.weight_due == 8


def test_desync__one_rank_names_no_weight() -> None:
    with jobs_of(2) as (_, jobs):
        handles = [job.allreduce_async(given(0), weight=weight) for job, weight in zip(jobs, (4, None), strict=True)]
        for handle in handles:
            with pytest.raises(ultima.Desync) as caught:
                handle.wait()
            assert caught.value.field == "weight" and "none" in str(caught.value)


@pytest.mark.parametrize(
    ("said", "field", "text"),
    [
        ({"weight": -1}, "weight", "a whole number from 0 to 16777215"),
        ({"weight": 2**24}, "weight", "a whole number from 0 to 16777215"),
        ({"weight": 1.5}, "weight", "a whole number from 0 to 16777215"),
        ({"weight": True}, "weight", "a whole number from 0 to 16777215"),
        ({"weight": 1, "op": "sum"}, "op", "'avg' with a weight"),
        ({"weight": 1, "array": np.ones(8, np.int64)}, "dtype", "one of floats with a weight"),
    ],
)
def test_bad_input__is_named_before_anything_is_sent(said: dict[str, Any], field: str, text: str) -> None:
    with jobs_of(1) as (_, jobs):
        with pytest.raises(ultima.InvalidArgument, match=text) as caught:
            jobs[0].allreduce(said.pop("array", np.ones(8, np.float32)), **said)
        assert caught.value.field == field
        assert jobs[0].allreduce(np.ones(8, np.float32)).op_seq == 0


@pytest.mark.parametrize("algorithm", ["ring", "bcube"])
def test_algorithm__that_forwards_sums_is_refused_by_name(algorithm: str) -> None:
    with (
        jobs_of(1, options=ultima.Options(algorithm=algorithm)) as (_, jobs),
        pytest.raises(ultima.Unsupported, match=f"this job has '{algorithm}'"),
    ):
        jobs[0].allreduce(np.ones(8, np.float32), weight=1)
