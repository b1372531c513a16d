# SPDX-License-Identifier: Apache-2.0
"""One rank of the study of transfers, on a host of the lab: `python -m tests.reproduce.deepreduce.rank FILE`. It writes
its times in seconds to FILE, one list per way to send the gradient."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ultima
from ultima.sparse import Feedback, encode, exchange

ELEMENTS, RATIO, ROUNDS = 4 << 20, 0.1, 3
SUMMED = "a sum in the network"
"""Where the daemons do it."""
WAYS: dict[str, dict[str, Any]] = {
    "Top-r": {"index": "raw", "value": "raw"},
    "BF-P0": {"index": "bloom-p0", "value": "raw"},
    "BF-P0 and QSGD": {"index": "bloom-p0", "value": "qsgd"},
    "delta and QSGD": {"index": "delta", "value": "qsgd"},
}


def _dense(job: ultima.Job, gradient: Any) -> dict[str, float]:
    bucket = job.empty(ELEMENTS)
    bucket[:] = gradient
    job.barrier(deadline="60s")
    begun, worked = time.monotonic(), time.process_time()
    job.allreduce(bucket, mode="reliable", deadline="60s")
    took = time.monotonic() - begun
    worked = time.process_time() - worked
    return {
        "step": took,
        "gather": took,
        "cpu": worked,
        "bytes": 2 * 4 * ELEMENTS * (job.world_size - 1) / job.world_size,
    }


def _sparse(job: ultima.Job, gradient: Any, memory: Feedback, options: dict[str, Any], number: int) -> dict[str, float]:
    job.barrier(deadline="60s")
    begun, worked = time.monotonic(), time.process_time()
    chosen = memory.select(gradient)
    selected = time.monotonic()
    packed = encode(chosen.indices, chosen.values, ELEMENTS, seed=number, **options)
    encoded = time.monotonic()
    job.barrier(deadline="60s")  # whoever waits for a slower host does not count it as time on the wire
    found = exchange(job, packed, ELEMENTS, deadline="60s")
    found.mean()
    return {
        "step": time.monotonic() - begun,
        "select": selected - begun,
        "encode": encoded - selected,
        "gather": found.gather_s,
        "cpu": time.process_time() - worked,
        "bytes": float(found.row_bytes * (job.world_size - 1)),
    }


def _summed(job: ultima.Job, gradient: Any, memory: Feedback, out: Any) -> dict[str, float]:
    """The same entries, added up by the daemons."""
    job.barrier(deadline="60s")
    begun, worked = time.monotonic(), time.process_time()
    chosen = memory.select(gradient)
    selected = time.monotonic()
    job.allreduce_sparse(
        chosen.indices, chosen.values, out, hint=int(RATIO * ELEMENTS), mode="reliable", deadline="60s"
    )
    took = time.monotonic() - begun
    return {
        "step": took, "select": selected - begun, "gather": took - (selected - begun),
        "cpu": time.process_time() - worked,
    }  # fmt: skip


def main(path: Path) -> None:
    with ultima.connect(timeout=60, arena="64M") as job:
        gradient = np.random.default_rng(job.rank).laplace(size=ELEMENTS).astype(np.float32)
        found: dict[str, list[dict[str, float]]] = {"dense": [], **{name: [] for name in WAYS}}
        memories = {name: Feedback(ELEMENTS, RATIO) for name in (*WAYS, SUMMED)}
        summed = "allreduce_sparse" in job.collectives
        bucket = job.empty(ELEMENTS)
        for number in range(ROUNDS):
            found["dense"].append(_dense(job, gradient))
            for name, options in WAYS.items():
                found[name].append(_sparse(job, gradient, memories[name], options, number))
            if summed:
                found.setdefault(SUMMED, []).append(_summed(job, gradient, memories[SUMMED], bucket))
        job.barrier(deadline="60s")
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
