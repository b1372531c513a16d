# SPDX-License-Identifier: Apache-2.0
"""Builds `ultima._native` from the C sources: cffi in API mode, so the compiler checks what Python declares, and
against the stable ABI, so one wheel serves every CPython from 3.11 on. setup.py names `ffibuilder`; nothing runs this
file by hand.

The simulator (sim/) is another shell around the same core and no part of the extension; build_simulator.py builds it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDERS = ("core", "ext", "kernels", "cipher", "udp")


def _below_root(pattern: str) -> list[str]:
    """Files of the C folders, as setuptools wants them: relative to the folder of setup.py, and sorted."""
    return sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (HERE / folder).rglob(pattern))


def _taken_by_the_compiler(flag: str) -> bool:
    """Not all compilers know it on all machines."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, "-Werror", flag, "-x", "c", "-c", os.devnull, "-o", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


# They turn most bugs that an attacker could use into a crash: guards on the stack, checked copies where sizes are
# known, and no table of functions that can be written to. The level of FORTIFY_SOURCE that Python was built with is
# undone first, for it may be another.
HARDEN_COMPILE = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
HARDEN_COMPILE += [flag for flag in ("-fstack-clash-protection",) if _taken_by_the_compiler(flag)]
HARDEN_LINK = ["-Wl,-z,relro,-z,now,-z,noexecstack"]

# The kernels' short loops take up to twice as long where one happens to lie across two lines of the cache; which one it
# is changed with every flag and with every line above it.
ALIGN = [flag for flag in ("-falign-functions=64", "-falign-loops=32") if _taken_by_the_compiler(flag)]

# No product may be fused with a sum that follows it, as compilers do unasked where each CPU of a platform can (ARM, not
# x86-64): all hosts of a cluster have the same bits.
EXACT = ["-ffp-contract=off"]

# GCC 12 takes a function without effect whose stores go through addresses that its loop optimizer has rewritten, and
# drops calls of it (seen at -O1, of a loop that sets one field of each element). So what it concludes is not used.
SOUND = [flag for flag in ("-fno-ipa-pure-const", "-fno-ipa-modref") if _taken_by_the_compiler(flag)]

# -UNDEBUG: an assert guards against our own mistakes, and Python's own build flags would take it out.
# Hidden symbols: calls between our files become direct, and nothing else in the process can step in between.
COMPILE = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-UNDEBUG", "-fvisibility=hidden"]
COMPILE += [*EXACT, *SOUND, *HARDEN_COMPILE, *ALIGN]

HEADERS = ("core/account/join.h", "core/face/lanes.h", "udp/driver.h", "udp/relay.h")
HEADERS += ("kernels/kernels.h", "kernels/outer.h", "kernels/quant.h", "kernels/sparse.h")
CDEFS = (HERE / "engine.cdef.h", HERE / "kernels.cdef.h", HERE / "relay.cdef.h")
ffibuilder = FFI()
for cdef in CDEFS:
    ffibuilder.cdef(cdef.read_text(encoding="utf-8"))
ffibuilder.set_source(
    "ultima._native",
    "".join(f'#include "{header}"\n' for header in HEADERS),
    sources=_below_root("*.c"),
    depends=[*_below_root("*.h"), *(str(cdef.relative_to(ROOT)) for cdef in CDEFS)],
    include_dirs=[str(HERE.relative_to(ROOT))],
    extra_compile_args=COMPILE,
    libraries=["dl"],  # libcrypto is found at run time (cipher/libcrypto.h); building takes its headers alone
    extra_link_args=["-pthread", *HARDEN_LINK],
    py_limited_api=True,
)
