# SPDX-License-Identifier: Apache-2.0
"""A trainer in a process of its own that dies at a chosen step, for test_trouble.py. Not a test.

    python -m tests.e2e.trainer STEP JOB RANK WORLD SOCKET RENDEZVOUS

It says "ready" once it is at the step before, waits for a line on standard input, goes on, and kills itself.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import NoReturn

import numpy as np

import ultima
from tests.e2e.rings import rings_of

# In the order in which a trainer passes them.
STEPS = ("attached", "joined", "submitted", "half way", "completed", "received")
LARGE = 1 << 20


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive")


def await_word() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main(step: str, job_name: str, rank: str, world: str, path: str, rendezvous: str) -> None:
    """Joins, does what comes before `step`, and dies there."""
    if step == "attached":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(os.path.join(os.path.dirname(path), "attach.sock"))
            line.send(b'{"v": 4, "arena_bytes": 65536, "pid": 1}')
            line.recv(4096)
            await_word()
            die()
    job = ultima.connect(job_name, int(rank), int(world), path, rendezvous, timeout=30, arena="16M")
    data = np.full(LARGE, 1.0 + int(rank), dtype=np.float32)
    await_word()
    if step == "joined":
        die()
    handle = job.allreduce_async(data, "sum", deadline=20)
    if step == "submitted":
        die()
    if step == "half way":
        handle.wait("1ms") if handle.done() else None
        die()
    if step == "completed":
        # The engine is through, but nobody has taken the completion out of the ring.
        while not any(completions.head > 0 for _, completions in rings_of(job)):
            pass
        die()
    handle.wait()
    die()


if __name__ == "__main__":
    main(*sys.argv[1:])
