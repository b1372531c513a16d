# SPDX-License-Identifier: Apache-2.0
"""The CPU time that a trainer's own thread spends on a small op, beyond what it waits for the daemon.

    .venv/bin/python -m tests.bench.call_cost     # and a row of `make bench ARGS="--only overhead"`

The engine is played here, in the same thread: it answers each submission before the call that made it returns. So no
call sleeps, nothing depends on another process, and what the player takes is subtracted. What remains is Python, torch,
and the three system calls of an op, on the eventfd, in poll and on the bell, without anyone to wake.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.bench.overhead import faces
from ultima.base.native import ffi, lib
from ultima.base.receipt import Host
from ultima.session.arena import Arena
from ultima.session.attachment import Attachment, Completion, GiftWords
from ultima.session.memory import SharedMap
from ultima.session.op import Op
from ultima.session.rings import COMPLETION_RING_BYTES, SUBMISSION_RING_BYTES, NativeRings
from ultima.settings.config import Settings

CALLS = 200
ROUNDS = 15
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
HOSTS = (Host(0, "127.0.0.1", (0,)), Host(1, "127.0.0.2", (1,)))


class Answering:
    """The rings of a session, with an engine that answers each submission as it comes: all ranks are in the result.

    `played_ns` is the CPU time of the player so far, which is no cost of the client's.
    """

    def __init__(self) -> None:
        self.played_ns = 0
        submissions, completions = _shared(SUBMISSION_RING_BYTES), _shared(COMPLETION_RING_BYTES)
        self._ours = NativeRings([(submissions, completions)], HOSTS, 0, len(HOSTS), bells=(_bell(),))
        self._submissions = ffi.cast("ut_submission_ring *", submissions.address)
        self._completions = ffi.cast("ut_completion_ring *", completions.address)
        self._taken, self._written = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        self._entry = ffi.new("ut_submission *")
        everyone = (1 << len(HOSTS)) - 1
        self._answer = ffi.new(
            "ut_receipt *",
            {"hosts": len(HOSTS), "culprit": 0xFFFF, "status": 1, "full_mask": everyone, "any_mask": everyone},
        )
        self.bell, self._ringer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    lanes = 1

    def portions_of(self, op: Op) -> int:
        return self._ours.portions_of(op)

    def have_room(self, op: Op) -> bool:
        return self._ours.have_room(op)

    def submit(self, op: Op) -> bool:
        """Hands the request in, and answers it."""
        taken = self._ours.submit(op)
        began = time.thread_time_ns()
        assert taken
        assert lib.ut_ring_take_submission(self._submissions, self._completions, self._taken, self._entry) == 1
        self._answer.op_seq, self._answer.agreed_seq = self._entry.op_seq, self._entry.op_seq % 2**32
        assert lib.ut_ring_complete(self._submissions, self._completions, self._written, self._answer) == 0
        self._ringer.send(b"\1")
        self.played_ns += time.thread_time_ns() - began
        return taken

    def take(self) -> Completion | None:
        return self._ours.take()

    def words(self) -> GiftWords:
        return self._ours.words()

    def after_fork(self) -> None:
        self._ours.after_fork()

    def close(self) -> None:
        self._ours.close()


class Player:
    """A connector whose sessions are answered in this process."""

    def __init__(self) -> None:
        self.rings: list[Answering] = []

    @property
    def played_ns(self) -> int:
        """CPU time that was the player's, in all sessions."""
        return sum(rings.played_ns for rings in self.rings)

    def attach(self, settings: Settings, until_ns: int, patience_ns: int, next_op_seq: int | None = None) -> Attachment:
        rings = Answering()
        self.rings.append(rings)
        lifeline, self._other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Attachment(
            rings=rings,
            arena=Arena(_shared(settings.arena_bytes)),
            lifeline=lifeline,
            bell=rings.bell,
            hosts=HOSTS,
            host_index=0,
            rank=0,
            next_op_seq=0,
            bucket_bytes_max=settings.bucket_bytes_max or 1 << 20,
            leave=lambda _seconds, _agree_s, _op: None,
            options={"policy": "none"},
        )


def _bell() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def _shared(nbytes: int) -> SharedMap:
    fd = os.memfd_create("ultima-bench")
    try:
        os.ftruncate(fd, nbytes)
        return SharedMap(fd, nbytes, writable=True)
    finally:
        os.close(fd)


def measure() -> dict[str, float]:
    """Microseconds of CPU a call, by the way to call it; in a process of its own. Raises RuntimeError if it fails."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.call_cost"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"it ended with {ran.returncode}: {ran.stderr[-2000:]}")
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def per_call_us(call: Callable[[], Any], player: Player, calls: int = CALLS) -> float:
    """Microseconds of this thread's CPU time that each of so many calls takes, less what the player took."""
    played, began = player.played_ns, time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - began - (player.played_ns - played)) / calls / 1e3


def played_faces(player: Player) -> dict[str, Callable[[], Any]]:
    """Each way to call a small op, on a torch process group whose job the player answers."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

    import ultima.torch
    from ultima.api import job as job_module
    from ultima.torch.backend import delegate, group
    from ultima.torch.backend.rendezvous import Meeting

    def alone(_owner: Any, store: Any, _rank: int, _size: int, timeout: Any) -> ProcessGroupGloo:
        return ProcessGroupGloo(store, 0, 1, timeout)

    torch.set_num_threads(1)
    with (
        patch.object(group, "meet", lambda *_: Meeting("bench", "0", ())),
        patch.object(delegate, "_Gloo", alone),
        patch.object(job_module, "connector_override", player),
    ):
        dist.init_process_group("ultima", store=HashStore(), rank=0, world_size=len(HOSTS))
    job = ultima.torch.group_of(None).job
    assert job is not None
    return {**faces(), "Job.barrier": lambda: job.barrier(), "dist.barrier": lambda: dist.barrier()}


def _main() -> None:
    import torch.distributed as dist

    player = Player()
    calls = played_faces(player)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for timed in [False] + [True] * ROUNDS:
        for name, call in calls.items():
            us = per_call_us(call, player)
            if timed:
                found[name].append(us)
    dist.destroy_process_group()
    for name, row in found.items():
        print(f"{name:30} {min(row):6.1f} us of CPU at best, {statistics.median(row):6.1f} in the median")
    print(json.dumps({name: min(row) for name, row in found.items()}), flush=True)


if __name__ == "__main__":
    _main()
