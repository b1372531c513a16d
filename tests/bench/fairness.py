# SPDX-License-Identifier: Apache-2.0
"""What a job pays for a neighbour on the same daemon that asks for all it can: 64 ops of 512 MiB at once.

A small job does ops of 64 bytes, alone and beside the other one; meanwhile `ultima status` is asked. On one daemon, and
on two that meet on loopback, where links and CPU are shared as well as engines. Its ops come one after the other, which
keeps a core busy of which the engines are short; or with a pause in between, which leaves what the engines cost it.

    make bench ARGS="--only fairness"

This module is also both ranks: `small` takes its measure, `hog` keeps each lane's ring full until its input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
SMALL_BYTES = 64
HOG_BYTES = 512 << 20
STATUS_MIN = 20
WARM_OPS = 50
PATIENCE_S = 120.0
"""For a program to start, or to end once it was told to."""


@dataclass
class Found:
    """Microseconds of each op of the small job, and milliseconds of each answer of status."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    status_ms: list[float] = field(default_factory=list)
    big_ops: int = 0
    """That the hog finished meanwhile, on its first rank."""


def hog_bytes(hosts: int) -> int:
    """Largest power of two, 512 MiB at most, of which arenas and engines of all hosts fit in a half of what is free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    size = HOG_BYTES
    while size > 1 << 20 and 8 * size * hosts > free // 2:
        size //= 2
    return size


def measure(hosts: int, ops: int, seconds: float, size: int, pause_s: float) -> Found:
    """Runs on daemons of its own: `ops` small ops alone, and as many beside a hog with ops of `size` bytes, or what
    `seconds` allow, `pause_s` seconds after each other. Raises RuntimeError when a rank fails.
    """
    from ultima.demo.cluster import Cluster

    limits = {"ARENA_BYTES": 2 * size, "BUCKET_BYTES": size}
    limits |= dict.fromkeys(("MEMORY_BYTES", "MEMORY_BYTES_PER_UID", "MEMORY_BYTES_PER_JOB"), 1 << 40)
    found = Found()
    with (
        Cluster() as cluster,
        patch.dict(os.environ, {f"ULTIMAD_LIMITS_{name}": str(max(value, 1 << 26)) for name, value in limits.items()}),
    ):
        cluster.start_daemons(hosts)
        found.alone = _small(cluster.sockets, "alone", ops, seconds, pause_s, None)
        with _hogs(cluster.sockets, size) as hogs:
            # Apart, for asking keeps two processes busy that an operator has seldom, and the cores are few.
            found.beside = _small(cluster.sockets, "beside", ops, seconds, pause_s, None)
            _small(cluster.sockets, "asked", ops, seconds, pause_s, found.status_ms)
        found.big_ops = json.loads(hogs[0])
    return found


def _start(kind: str, job: str, sockets: list[Path], *arguments: object) -> list[subprocess.Popen[str]]:
    """A rank on each daemon."""
    from ultima.admin.calls import get_status

    port = get_status(str(sockets[0])).grpc_port
    shared = [kind, job, len(sockets), f"127.0.0.1:{port}" if len(sockets) > 1 else "", *arguments]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.fairness", *map(str, (path, rank, *shared))],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank, path in enumerate(sockets)
    ]  # fmt: skip


def _end(ranks: list[subprocess.Popen[str]], seconds: float) -> list[str]:
    """Lets them end, and returns what each said last."""
    try:
        said = [rank.communicate("", timeout=seconds)[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {seconds:g} s") from None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"the ranks ended with {[rank.returncode for rank in ranks]}")
    return [words.splitlines()[-1] for words in said]


def _small(
    sockets: list[Path], job: str, ops: int, seconds: float, pause_s: float, status_ms: list[float] | None
) -> list[float]:
    from ultima.admin.calls import get_status

    ranks = _start("small", job, sockets, ops, seconds, pause_s)
    while status_ms is not None and (ranks[0].poll() is None or len(status_ms) < STATUS_MIN):
        began = time.perf_counter()
        get_status(str(sockets[0]), timeout_s=PATIENCE_S)
        status_ms.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.05)
    times: list[float] = json.loads(_end(ranks, seconds + PATIENCE_S)[0])
    return times


@contextmanager
def _hogs(sockets: list[Path], size: int) -> Iterator[list[str]]:
    """Yields what they say at the end, which is there then."""
    said: list[str] = []
    ranks = _start("hog", "hog", sockets, size)
    try:
        for rank in ranks:
            assert rank.stdout is not None
            if rank.stdout.readline() != "busy\n":
                raise RuntimeError("the hog does not come up")
        yield said
    except BaseException:
        for rank in ranks:
            rank.kill()
        raise
    said += _end(ranks, PATIENCE_S)


def _small_rank(
    socket: Path, rank: int, job: str, world: int, rendezvous: str, ops: int, seconds: float, pause_s: float
) -> Any:
    import numpy as np

    import ultima

    data, times = np.zeros(SMALL_BYTES // 4, np.float32), []
    with ultima.connect(job, rank, world, socket, rendezvous or None, timeout=60, deadline=60, arena="1M") as own:
        begun = time.perf_counter()
        for done in range(WARM_OPS + ops):
            # All stop behind the same op: it carries whether somebody's time is up.
            data[:] = time.perf_counter() - begun > seconds
            began = time.perf_counter_ns()
            own.allreduce(data, "sum")
            if done >= WARM_OPS:
                times.append((time.perf_counter_ns() - began) / 1e3)
            if data[0]:
                break
            if pause_s:
                time.sleep(pause_s)
    return times


def _hog_rank(socket: Path, rank: int, job: str, world: int, rendezvous: str, size: int) -> Any:
    from select import select

    from tests.hostile.trainer import RING_ENTRIES, HostileTrainer
    from ultima._native import lib

    busy = False
    with HostileTrainer(socket, 2 * size) as hog:
        # All ops lie in the same memory, which no polite client would do.
        lanes = hog.lanes[: hog.join(job, rank, world, rendezvous, bucket_bytes_max=size).lanes]
        written, finished = [0] * len(lanes), [0] * len(lanes)
        hog.arena[:] = bytes(2 * size)
        while not select([sys.stdin], [], [], 0.001)[0]:
            for at, lane in enumerate(lanes):
                finished[at] += sum(1 for _ in lane.receipts())
                fresh = finished[at] + RING_ENTRIES // len(lanes) - written[at]
                for _ in range(fresh):
                    minute = time.monotonic_ns() + 600 * 10**9
                    lane.write(op_seq=written[at], count=size // 4, dst=size, mode=lib.UT_RELIABLE, deadline_ns=minute)
                    written[at] += 1
                if fresh:
                    lane.ring()
            if not busy:
                print("busy", flush=True)
            busy = True
    return sum(finished)


if __name__ == "__main__":
    place, number, kind, name, size_of_world, meeting, *rest = sys.argv[1:]
    run: Any = {"small": _small_rank, "hog": _hog_rank}[kind]
    answer = run(Path(place), int(number), name, int(size_of_world), meeting, *map(json.loads, rest))
    print(json.dumps(answer), flush=True)
