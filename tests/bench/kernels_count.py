# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the kernels on 64-bit ARM, as qemu runs them one by one: how many for 64 bytes of payload,
beside memcpy's and beside the plain twin's. By hand, after `make check` has provided the toolchain:

    .venv/bin/python -m tests.bench.kernels_count

It says what the code asks of a CPU, not how fast a CPU is.
"""

import subprocess
import tempfile
from pathlib import Path

from tests.c.test_arm import COMPILER, EMULATOR, FOREIGN, TRANSPORT, built_for_arm

PAYLOAD, FEW, MANY = 1440, 4, 12
DTYPES = ("float32", "bfloat16", "float16", "float64", "int32", "int64")
FOLDS = ("sum", "sum, result", "average of 3, result", "place")
OTHERS = {"crc32c": 1, "crc32c-copy": 1, "hadamard-encode": 64, "hadamard-decode": 64, "keep": 1}  # payloads a call


def count(program: Path, kernel: str, instructions: str, calls: int) -> int:
    """Instructions of a whole run."""
    run = [EMULATOR[0], "-cpu", "neoverse-n1", "-singlestep", "-d", "exec,nochain"]
    with tempfile.TemporaryFile() as told:
        subprocess.run([*run, program, kernel, instructions, str(calls)], stderr=told, check=True, timeout=120)
        told.seek(0)
        return sum(line.startswith(b"Trace") for line in told)


def for_64_bytes(program: Path, kernel: str, instructions: str, payloads: int) -> float:
    few, many = (1, 2) if payloads > 1 else (FEW, MANY)
    more = count(program, kernel, instructions, many) - count(program, kernel, instructions, few)
    return more / (many - few) / (payloads * PAYLOAD) * 64


def main() -> None:
    built_for_arm("build/arm64/kernels_digest")
    objects = FOREIGN / "extension.o.d"
    sources = [TRANSPORT.parent / "tests/bench/kernels_count.c", *(objects / "kernels").glob("*.o")]
    program = FOREIGN / "kernels_count"
    build = [*COMPILER, "-std=gnu11", "-O1", "-static", f"-I{TRANSPORT}", "-o", program, *sources]
    subprocess.run([*build, objects / "core/base/err.o", "-lm"], check=True)
    memcpy = for_64_bytes(program, "memcpy", "plain", 1)
    print(f"{'kernel':34} {'plain':>8} {'best':>8}   memcpy / best   plain / best\n{'memcpy':34} {memcpy:8.1f}")
    for kernel in [f"{dtype} {fold}" for dtype in DTYPES for fold in FOLDS] + list(OTHERS):
        plain, best = (for_64_bytes(program, kernel, which, OTHERS.get(kernel, 1)) for which in ("plain", "best"))
        print(f"{kernel:34} {plain:8.1f} {best:8.1f} {memcpy / best:15.2f} {plain / best:14.1f}", flush=True)


if __name__ == "__main__":
    main()
