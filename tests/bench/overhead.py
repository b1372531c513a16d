# SPDX-License-Identifier: Apache-2.0
"""What a trainer pays for a small op beyond what the engine takes for it: two hosts on loopback, 1 KB.

From the call to the result in the array, less the `elapsed_s` of the op's own receipt. What remains is Python, torch,
and the two switches between trainer and daemon.

    make bench ARGS="--only overhead"

This module is also the rank: it measures each face in turn, a few ops at a time, so that whatever the machine does it
does to all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 2
COUNT = 256
ROUND = 50
WARM_OPS = 300
ROOT = Path(__file__).resolve().parents[2]
# Nobody waits longer for an answer than a machine needs that is busy otherwise.
PATIENCE_S = 300.0

Row = dict[str, list[float]]


def measure(ops: int) -> dict[str, Row]:
    """Runs on two daemons of its own, and returns for each face the times of rank 0's ops in microseconds: all of it
    ("wall") and what was the engine's ("engine"). Raises RuntimeError when a rank fails.
    """
    from ultima.demo.cluster import Cluster, free_port

    with Cluster() as cluster:
        cluster.start_daemons(RANKS)
        shared = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.overhead", str(ops)],
                cwd=ROOT,
                env={**shared, "RANK": str(rank), "ULTIMA_SOCKET": str(cluster.sockets[rank])},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            said = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no answer within {PATIENCE_S:g} s") from None
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"the ranks ended with {[rank.returncode for rank in ranks]}")
    found: dict[str, Row] = json.loads(said[0].splitlines()[-1])
    return found


def beyond(row: Row) -> float:
    """The median, over ops, of what was not the engine's."""
    return statistics.median(wall - engine for wall, engine in zip(row["wall"], row["engine"], strict=True))


def faces() -> dict[str, Callable[[], Any]]:
    """Each way to reduce 1 KB by the process group that there is, Ultima's; it returns the receipt, or None where the
    group keeps it."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import ultima.torch

    job = ultima.torch.group_of(None).job
    assert job is not None
    array, shared, tensor = np.ones(COUNT, np.float32), job.empty(COUNT), torch.ones(COUNT)
    shared[:] = 1.0

    def awaited() -> None:
        work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
        assert work is not None
        work.wait()

    return {
        "Job.allreduce, shared memory": lambda: job.allreduce(shared),
        "Job.allreduce": lambda: job.allreduce(array),
        "dist.all_reduce": lambda: dist.all_reduce(tensor, op=dist.ReduceOp.AVG),
        "dist.all_reduce, async_op": awaited,
    }


def _rank(ops: int) -> dict[str, Row]:
    import torch
    import torch.distributed as dist

    import ultima.torch

    torch.set_num_threads(1)
    dist.init_process_group("ultima")
    calls = faces()
    found: dict[str, Row] = {name: {"wall": [], "engine": []} for name in calls}
    for timed in [False] * (WARM_OPS // ROUND) + [True] * (ops // ROUND):
        for name, reduce in calls.items():
            walls, receipts = [], []
            for _ in range(ROUND):
                began = time.perf_counter_ns()
                receipts.append(reduce())
                walls.append((time.perf_counter_ns() - began) / 1e3)
            if timed:
                kept = receipts if receipts[0] is not None else ultima.torch.last_receipts(ROUND)
                found[name]["wall"] += walls
                found[name]["engine"] += [receipt.elapsed_s * 1e6 for receipt in kept]
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    print(json.dumps(_rank(int(sys.argv[1]))), flush=True)
