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


def core_objects(folder: str = "core") -> dict[str, Path]:
    """The C files of the core, as `room/name.c`, and the object of each, compiled without optimization; or of `ext`."""
    top = Path("build/objects.o.d") / folder
    made = [path for line in make("objects").split() if (path := Path(line)).is_relative_to(top)]
    return {str(path.with_suffix(".c").relative_to(top)): TRANSPORT / path for path in made}


def simulator_objects() -> dict[str, Path]:
    """The simulator's own C files, as `room/name.c`, and the object of each."""
    make("sim")
    folder, made = TRANSPORT / "sim", BUILD / "sim.o.d/sim"
    files = [str(path.relative_to(folder)) for path in folder.rglob("*.c")]
    return {file: (made / file).with_suffix(".o") for file in files}


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
