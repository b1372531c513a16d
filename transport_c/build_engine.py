# SPDX-License-Identifier: Apache-2.0
"""Builds `ultima._native` from the C sources: cffi in API mode, so the compiler checks what Python declares, and
against the stable ABI, so one wheel serves every CPython from 3.11 on. setup.py names `ffibuilder`; nothing runs this
file by hand.

The simulator (sim/) is a test's shell around the same core and no part of the extension.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDERS = ("core", "kernels", "udp")


def _below_root(pattern: str) -> list[str]:
    """Files of the C folders, as setuptools wants them: relative to the folder of setup.py, and sorted."""
    return sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (HERE / folder).glob(pattern))


ffibuilder = FFI()
ffibuilder.cdef((HERE / "engine.cdef.h").read_text(encoding="utf-8"))
ffibuilder.set_source(
    "ultima._native",
    '#include "udp/driver.h"\n#include "kernels/kernels.h"\n',
    sources=_below_root("*.c"),
    depends=[*_below_root("*.h"), str((HERE / "engine.cdef.h").relative_to(ROOT))],
    include_dirs=[str(HERE.relative_to(ROOT))],
    # -UNDEBUG: an assert guards against our own mistakes, and Python's own build flags would take it out.
    # Hidden symbols: calls between our files become direct, and nothing else in the process can step in between.
    extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-UNDEBUG", "-fvisibility=hidden"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
