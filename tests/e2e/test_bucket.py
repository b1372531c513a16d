# SPDX-License-Identifier: Apache-2.0
"""Buckets of more than 2^31 bytes: every element is right, the ones on both sides of 2 GiB among them."""

from pathlib import Path

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import everywhere, ranks, running

COUNT = (1 << 29) + 1000  # float32: 4000 bytes more than 2 GiB
NEEDED_GIB = 9  # two arenas, and the copies of two own shards


def free_gib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) / 2**20


@pytest.mark.check
@pytest.mark.skipif(free_gib() < NEEDED_GIB, reason=f"needs {NEEDED_GIB} GiB of free memory")
def test_allreduce__of_more_than_two_gib() -> None:
    size = 4 * COUNT
    limits = {"ULTIMAD_LIMITS_MEMORY_BYTES": "128G"}  # 24 buckets, of which it touches two and a bit
    with (
        running(2, **limits) as hosts,
        ranks(hosts, arena=size + 65536, bucket_bytes_max=size, deadline="100s") as jobs,
    ):
        probes = [0, 1, COUNT // 2 - 1, COUNT // 2, (1 << 29) - 1, 1 << 29, COUNT - 1]

        def one(rank: int, job: ultima.Job) -> list[float]:
            array = job.empty(COUNT, "float32")
            array[:] = rank + 1.0
            for number, at in enumerate(probes):
                array[at] = 10.0 * number + rank
            receipt = job.allreduce(array, "sum", mode="reliable")
            assert receipt.complete and receipt.bytes_missing == 0
            assert receipt.bytes_expected == size // 2 * 2, "half comes to be folded, half comes as the result"
            others = np.delete(array[-2000:], [at - (COUNT - 2000) for at in probes if at >= COUNT - 2000])
            assert (others == 3.0).all() and (array[2 : 1 << 20] == 3.0).all()
            assert np.count_nonzero(array != 3.0) == len(probes)
            return [float(array[at]) for at in probes]

        for values in everywhere(jobs, one):
            assert values == [20.0 * number + 1.0 for number in range(len(probes))], values
