# SPDX-License-Identifier: Apache-2.0
"""Builds `ultima._simulator`, by which `ultima simulate` runs worlds of the simulator (sim/) where Ultima is installed:
the core, unchanged, around a network in virtual time; and the network inside one process (lan/) that `ultima.testing`
drives. The daemon and trainers never load it. Structs that cross into Python are those of `ultima._native`.

It is a module of its own, so that what allocates, draws dice and ends the process on a mistake is in nothing else.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDERS = ("core", "ext", "kernels", "cipher", "sim", "lan")
# The rest of sim/byhand and main.c are for tests: tables of worlds, and the simulator's own parts.
BY_HAND = ("study.c", "knobs.c", "judge.c")


def _below_root(pattern: str) -> list[str]:
    """Files of the C folders, as setuptools wants them: relative to the folder of setup.py, and sorted."""
    found = (path for folder in FOLDERS for path in (HERE / folder).rglob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def _wanted(path: str) -> bool:
    parts = Path(path).parts
    return parts[-1] != "main.c" and ("byhand" not in parts or parts[-1] in BY_HAND)


ffibuilder = FFI()
engine = runpy.run_path(str(HERE / "build_engine.py"))
ffibuilder.include(engine["ffibuilder"])
ffibuilder.cdef("int ut_simulate(int count, char **arguments);")
ffibuilder.cdef((HERE / "lan/lan.cdef.h").read_text(encoding="utf-8"))
ffibuilder.set_source(
    "ultima._simulator",
    "".join(f'#include "{header}"\n' for header in engine["HEADERS"])
    + """
#include <malloc.h>
#include "lan/lan.h"
#include "sim/sim.h"

static int ut_simulate(int count, char **arguments)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* engines get fresh pages, of which they touch few */
    int ret = sim_study_main(count, arguments);
    fflush(stdout);
    return ret;
}
""",
    sources=[path for path in _below_root("*.c") if _wanted(path)],
    depends=_below_root("*.h"),
    include_dirs=[str(HERE.relative_to(ROOT))],
    # -UNDEBUG: asserts are how the core says that a world went wrong.
    extra_compile_args=[
        *("-O2", "-std=gnu11", "-Wall", "-Wextra", "-UNDEBUG", "-fvisibility=hidden"),
        *engine["EXACT"],
        *engine["SOUND"],
    ],
    libraries=["dl", "m"],
    extra_link_args=["-pthread", "-Wl,-z,relro,-z,now,-z,noexecstack"],
    py_limited_api=True,
)
