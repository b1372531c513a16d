# SPDX-License-Identifier: Apache-2.0
"""The collectives of a Job over the fake daemon: where the bytes lie, what is refused, what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.api.slots import at_once
from tests.oracle import collective_result
from ultima.api.collectives import QUANT
from ultima.base.words import COLLECTIVES, FLOAT32, INT32
from ultima.session.op import Layout, Op
from ultima.testing import FakeDaemon

WORLD = 3


@contextmanager
def jobs_of(world: int = WORLD, **options: Any) -> Iterator[list[ultima.Job]]:
    with FakeDaemon(world, **options) as daemon, ExitStack() as stack:
        yield [stack.enter_context(daemon.connect(rank, arena="1M", deadline=10)) for rank in range(world)]


def place(job: ultima.Job, size: int, dtype: str, inside: bool) -> Any:
    return job.empty(size, dtype) if inside else np.empty(size, dtype)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex128"])
@pytest.mark.parametrize("source_inside", [False, True])
@pytest.mark.parametrize("out_inside", [False, True])
@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "reduce_scatter"])
def test_collectives__wherever_the_memory_lies(
    collective: str, out_inside: bool, source_inside: bool, dtype: str
) -> None:
    if collective == "reduce_scatter":
        dtype = "float64" if dtype == "complex128" else "int32"
    sizes = {"all_gather": (6, 18), "all_to_all": (6, 6), "reduce_scatter": (6, 2)}[collective]
    with jobs_of() as jobs:
        arrays = [np.arange(10 * rank, 10 * rank + sizes[0]).astype(dtype) for rank in range(WORLD)]
        sources = [place(job, sizes[0], dtype, source_inside) for job in jobs]
        outs = [place(job, sizes[1], dtype, out_inside) for job in jobs]
        for source, array in zip(sources, arrays, strict=True):
            source[:] = array
        more = ("sum",) if collective == "reduce_scatter" else ()
        ranks = zip(jobs, sources, outs, strict=True)
        handles = [getattr(job, f"{collective}_async")(source, out, *more) for job, source, out in ranks]
        for rank, (handle, out) in enumerate(zip(handles, outs, strict=True)):
            receipt = handle.wait()
            assert receipt.complete and receipt.contributors == (0, 1, 2)
            assert handle.result is out
            expected = collective_result(collective, rank, arrays, FLOAT32, "sum")
            assert out.tolist() == expected.tolist(), (collective, rank)
        assert all((source == array).all() for source, array in zip(sources, arrays, strict=True))
        free = [job._connection.session.arena.free_bytes()[0] for job in jobs]
        inside = sum(each.nbytes for each, is_in in ((sources[0], source_inside), (outs[0], out_inside)) if is_in)
        assert all(job.arena_bytes - left <= inside + 2 * 4096 for job, left in zip(jobs, free, strict=True))


@pytest.mark.parametrize("inside", [False, True])
def test_broadcast__in_place_and_its_receipt_names_the_root(inside: bool) -> None:
    with jobs_of() as jobs:
        arrays = [place(job, 7, "uint8", inside) for job in jobs]
        for rank, array in enumerate(arrays):
            array[:] = rank + 40
        handles = [job.broadcast_async(array, 2) for job, array in zip(jobs, arrays, strict=True)]
        receipts = [handle.wait() for handle in handles]
        assert all((array == 42).all() for array in arrays)
        assert [receipt.contributors for receipt in receipts] == [(2,)] * 3
        assert [receipt.missing_ranks for receipt in receipts] == [()] * 3
        assert [receipt.bytes_expected for receipt in receipts] == [7, 7, 0]
        assert "from rank 2 to all 3" in str(receipts[0])


def test_barrier__waits_for_all() -> None:
    with jobs_of() as jobs:
        first = [job.barrier_async() for job in jobs[:2]]
        with pytest.raises(ultima.NotDone):
            first[0].wait("50ms")
        assert jobs[2].barrier().complete
        assert all(handle.wait().complete for handle in first)


def test_barrier__another_note_is_a_desync() -> None:
    with jobs_of() as jobs:
        alike = [job.barrier_async(note=2**64 - 1) for job in jobs]
        assert [handle.wait().bytes_expected for handle in alike] == [2] * 3
        handles = [job.barrier_async(note=note) for job, note in zip(jobs, (5, 5, 6), strict=True)]
        for handle, mine, theirs in zip(handles, (5, 5, 6), (6, 6, 5), strict=True):
            with pytest.raises(ultima.Desync) as raised:
                handle.wait()
            assert (raised.value.field, raised.value.mine, raised.value.theirs) == ("note", mine, theirs)


def test_collectives__ranks_that_share_a_host() -> None:
    with jobs_of(4, ranks_per_host=2) as jobs:
        assert jobs[0].collectives == {"allreduce", "barrier", "allreduce_sparse"}
        data, out = np.zeros(4), np.zeros(16)
        calls = {
            "broadcast": lambda: jobs[0].broadcast(data),
            "all_gather": lambda: jobs[0].all_gather(data, out),
            "reduce_scatter": lambda: jobs[0].reduce_scatter(data, out[:1]),
            "all_to_all": lambda: jobs[0].all_to_all(data, out[:4]),
        }
        assert {*calls, "allreduce", "barrier", "allreduce_sparse"} == set(COLLECTIVES) - QUANT
        for name, call in calls.items():
            with pytest.raises(ultima.Unsupported, match=rf"{name}: 4 ranks share 2 hosts.*one rank per host"):
                call()
        handles = [job.barrier_async() for job in jobs]
        assert [handle.op_seq for handle in handles] == [0] * 4
        assert all(handle.wait().complete for handle in handles)


def test_collectives__a_world_of_one_copies() -> None:
    with jobs_of(1) as (job,):
        out = np.zeros(4)
        assert job.collectives == set(COLLECTIVES) - QUANT, "which is an argument of allreduce"
        for call in (job.all_gather, job.all_to_all, job.reduce_scatter):
            out[:] = 0
            assert call(np.arange(4.0), out).complete
            assert out.tolist() == [0, 1, 2, 3]
        assert job.broadcast(out).complete and job.barrier().complete


def test_collectives__trouble() -> None:
    with jobs_of() as jobs:
        out = np.full(6, 9, np.int32)
        with pytest.raises(ultima.DeadlineExceeded, match="waiting for rank 0"):
            jobs[0].all_to_all(np.zeros(6, np.int32), out, deadline="100ms")
        assert (out == 9).all()
        for handle in [job.all_to_all_async(np.zeros(6, np.int32), np.zeros(6, np.int32)) for job in jobs[1:]]:
            with pytest.raises(ultima.RanksGone):  # rank 0 has given the op up, and takes nothing for it any more
                handle.wait()
        handles = [jobs[0].broadcast_async(out, 1), jobs[1].broadcast_async(out.copy(), 2), jobs[2].barrier_async()]
        fields = []
        for handle in handles:
            with pytest.raises(ultima.Desync) as raised:
                handle.wait()
            fields.append((raised.value.field, raised.value.mine, raised.value.theirs))
        assert set(fields) >= {("collective", "barrier", "broadcast")}
        assert all(field in ("collective", "root") for field, _, _ in fields)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda job: job.broadcast(np.zeros(3), 3), "root is 3; allowed: a rank, 0 to 2"),
        (lambda job: job.broadcast(np.zeros(3), "0"), "root is '0'; allowed: a rank, 0 to 2"),
        (lambda job: job.broadcast(b"abc"), "array is 'a read-only bytes'"),
        (lambda job: job.broadcast(np.array([object()])), "allowed: elements of a fixed size"),
        (lambda job: job.broadcast(np.zeros((4, 4), bool)[:, ::2]), "allowed: C-contiguous memory"),
        (lambda job: job.all_gather(np.zeros(3), np.zeros(8)), "out is '8 elements'; allowed: 9"),
        (lambda job: job.all_gather(np.zeros(3), np.zeros(9, np.float32)), "out is 'an array of float32'"),
        (
            lambda job: job.all_to_all(np.zeros(4, np.int16), np.zeros(4, np.int16)),
            "allowed: a multiple of the 3 ranks",
        ),
        (lambda job: job.reduce_scatter(np.zeros(6), np.zeros(3)), "out is '3 elements'; allowed: 2"),
        (lambda job: job.reduce_scatter(np.zeros(6), np.zeros(2), "mean"), "op is 'mean'; allowed: one of sum"),
        (lambda job: job.reduce_scatter(np.zeros(6, bool), np.zeros(2, bool)), "array is 'an array of bool'"),
        (lambda job: job.barrier(deadline=-1), "deadline is -1"),
        (lambda job: job.barrier(note=-1), "note is -1; allowed: an integer, 0 to 18446744073709551615"),
        (lambda job: job.barrier(note=2**64), "note is 18446744073709551616"),
        (lambda job: job.barrier(note="now"), "note is 'now'; allowed: an integer"),
    ],
)
def test_collectives__bad_arguments(call: Any, text: str) -> None:
    with jobs_of() as jobs:
        with pytest.raises(ultima.InvalidArgument) as raised:
            call(jobs[0])
        assert text in str(raised.value).replace('"', "'")
        handles = [job.barrier_async() for job in jobs]
        assert [handle.op_seq for handle in handles] == [0] * 3, "what is refused uses no number"


def test_collectives__overlaps() -> None:
    """Only the own shard's place is taken as in place."""
    with jobs_of() as jobs:
        whole = np.zeros(9, np.int32)
        for rank in (1, 2):
            with pytest.raises(ultima.InvalidArgument, match="own shard's place in the other"):
                jobs[0].all_gather(whole[3 * rank : 3 * rank + 3], whole)
            with pytest.raises(ultima.InvalidArgument, match="own shard's place in the other"):
                jobs[0].reduce_scatter(whole, whole[3 * rank : 3 * rank + 3])
        with pytest.raises(ultima.InvalidArgument, match="memory that overlaps array"):
            jobs[0].all_to_all(whole, whole)
        wholes = [np.arange(9) + 100 * rank for rank in range(WORLD)]
        mine = [each[3 * rank : 3 * rank + 3] for rank, each in enumerate(wholes)]
        handles = [job.all_gather_async(*each) for job, *each in zip(jobs, mine, wholes, strict=True)]
        assert all(handle.wait().complete for handle in handles)
        assert all(each.tolist() == [0, 1, 2, 103, 104, 105, 206, 207, 208] for each in wholes)


def test_collectives__in_place() -> None:
    """The own shard where it belongs in the other buffer, in the arena and outside."""
    with jobs_of() as jobs:
        for in_arena in (False, True):
            wholes = [job.empty(300, "int32") if in_arena else np.empty(300, np.int32) for job in jobs]
            for job, whole in zip(jobs, wholes, strict=True):
                whole[:] = 1000 * job.rank
            mine = [whole[100 * rank : 100 * rank + 100] for rank, whole in enumerate(wholes)]
            handles = [job.all_gather_async(*each) for job, *each in zip(jobs, mine, wholes, strict=True)]
            assert all(handle.wait().complete for handle in handles)
            for whole in wholes:
                assert whole.tolist() == [0] * 100 + [1000] * 100 + [2000] * 100
                whole += 1
            handles = [job.reduce_scatter_async(*each, "sum") for job, *each in zip(jobs, wholes, mine, strict=True)]
            assert all(handle.wait().complete for handle in handles)
            for rank, whole in enumerate(wholes):
                expected = [1] * 100 + [1001] * 100 + [2001] * 100
                expected[100 * rank : 100 * rank + 100] = [3 * (1000 * rank + 1)] * 100
                assert whole.tolist() == expected


def test_collectives__tensors_of_types_that_numpy_lacks() -> None:
    torch = pytest.importorskip("torch")
    with jobs_of(2) as jobs:
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.bool):
            sent = [torch.tensor([[0.0, 1.0], [0.5, 2.0]]).add(rank).to(dtype) for rank in range(2)]
            got = [torch.zeros((4, 2), dtype=dtype) for _ in range(2)]
            handles = [job.all_gather_async(*each) for job, *each in zip(jobs, sent, got, strict=True)]
            assert all(handle.wait().complete for handle in handles)
            assert all(torch.equal(each.float(), torch.cat(sent).float()) for each in got)


def told(job: ultima.Job, call: Any) -> ultima.Desync:
    with pytest.raises(ultima.Desync) as caught:
        call(job)
    return caught.value


def test_collectives__desync_names_what_differs() -> None:
    rows: list[tuple[str, Any, Any, object, object]] = [
        ("collective", lambda job: job.barrier(), lambda job: job.broadcast(np.zeros(6)), "barrier", "broadcast"),
        ("note", lambda job: job.barrier(note=2**64 - 1), lambda job: job.barrier(), 2**64 - 1, 0),
        (
            "collective",
            lambda job: job.allreduce(np.zeros(6), mode="reliable"),
            lambda job: job.reduce_scatter(np.zeros(6), np.zeros(2)),
            "allreduce",
            "reduce_scatter",
        ),
        ("root", lambda job: job.broadcast(np.zeros(6), 0), lambda job: job.broadcast(np.zeros(6), 2), 0, 2),
        ("count", lambda job: job.broadcast(np.zeros(6)), lambda job: job.broadcast(np.zeros(7)), 6, 7),
        (
            "dtype",
            lambda job: job.all_gather(np.zeros(4), np.zeros(12)),
            lambda job: job.all_gather(np.zeros(4, bool), np.zeros(12, bool)),
            "float64",
            "bytes",
        ),
    ]
    with jobs_of() as jobs:
        for field, usual, other, here, there in rows:
            found = at_once(
                *(
                    lambda job=job, call=call: told(job, call)
                    for job, call in zip(jobs, (usual, other, usual), strict=True)
                )
            )
            for rank, error in enumerate(found):
                assert (error.field, error.mine, error.theirs) == (
                    (field, there, here) if rank == 1 else (field, here, there)
                )
                assert error.rank != 1 if rank == 1 else error.rank == 1
        assert all(receipt.complete for receipt in at_once(*(job.barrier for job in jobs)))


def test_op__memory_of_an_unfinished_collective_is_its_own() -> None:
    """A source and a target of unlike sizes: each guards what it has, no more."""
    source, target = np.zeros(2, np.int32), np.zeros(6, np.int32)
    layout = Layout(COLLECTIVES["all_gather"], 24, src_from=8)
    op = Op(source, target, target, INT32, 0, 3, times=(0, 0), layout=layout)
    op.src, op.dst = 100, 200
    assert (op.nbytes, op.count) == (24, 6)
    rows = [(96, 100, True, False), (100, 101, True, True), (107, 108, False, False), (107, 108, True, True),
            (108, 200, True, False), (223, 224, False, True), (224, 300, True, False)]  # fmt: skip
    for low, high, writes, found in rows:
        assert op.conflicts(low, high, writes) is found, (low, high, writes)
