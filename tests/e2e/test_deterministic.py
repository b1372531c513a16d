# SPDX-License-Identifier: Apache-2.0
"""Deterministic jobs over real daemons: whatever comes first, a sum of three hosts has the bits of one from the first
host to the last."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, everywhere, ranks

SIZE = 100_003
"""Elements: many packets of each shard, and no multiple of anything."""
TYPES: tuple[Any, ...] = (np.float32, np.float16, np.float64)


def brought(rank: int, dtype: Any, seed: int = 7) -> Any:
    """Of three values two are large and cancel out: the small one keeps its last bits only in some orders."""
    generator = np.random.default_rng(seed)
    small = (1 + generator.random((3, SIZE))) / 256
    large = 2.0 ** (44 if dtype is np.float64 else 14)
    first, at = generator.integers(0, 3, SIZE), np.arange(SIZE)
    small[first, at], small[(first + 1) % 3, at] = large, -large
    return small[rank].astype(dtype)


def in_order(dtype: Any) -> Any:
    """The sum from rank 0 on, of halves in float32 and rounded once."""
    wide = np.float32 if dtype is np.float16 else dtype
    total = brought(0, dtype).astype(wide)
    for rank in (1, 2):
        total = total + brought(rank, dtype).astype(wide)
    return total.astype(dtype)


def summed(hosts: Hosts, dtype: Any, late: int, **options: Any) -> Any:
    """The result of one job, to which rank `late` comes after the others."""
    with ranks(hosts[:3], options=ultima.Options(**options)) as jobs:

        def train(rank: int, job: ultima.Job) -> Any:
            array = brought(rank, dtype)
            time.sleep(0.05 * (rank == late))
            assert job.allreduce(array, "sum", mode="reliable").complete
            return array

        results = everywhere(jobs, train)
    assert all(isinstance(result, np.ndarray) for result in results), results
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return results[0]


@pytest.mark.parametrize("dtype", TYPES)
def test_deterministic__bits_are_those_of_a_sum_in_the_order_of_ranks(four: Hosts, dtype: Any) -> None:
    expected = in_order(dtype).tobytes()
    for late in range(3):
        assert summed(four, dtype, late, deterministic=True).tobytes() == expected, f"rank {late} was late"
    assert summed(four, dtype, 0).tobytes() != expected, "else any order has these bits, and the rest says nothing"


def test_deterministic__a_parameter_server_too_and_a_ring_in_its_own_order(four: Hosts) -> None:
    expected = in_order(np.float32).tobytes()
    for late in range(2):
        assert summed(four, np.float32, late, deterministic=True, algorithm="ps").tobytes() == expected
    ring = {summed(four, np.float32, late, deterministic=True, algorithm="ring").tobytes() for late in range(3)}
    assert len(ring) == 1, "the order is another one, but the same each time"


def test_deterministic__sparse_sums_are_refused(four: Hosts) -> None:
    with ranks(four[:2], options=ultima.Options(deterministic=True)) as jobs:
        out = np.zeros(4, np.float32)
        with pytest.raises(ultima.Unsupported, match="in jobs that are not deterministic"):
            jobs[0].allreduce_sparse(np.arange(1), out[:1], out)
