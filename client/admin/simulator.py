# SPDX-License-Identifier: Apache-2.0
"""Worlds of the simulator: one job on a network in virtual time, run by the C core that the daemon runs.

Each world has a process of its own (`python -m ultima.admin.simulator NAME=NUMBER...`), because the simulator ends its
process where the core breaks a promise, and because worlds can then use all CPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ultima.base.errors import UltimaError

WORLD_S = 600.0
OPS_EACH, WARM_EACH = 28, 4
"""Ops of a world that are measured, and those before them, by which the job learns its time bounds."""
_PLAIN = "--light"  # only times count: no bytes are made or checked
_HOST = {"send_us": 100}
"""As transport_c/udp has it: what of the link's time a host keeps in its own queue, 32 KiB at least."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the ops of one bucket came to, over all worlds of it. Times in us."""

    ops: int
    p50_us: float
    p99_us: float
    bound_us: float
    """What the busiest link needs for the bytes, headers included: no protocol is faster."""
    missing: float
    """Share of the bytes that were not there at the end."""
    lost: float
    """Share of all packets that the network lost."""
    not_whole: int
    round_trip_us: float = 0.0
    """Of a packet on idle links. An op has two: somebody has to say what may come, in each of its two stages."""

    @property
    def goal_us(self) -> float:
        """The bound and two round trips: what an op may take."""
        return self.bound_us + 2 * self.round_trip_us


def predict(knobs: Mapping[str, int], seed: int, worlds: int) -> Predicted:
    """Runs so many worlds, from |seed| on, with the knobs of transport_c/sim/byhand/knobs.c. Raises UltimaError."""
    with ThreadPoolExecutor(min(worlds, os.cpu_count() or 1)) as threads:
        found = list(threads.map(lambda one: _world({**knobs, "seed": one}), range(seed, seed + worlds)))
    return summed(found)


def summed(worlds: Sequence[Mapping[str, Any]]) -> Predicted:
    """What worlds printed, as one. An op took as long as on its slowest host."""
    ops = [op["hosts"] for world in worlds for op in world["ops"][WARM_EACH:]]
    times = sorted(max(host["elapsed_us"] for host in op) for op in ops)
    expected = sum(host["expected"] for op in ops for host in op)
    return Predicted(
        ops=len(ops),
        p50_us=(times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2,
        p99_us=times[-(-99 * len(times) // 100) - 1],
        bound_us=worlds[0]["judged"]["bound_us"],
        missing=sum(host["missing"] for op in ops for host in op) / max(expected, 1),
        lost=sum(world["lost"] for world in worlds) / max(sum(world["sent"] for world in worlds), 1),
        not_whole=sum(any(host["status"] != 1 for host in op) for op in ops),
        round_trip_us=worlds[0]["judged"]["round_trip_us"],
    )


def _world(knobs: Mapping[str, int]) -> dict[str, Any]:
    given = [f"{name}={value}" for name, value in {**_HOST, **knobs}.items()]
    more = [f"ops={OPS_EACH + WARM_EACH}", f"warm={WARM_EACH}", "rows=1"]
    command = [sys.executable, "-m", __name__, _PLAIN, *given, *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WORLD_S)
    except subprocess.TimeoutExpired:
        raise UltimaError(
            f"one world took longer than {WORLD_S:.0f} s: ask for smaller buckets or fewer hosts"
        ) from None
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        said = done.stderr.strip().splitlines()
        found = {"failure": said[0] if said else f"it ended with status {done.returncode}"}
    if found["failure"]:
        raise UltimaError(f"the simulated world {' '.join(given)} failed: {found['failure']}")
    return found


def main() -> int:
    """Runs one world, which prints JSON."""
    from ultima._simulator import ffi, lib

    words = [ffi.new("char[]", word.encode()) for word in sys.argv[1:]]
    return int(lib.ut_simulate(len(words), ffi.new("char *[]", words)))


if __name__ == "__main__":
    sys.exit(main())
