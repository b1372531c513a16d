# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon's limits fit what its service may hold: MemoryMax in systemd's words, memory.max of a cgroup v2.

Were they larger, the kernel would kill the daemon, and every job with it, when its trainers used what they were
promised. So a limit that somebody has set and that does not fit keeps the daemon from starting; the default is made to
fit.
"""

from __future__ import annotations

from pathlib import Path

from ultima.daemon.base.cgroup import files
from ultima.daemon.base.config import DaemonConfig, EngineOptions
from ultima.daemon.base.errors import StartupError
from ultima.daemon.base.written import shown_bytes

BASE_BYTES = 256 * 2**20  # Python with gRPC, and the engines' own tables
LEAST_BYTES = 64 * 2**20  # with less to give away there is no use in a daemon
BUFFERS = (8 * 2**20, 512 * 2**10)  # which the engine asks for by itself: to receive, to send
SOCKETS_OF_LANE = 2
KERNEL_COSTS = 2  # a socket's buffer is charged for at twice its size


def base_bytes(engine: EngineOptions) -> int:
    """What the daemon needs itself, the kernel's buffers of its sockets included."""
    receive = engine.receive_buffer_bytes or BUFFERS[0]
    send = engine.send_buffer_bytes or BUFFERS[1]
    return BASE_BYTES + engine.lanes * SOCKETS_OF_LANE * KERNEL_COSTS * (receive + send)


def memory_max(own: Path | None = None, root: Path | None = None) -> tuple[int, Path] | None:
    """The least memory.max that holds for this process, and the file that says so; None if nothing limits it.

    Those above it limit it too. `own` and `root` stand in for the kernel's files, for tests.
    """
    found = ((int(words[0]), file) for file, words in files("memory.max", own, root) if words and words[0].isdigit())
    return min(found, default=None)


def fitted(config: DaemonConfig, found: tuple[int, Path] | None) -> DaemonConfig:
    """The options with limits.memory_bytes as it holds; `found` is what memory_max() said. Raises StartupError."""
    if found is None:
        return config
    limits, base = config.limits, base_bytes(config.engine)
    most, file = found
    room = most - base
    if room < LEAST_BYTES:
        raise StartupError(
            f"{file} = {most}: the daemon needs {base} bytes itself and {LEAST_BYTES} to give away: allowed: "
            f"{base + LEAST_BYTES} or more (MemoryMax of the service)"
        )
    if limits.memory_bytes <= room:
        return config
    if "memory_bytes" in limits.model_fields_set:
        raise StartupError(
            f"limits.memory_bytes = {limits.memory_bytes}: with the {base} that the daemon needs itself more than "
            f"{file} = {most}: allowed: {room} ({shown_bytes(room)}) or less, or a higher MemoryMax of the service"
        )
    return config.model_copy(update={"limits": limits.model_copy(update={"memory_bytes": room})})
