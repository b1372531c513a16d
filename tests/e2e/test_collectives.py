# SPDX-License-Identifier: Apache-2.0
"""The collectives besides allreduce over real daemons: every rank's bytes where they belong, and who is to blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, connect_all, everywhere, ranks
from tests.e2e.test_allreduce import contribution
from tests.oracle import collective_result
from ultima.base.buffers import AnyArray
from ultima.base.words import COLLECTIVES, DTYPES, FLOAT32

MOVES = ("broadcast", "all_gather", "all_to_all")


def call(job: ultima.Job, collective: str, array: AnyArray, out: AnyArray, root: int, op: str) -> ultima.Handle:
    if collective == "broadcast":
        out[...] = array if job.rank == root else 0
        return job.broadcast_async(out, root)
    if collective == "reduce_scatter":
        return job.reduce_scatter_async(array, out, op)
    return getattr(job, f"{collective}_async")(array, out)  # type: ignore[no-any-return]


def out_size(collective: str, size: int, world: int) -> int:
    return {"all_gather": size * world, "reduce_scatter": size // world}.get(collective, size)


def check(jobs: list[ultima.Job], collective: str, arrays: list[AnyArray], in_arena: bool, op: str = "sum") -> None:
    """One op on all ranks against the oracle, bit for bit; what is only read stays as it is."""
    world, root, kind = len(jobs), len(arrays[0]) % len(jobs), DTYPES.get(arrays[0].dtype.name, FLOAT32)
    outs, sources = [], []
    for job, array in zip(jobs, arrays, strict=True):
        size = out_size(collective, array.size, world)
        source, out = (job.empty(array.size, array.dtype), job.empty(size, array.dtype)) if in_arena else (None, None)
        sources.append(array.copy() if source is None else source)
        sources[-1][:] = array
        outs.append(np.empty(size, array.dtype) if out is None else out)
    places = zip(jobs, sources, outs, strict=True)
    handles = [call(job, collective, source, out, root, op) for job, source, out in places]
    for rank, (handle, out) in enumerate(zip(handles, outs, strict=True)):
        receipt = handle.wait()
        assert receipt.complete, f"{collective} on rank {rank}: {receipt}"
        assert receipt.contributors == ((root,) if collective == "broadcast" else tuple(range(world)))
        assert receipt.missing_ranks == ()
        assert handle.result is out
        expected = collective_result(collective, rank, arrays, kind, op, root)
        np.testing.assert_array_equal(out, expected, err_msg=f"{collective} on rank {rank}")
    for source, array in zip(sources, arrays, strict=True):
        np.testing.assert_array_equal(source, array)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_collectives__every_type_wherever_it_lies(four: Hosts, world: int) -> None:
    with ranks(four[:world]) as jobs:
        assert jobs[0].collectives == set(COLLECTIVES) - {"allreduce_quant"}  # an argument of allreduce
        for in_arena in (False, True):
            for size in (0, world, 60, 30_000):
                for name in ("float32", "float64", "int64", "float16", "bool", "uint8", "int16", "complex64"):
                    arrays = [contribution(rank, size * world // world, DTYPES["int64"]) for rank in range(world)]
                    arrays = [each[: size - size % world].astype(name) for each in arrays]
                    for collective in MOVES:
                        check(jobs, collective, arrays, in_arena)
                    for op in ("sum", "avg", "max") if name in DTYPES else ():
                        check(jobs, "reduce_scatter", arrays, in_arena, op)


def test_collectives__mixed_and_many_under_way(four: Hosts) -> None:
    with ranks(four[:3]) as jobs:

        def work(rank: int, job: ultima.Job) -> int:
            handles: list[tuple[str, ultima.Handle, Any, Any]] = []
            for number in range(90):
                collective = ("allreduce", "barrier", *MOVES, "reduce_scatter")[number % 6]
                arrays = [np.arange(600, dtype=np.int64) + 1000 * number + 100_000 * each for each in range(3)]
                out = np.zeros(out_size(collective, 600, 3), np.int64)
                expected = collective_result(collective, rank, arrays, DTYPES["int64"], "sum", number % 3)
                if collective == "barrier":
                    handles.append((collective, job.barrier_async(), 0, 0))
                elif collective == "allreduce":
                    handles.append((collective, job.allreduce_async(arrays[rank], "sum", out=out), out, expected))
                else:
                    handle = call(job, collective, arrays[rank], out, number % 3, "sum")
                    handles.append((collective, handle, out, expected))
            assert all(handle.wait().complete for _, handle, _, _ in reversed(handles))
            return sum(int(np.any(out != expected)) for _, _, out, expected in handles)

        assert everywhere(jobs, work) == [0, 0, 0]


def test_collectives__a_rank_that_does_not_call_or_has_gone(four: Hosts) -> None:
    with ranks(four[:3]) as jobs:
        outs = [np.full(6, 7.0) for _ in jobs]
        found = everywhere(jobs[:2], lambda rank, job: job.all_to_all(np.ones(6), outs[rank], deadline="500ms"))
        assert [type(error) for error in found] == [ultima.DeadlineExceeded] * 2, found
        assert all("waiting for rank 2" in str(error) for error in found)
        assert all((out == 7.0).all() for out in outs), "an array outside the arena is untouched"
        with pytest.raises(ultima.UltimaError):
            jobs[2].all_to_all(np.ones(6), outs[2], deadline="500ms")
        jobs[2].close()
        found = everywhere(jobs[:2], lambda rank, job: job.broadcast(np.ones(6), deadline=20))
        assert [type(error) for error in found] == [ultima.RanksGone] * 2, found
        assert all(error.ranks == (2,) for error in found)


@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_collectives__a_daemon_killed_under_way(daemons: Callable[[int], Hosts], collective: str) -> None:
    """The ranks of the others fail or are through, by their deadline; nobody hangs."""
    hosts = daemons(3)
    jobs = connect_all(hosts, deadline=10, arena="64M")
    try:
        assert all(receipt.complete for receipt in everywhere(jobs, lambda _, job: job.barrier()))
        data = [np.ones(3 << 19, np.float32) for _ in jobs]
        outs = [np.zeros(out_size(collective, 3 << 19, 3), np.float32) for _ in jobs]
        handles = [
            job.barrier_async() if collective == "barrier" else call(job, collective, *each, 0, "sum")
            for job, *each in list(zip(jobs, data, outs, strict=True))[:2]
        ]
        hosts[2].kill()
        for handle in handles:
            with pytest.raises((ultima.RanksGone, ultima.DeadlineExceeded)):
                handle.wait()
        with pytest.raises(ultima.DaemonError):
            jobs[2].barrier(deadline="2s")
    finally:
        for job in jobs:
            job.close()
