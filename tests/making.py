# SPDX-License-Identifier: Apache-2.0
"""Builds targets of transport_c/Makefile. Tests that run beside each other share its build folder, so one builds at a
time."""

import fcntl
import subprocess
from functools import cache
from pathlib import Path

TRANSPORT = Path(__file__).resolve().parents[1] / "transport_c"
BUILD = TRANSPORT / "build"
SECONDS = 500.0


def objects(folder: str) -> dict[str, Path]:
    """The C files of `core`, `ext`, or the simulator (`sim`), as `room/name.c`, and the object of each."""
    make("sim")
    files = [str(path.relative_to(TRANSPORT / folder)) for path in (TRANSPORT / folder).rglob("*.c")]
    return {file: (BUILD / "sim.o.d" / folder / file).with_suffix(".o") for file in files}


@cache
def make(*targets: str) -> str:
    """What `make` prints for |targets|, once they are up to date. Raises RuntimeError with what it complains of."""
    command = ["make", "--no-print-directory", "--silent", "-j2", "-C", str(TRANSPORT), *targets]
    with (TRANSPORT / "Makefile").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"make {' '.join(targets)}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return done.stdout
