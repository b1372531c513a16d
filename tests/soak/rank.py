# SPDX-License-Identifier: Apache-2.0
"""One rank of one short job of the soak, in a process of its own.

    python -m tests.soak.rank KIND END JOB RANK WORLD SOCKET RENDEZVOUS

KIND is what the job does (`KINDS`), END how this rank ends: `close` leaves in good order, `drop` ends the process with
the job open, `kill` ends it by SIGKILL in the middle of an op. The exit status is 0 when all values were right, 3 when
the job ended early because another rank had gone, which a job with a killed rank may.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import ultima
from ultima.coded import Plan

STEPS = 6
COUNT = 20_000
LEFT_EARLY = 3
PLAN = Plan(3, stragglers=1)
JOIN_S, OP_S = 60, 20
# What a rank may meet because another one has been killed.
GONE = (ultima.RanksGone, ultima.DeadlineExceeded, ultima.JoinTimeout, ultima.Insufficient)


class Rank(NamedTuple):
    """Whose turn it is."""

    job: ultima.Job
    whole: bool
    """Nobody of the job is killed, so all values must be whole."""


def averaged(rank: Rank, step: int, mode: str = "bounded") -> None:
    """A dense sum of powers of two, whose value says who is in it."""
    data = np.full(COUNT, float(1 << rank.job.rank), np.float32)
    receipt = rank.job.allreduce(data, "sum", mode=mode, deadline=OP_S)
    if rank.whole:
        assert receipt.complete, receipt
        assert (data == (1 << rank.job.world_size) - 1).all(), (step, data[:4])


def reliable(rank: Rank, step: int) -> None:
    """Sums that wait, and a broadcast."""
    averaged(rank, step, "reliable")
    data = np.full(100, 7.0 * step if rank.job.rank == 0 else -1.0)
    rank.job.broadcast(data, 0, deadline=OP_S)
    assert (data == 7.0 * step).all(), data[:4]


def best_effort(rank: Rank, step: int) -> None:
    """Sums that repair nothing: who is in an element is told by its value, and nobody can be in it twice."""
    data = np.full(COUNT, float(1 << rank.job.rank), np.float32)
    rank.job.allreduce(data, "sum", mode="best_effort", deadline=OP_S)
    assert (data < 1 << rank.job.world_size).all() and (data >= 1).all(), data[:4]


def partial(rank: Rank, step: int) -> None:
    """A gradient into a slot. A stale one is added to the next, so the sum counts gradients, at least one a rank."""
    world = rank.job.world_size
    data = np.full(COUNT, float(world), np.float32)
    receipt = rank.job.allreduce(data, "avg", deadline=OP_S)
    if rank.whole and receipt.complete:
        assert (data == data[0]).all() and receipt.included <= data[0] <= world * STEPS, (receipt, data[:4])
        assert data[0] == int(data[0]), data[:4]


def coded(rank: Rank, step: int) -> None:
    """Each part of the data has its digit in base 4."""
    points = 4.0 ** np.arange(3) + step
    mine = sum(row[2] * points[row[0] : row[1]].sum() for row in PLAN.allocation(rank.job.rank, 3))
    data = np.full(COUNT, mine)
    try:
        rank.job.coded(PLAN).reduce(data, step, deadline=OP_S)
    except ultima.Behind:
        return  # the others went on without this rank, as they may
    assert (data == points.sum()).all(), data[:4]


def sparse(rank: Rank, step: int) -> None:
    """Entries that no other rank has."""
    indices = np.arange(rank.job.rank, COUNT, 97 * rank.job.world_size, dtype=np.uint32)
    out = np.zeros(COUNT, np.float32)
    values = np.full((indices.size, 1), 1.0 + rank.job.rank, np.float32)
    receipt = rank.job.allreduce_sparse(indices, values, out, op="sum", deadline=OP_S)
    if rank.whole:
        assert receipt.complete and (out[indices] == 1.0 + rank.job.rank).all(), receipt


class Kind(NamedTuple):
    """A sort of job: what each step does, with which options, and on which hosts its ranks run."""

    step: Callable[[Rank, int], None]
    options: dict[str, object]
    places: tuple[int, ...]


KINDS = {
    "bounded": Kind(averaged, {}, (0, 1, 2)),
    "reliable": Kind(reliable, {}, (0, 1, 2)),
    "best_effort": Kind(best_effort, {}, (1, 2)),
    "several ranks a host": Kind(averaged, {}, (2, 0, 0)),
    "one host": Kind(averaged, {}, (1, 1)),
    "solo": Kind(partial, {"policy": "solo"}, (0, 1)),
    "majority": Kind(partial, {"policy": "majority"}, (1, 0, 2)),
    "quorum": Kind(partial, {"policy": "quorum", "quorum": 2}, (2, 1, 0)),
    "probe": Kind(partial, {"policy": "probe"}, (0, 2)),
    "coded": Kind(coded, dict(PLAN.options()), (0, 1, 2)),
    "sparse": Kind(sparse, {}, (2, 1)),
}


def main(kind: str, end: str, name: str, rank: str, world: str, path: str, rendezvous: str) -> int:
    """See the module."""
    what = KINDS[kind]
    options = ultima.Options(**what.options) if what.options else None  # type: ignore[arg-type]
    whole = not name.endswith("-killed")
    try:
        job = ultima.connect(
            name, int(rank), int(world), Path(path), rendezvous, timeout=JOIN_S, arena="1M", options=options
        )
        for step in range(STEPS):
            if end == "kill" and step == STEPS // 2:
                # Somewhere in this step or the next ones, or between two.
                threading.Timer(random.uniform(0.0, 0.02), os.kill, (os.getpid(), signal.SIGKILL)).start()
            what.step(Rank(job, whole), step)
        if end == "kill":
            threading.Event().wait()
        if end == "drop":
            os._exit(0)
        job.close()
    except GONE as error:
        if whole:
            raise
        print(error, flush=True)
        os._exit(LEFT_EARLY)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
