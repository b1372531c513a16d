# SPDX-License-Identifier: Apache-2.0
"""What callers ask of a Job: values, places of memory, and refusals, on the fake daemon."""

import array
import math
import random
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

import ultima
from tests.client.conftest import Pair
from tests.oracle import reduce_arrays
from tests.seeds import seeds
from ultima import InvalidArgument, Job, ResourceExhausted, Status
from ultima.base.buffers import AnyArray
from ultima.base.reference import bfloat16_bits, bfloat16_values
from ultima.base.words import DTYPES, OPS, DType
from ultima.testing import FakeDaemon

MakeJob = Callable[..., Job]


def both(pair: Pair, first: Any, second: Any, op: str = "avg", **options: Any) -> None:
    """One op on both ranks; both must be complete."""
    _, left, right = pair
    handles = [left.allreduce_async(first, op, **options), right.allreduce_async(second, op, **options)]
    for handle in handles:
        assert handle.wait().status is Status.COMPLETE


@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_allreduce__every_dtype_and_op(pair: Pair, dtype: str, op: str) -> None:
    kind = DTYPES[dtype]
    rng = np.random.default_rng(5)
    values = [rng.integers(-9, 9, 33).astype(np.float32) for _ in range(2)]
    arrays = [bfloat16_bits(each) if dtype == "bfloat16" else each.astype(kind.numpy) for each in values]
    expected = reduce_arrays(arrays, kind, op)
    both(pair, *arrays, op, dtype=dtype)
    for result in arrays:
        np.testing.assert_array_equal(result, expected)


def test_allreduce__by_hand(pair: Pair) -> None:
    first, second = np.array([1, 2, 3], dtype=np.float32), np.array([3, 6, -3], dtype=np.float32)
    both(pair, first, second)
    assert first.tolist() == second.tolist() == [2.0, 4.0, 0.0]
    both(pair, first, second, "sum")
    assert first.tolist() == [4.0, 8.0, 0.0]


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65])
def test_allreduce__small_counts(pair: Pair, count: int) -> None:
    first, second = np.full(count, 2.0), np.full(count, 4.0)
    both(pair, first, second)
    assert first.tolist() == second.tolist() == [3.0] * count


@pytest.mark.parametrize("source_in_arena", [False, True])
@pytest.mark.parametrize("target", ["in place", "arena", "own"])
def test_allreduce__wherever_the_memory_lies(pair: Pair, source_in_arena: bool, target: str) -> None:
    _, left, right = pair
    sources, targets = [], []
    for job, value in ((left, 1.0), (right, 5.0)):
        source = job.empty((4, 8)) if source_in_arena else np.empty((4, 8), dtype=np.float32)
        source[:] = value
        sources.append(source)
        place = {"in place": source, "arena": job.empty((4, 8)), "own": np.zeros(32, dtype=np.float32)}[target]
        targets.append(place)
    handles = [
        job.allreduce_async(source, out=None if place is source else place)
        for job, source, place in zip((left, right), sources, targets, strict=True)
    ]
    for handle, place in zip(handles, targets, strict=True):
        handle.wait()
        assert handle.result is place
        assert (place == 3.0).all()
    if target != "in place":
        assert (sources[0] == 1.0).all() and (sources[1] == 5.0).all(), "the input of an out-of-place op is left alone"


def test_allreduce__array_in_the_arena_is_not_copied(alone: MakeJob) -> None:
    """Fails if such an array is staged: there would be no room to."""
    job = alone(arena=4096 * 4)
    data = job.empty(4096)
    data[:] = 1
    assert job._connection.session.arena.free_bytes() == (0, 0)
    assert job.allreduce(data, "sum").complete
    assert (data == 2).all()
    part = data[64:128]
    assert job.allreduce(part, "sum").complete, "nor is a part of it"
    assert (part == 4).all() and data[63] == 2 and data[128] == 2
    with pytest.raises(ResourceExhausted, match="arena_bytes"):
        job.allreduce(np.zeros(4, dtype=np.float32))


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (array.array("f", [1, 2]), None),
        (memoryview(array.array("d", [1, 2])), None),
        (bytearray(np.array([1, 2], dtype=np.int32).tobytes()), "int32"),
        (torch.tensor([1.0, 2.0]), None),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), None),
    ],
)
def test_allreduce__any_buffer_is_written_in_place(alone: MakeJob, data: Any, dtype: str | None) -> None:
    before = data.tolist() if hasattr(data, "tolist") else np.frombuffer(data, dtype=dtype).tolist()
    handle = alone(3).allreduce_async(data, "sum", dtype=dtype)
    handle.wait()
    after = data.tolist() if hasattr(data, "tolist") else np.frombuffer(data, dtype=dtype).tolist()
    assert after == [3 * value for value in before]
    assert handle.result is data


def test_allreduce__bfloat16_as_uint16(alone: MakeJob) -> None:
    data = bfloat16_bits([1.5, -2.0])
    assert alone(4).allreduce(data, "sum", dtype="bfloat16").complete
    assert bfloat16_values(data).tolist() == [6.0, -8.0]


def test_allreduce__bfloat16_is_rounded_once() -> None:
    """256 + 1 + 1 is 258 in float32; rounding after each addition would lose both ones."""
    with FakeDaemon(3) as daemon, ExitStack() as stack:
        jobs = [stack.enter_context(daemon.connect(rank)) for rank in range(3)]
        arrays = [bfloat16_bits(np.full(100, value)) for value in (256.0, 1.0, 1.0)]
        handles = [job.allreduce_async(each, "sum", dtype="bfloat16") for job, each in zip(jobs, arrays, strict=True)]
        for handle, result in zip(handles, arrays, strict=True):
            assert handle.wait().complete
            assert set(bfloat16_values(result).tolist()) == {258.0}


def test_allreduce__nan_and_inf_pass_and_are_counted(alone: MakeJob) -> None:
    data = np.array([1.0, math.nan, math.inf, -math.inf])
    receipt = alone().allreduce(data)
    assert receipt.nonfinite == 3
    np.testing.assert_array_equal(data, [1.0, math.nan, math.inf, -math.inf])


@pytest.mark.parametrize("deadline", [5, 5.0, "5s", "5000ms", timedelta(seconds=5), timedelta(days=3650), "87600h"])
def test_allreduce__spellings_of_a_deadline(alone: MakeJob, deadline: Any) -> None:
    assert alone().allreduce(np.ones(3), deadline=deadline).complete


def test_allreduce__out_may_be_the_array_itself(alone: MakeJob) -> None:
    data = np.ones(3)
    alone().allreduce(data, "sum", out=data)
    assert data.tolist() == [2, 2, 2]
    alone().allreduce(data, "sum", out=data[:])
    assert data.tolist() == [4, 4, 4]


OWN = np.zeros(8)
READ_ONLY = np.zeros(8)
READ_ONLY.flags.writeable = False
REFUSED = [
    ("op", {"op": "mean"}, "'mean'", "sum, avg, min, max, prod"),
    ("op", {"op": 2}, "2", "sum, avg"),
    ("mode", {"mode": "fast"}, "'fast'", "bounded, best_effort, reliable"),
    ("mode", {"op": "min", "mode": "bounded"}, "'bounded'", "reliable"),
    ("mode", {"op": "prod", "mode": "best_effort"}, "'best_effort'", "reliable"),
    ("mode", {"array": np.zeros(8, dtype=np.int64), "mode": "best_effort"}, "'best_effort'", "reliable' for int64"),
    ("mode", {"array": np.zeros(8, dtype=np.int32), "mode": "best_effort"}, "'best_effort'", "reliable' for int32"),
    ("agree", {"mode": "best_effort", "agree": True}, "True", "False in mode 'best_effort'"),
    ("deadline", {"deadline": math.nan}, "nan", "0 to ten years"),
    ("deadline", {"deadline": -1}, "-1", "0 to ten years"),
    ("deadline", {"deadline": -1e-9}, "-1e-09", "0 to ten years"),
    ("deadline", {"deadline": math.inf}, "inf", "none"),
    ("deadline", {"deadline": 10**400}, "1000", "0 to ten years"),
    ("deadline", {"deadline": timedelta(days=4000)}, "4000", "0 to ten years"),
    ("deadline", {"deadline": "soon"}, "'soon'", "250ms"),
    ("dtype", {"dtype": "float8"}, "'float8'", "bfloat16"),
    ("dtype", {"dtype": "float32"}, "'float32'", "float64"),
    ("array", {"array": [1.0]}, "list", "buffer"),
    ("array", {"array": np.zeros(4, dtype=np.uint8)}, "uint8", "dtype="),
    ("array", {"array": np.zeros((4, 4))[::2, ::2]}, "strides", "C-contiguous"),
    ("array", {"array": READ_ONLY}, "read-only", "out="),
    ("out", {"out": READ_ONLY}, "read-only", "writable"),
    ("out", {"out": np.zeros(7)}, "7 elements", "8"),
    ("out", {"out": np.zeros(16, dtype=np.float32)}, "float32", "float64"),
    ("out", {"array": OWN[:4], "out": OWN[2:6]}, "overlaps", "apart"),
    ("out", {"out": "text"}, "str", "buffer"),
]


@pytest.mark.parametrize(("field", "arguments", "value", "allowed"), REFUSED)
def test_allreduce__refused_before_anything_is_sent(
    pair: Pair, field: str, arguments: dict[str, Any], value: str, allowed: str
) -> None:
    _, left, _ = pair
    arguments = {"array": np.zeros(8), **arguments}
    with pytest.raises(InvalidArgument) as caught:
        left.allreduce(**arguments)
    assert caught.value.field == field
    assert value in str(caught.value) and allowed in str(caught.value)
    # The number was not used: the next op of this rank meets the first of the other.
    both(pair, np.zeros(3), np.zeros(3))
    assert left.allreduce_async(np.zeros(1)).op_seq == 1


def test_allreduce__over_a_limit_names_it(alone: MakeJob) -> None:
    with FakeDaemon(bucket_bytes_max=4096) as daemon, daemon.connect(arena="64K") as job:
        with pytest.raises(ResourceExhausted) as caught:
            job.allreduce(np.zeros(513))
        assert (caught.value.limit, caught.value.asked, caught.value.available) == ("bucket_bytes_max", 4104, 4096)
        assert "4104" in str(caught.value) and "4096" in str(caught.value)
        assert job.allreduce(np.zeros(512)).op_seq == 0
    job = alone(arena=4096)
    with pytest.raises(ResourceExhausted) as caught:
        job.allreduce(np.zeros(513))
    assert (caught.value.limit, caught.value.asked, caught.value.available) == ("arena_bytes", 4104, 4096)
    assert job.allreduce(np.zeros(512)).op_seq == 0


def test_allreduce__desync_names_rank_field_and_values(pair: Pair) -> None:
    _, left, right = pair
    cases: list[tuple[dict[str, Any], dict[str, Any], str, object, object]] = [
        ({"array": np.zeros(4)}, {"array": np.zeros(4, dtype=np.float32)}, "dtype", "float64", "float32"),
        ({"array": np.zeros(4)}, {"array": np.zeros(5)}, "count", 4, 5),
        ({"array": np.zeros(4), "op": "sum"}, {"array": np.zeros(4)}, "op", "sum", "avg"),
        ({"array": np.zeros(4)}, {"array": np.zeros(4), "mode": "reliable"}, "mode", "bounded", "reliable"),
    ]
    for number, (mine, theirs, field, here, there) in enumerate(cases):
        handles = left.allreduce_async(**mine), right.allreduce_async(**theirs)
        for handle, rank, values in ((handles[0], 1, (here, there)), (handles[1], 0, (there, here))):
            with pytest.raises(ultima.Desync) as caught:
                handle.wait()
            error = caught.value
            assert (error.rank, error.field, (error.mine, error.theirs)) == (rank, field, values)
            assert error.op_seq == number


def test_allreduce__reliable_has_no_partial_result(pair: Pair) -> None:
    _, left, right = pair
    mine = np.ones(4)
    with pytest.raises(ultima.DeadlineExceeded) as caught:
        left.allreduce(mine, mode="reliable", deadline="50ms")
    assert caught.value.receipt is not None
    assert caught.value.receipt.status is Status.FAILED
    assert caught.value.receipt.culprit == (1,)
    assert mine.tolist() == [1, 1, 1, 1]
    right.close()
    with pytest.raises(ultima.RanksGone) as gone:
        left.allreduce(mine, "min", deadline=20)
    assert gone.value.ranks == (1,)


def test_empty__shapes_and_types(alone: MakeJob) -> None:
    job = alone()
    for shape, sizes in ((3, (3,)), ((2, 3), (2, 3)), ([2, 3], (2, 3)), ((), ()), (0, (0,)), (np.int64(4), (4,))):
        data = job.empty(shape, "float64")
        assert (data.shape, data.dtype) == (sizes, np.float64)
        assert data.flags.writeable and data.flags.c_contiguous
    assert job.empty(3, "bfloat16").dtype == np.uint16
    assert job.empty(3).dtype == np.float32
    assert job.empty(3, torch.int64).dtype == np.int64
    assert job.empty(3, np.uint8).dtype == np.uint8


@pytest.mark.parametrize(
    ("field", "shape", "dtype"),
    [
        ("shape", -1, "float32"),
        ("shape", "3", "float32"),
        ("shape", 2.5, "float32"),
        ("dtype", 1, "nothing"),
        ("dtype", 1, "O"),
    ],
)
def test_empty__refused(alone: MakeJob, field: str, shape: Any, dtype: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        alone().empty(shape, dtype)
    assert caught.value.field == field


def test_empty__full_and_given_back(alone: MakeJob) -> None:
    job = alone(arena="64K")
    data = job.empty(1 << 16, np.uint8)
    with pytest.raises(ResourceExhausted) as caught:
        job.empty(1)
    assert caught.value.limit == "arena_bytes"
    del data
    assert job.empty(1 << 14).nbytes == 1 << 16


def test_next_op_seq__is_that_of_the_receipt_to_come(pair: Pair) -> None:
    _, left, right = pair
    for number in range(3):
        assert left.next_op_seq == right.next_op_seq == number
        mine = left.allreduce_async(np.ones(4, dtype=np.float32))
        assert left.next_op_seq is None, "one is under way"
        right.allreduce(np.ones(4, dtype=np.float32))
        assert mine.wait().op_seq == number
    left.close()
    assert left.next_op_seq is None


def test_job__what_it_is() -> None:
    with FakeDaemon(4, ranks_per_host=2) as daemon, daemon.connect(3, arena="64K", deadline="2s") as job:
        assert (job.name, job.rank, job.world_size, job.host_index) == ("fake", 3, 4, 1)
        assert [host.ranks for host in job.hosts] == [(0, 1), (2, 3)]
        assert (job.arena_bytes, job.deadline_s, job.connected, job.reconnects) == (65536, 2.0, True, 0)
        assert repr(job) == "<ultima.Job 'fake' rank 3 of 4, open>"
    assert repr(job) == "<ultima.Job 'fake' rank 3 of 4, closed>"
    assert not job.connected


def test_connect__from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "ULTIMA_JOB": "env", "ULTIMA_DEADLINE": "7s"}.items():
        monkeypatch.setenv(name, value)
    with FakeDaemon(2) as daemon, daemon.installed(), ultima.connect() as job:
        assert (job.name, job.rank, job.world_size, job.deadline_s) == ("env", 1, 2, 7.0)
    monkeypatch.setenv("ULTIMA_DEADLINE", "never")
    with pytest.raises(InvalidArgument, match="ULTIMA_DEADLINE"):
        ultima.connect()


@pytest.mark.parametrize("seed", seeds(2))
def test_allreduce__random_ops_against_the_oracle(pair: Pair, seed: int) -> None:
    """Replay: put the seed that the name of the failed test shows into the list above."""
    _, left, right = pair
    rng = random.Random(seed)
    for step in range(150):
        kind, op = DTYPES[rng.choice([*DTYPES])], rng.choice([*OPS])
        count, in_arena = rng.choice([0, 1, 5, 100, 1000]), rng.random() < 0.5
        arrays = []
        for job in (left, right):
            data = job.empty(count, kind.name) if in_arena else np.empty(count, dtype=kind.numpy)
            data.reshape(-1).view(np.uint8)[:] = np.frombuffer(rng.randbytes(data.nbytes), dtype=np.uint8)
            arrays.append(data)
        expected = reduce_arrays(arrays, kind, op)
        both(pair, *arrays, op, dtype=kind.name)
        for result in arrays:
            what = f"seed {seed} step {step} {kind.name} {op} {count}"
            np.testing.assert_array_equal(one_nan(result, kind), one_nan(expected, kind), err_msg=what)


def one_nan(array: AnyArray, kind: DType) -> AnyArray:
    """Where two ranks give NaN, either of the two is a right result: numpy takes them for equal but in bfloat16."""
    return np.where((array & 0x7FFF) > 0x7F80, 0x7FC0, array) if kind.name == "bfloat16" else array
