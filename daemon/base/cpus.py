# SPDX-License-Identifier: Apache-2.0
"""How many CPUs this daemon may keep busy: what hosts of a job tell each other, and what follows for large ops."""

from __future__ import annotations

import os
from pathlib import Path

from ultima.daemon.base.cgroup import files

CPUS_MAX = 2**16


def cpus(own: Path | None = None, root: Path | None = None) -> int:
    """CPUs that this process may run on, and no more than the time of CPUs that its control groups give it; 1 at least.

    `own` and `root` stand in for the kernel's files, for tests.
    """
    ret = len(os.sched_getaffinity(0))
    for _, words in files("cpu.max", own, root):
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            ret = min(ret, int(words[0]) // int(words[1]))
    return max(1, min(ret, CPUS_MAX))
