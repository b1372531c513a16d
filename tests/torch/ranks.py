# SPDX-License-Identifier: Apache-2.0
"""Runs cases of `cases.py` as ranks: one process each, with torchrun's variables, never longer than asked."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.hosts import free_port
from tests.nursery import TORCH, Process, nursery_of


@dataclass
class Outcome:
    """What one rank brought back: its exit status, result (None if it printed none), standard output and error."""

    status: int
    result: Any
    output: str
    errors: str
    seconds: float

    def case(self, name: str) -> Any:
        """The result of one shared case; a case that raised fails the test that asks for it, with its trace."""
        assert self.result is not None, f"the rank ended with status {self.status}:\n{self.errors}"
        assert name in self.result["results"], self.result["traces"].get(name, f"no case {name} ran:\n{self.errors}")
        return self.result["results"][name]


def run_ranks(
    case: str,
    world: int,
    sockets: Sequence[Path | str],
    timeout_s: float = 60,
    environment: Mapping[str, str] | None = None,
    module: str = "tests.torch.cases",
) -> list[Outcome]:
    """Starts |world| ranks of |case| of |module|, rank r at socket r modulo their number, and waits for all; kills
    those that linger.
    """
    return wait_for(start_ranks(case, world, sockets, environment, module), timeout_s)


def start_ranks(
    case: str,
    world: int,
    sockets: Sequence[Path | str],
    environment: Mapping[str, str] | None = None,
    module: str = "tests.torch.cases",
) -> list[Process]:
    """The processes of `run_ranks`, each in a process group of its own."""
    port = free_port()
    processes = []
    for rank in range(world):
        variables = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "ULTIMA_SOCKET": str(sockets[rank % len(sockets)]),
            **(environment or {}),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(nursery_of(TORCH).start(module, [case], variables, **pipes))
    return processes


def wait_for(processes: Sequence[Process], timeout_s: float) -> list[Outcome]:
    """What the ranks brought back; those that do not end within |timeout_s| are killed."""
    started = time.monotonic()
    outcomes = []
    try:
        for process in processes:
            left = max(0.1, started + timeout_s - time.monotonic())
            try:
                output, errors = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                errors += f"\nkilled: it did not end within {timeout_s:g} s"
            outcomes.append(Outcome(process.returncode, _last_json(output), output, errors, time.monotonic() - started))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return outcomes


def _last_json(output: str) -> Any:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return None
