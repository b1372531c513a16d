# SPDX-License-Identifier: Apache-2.0
"""Runs the scripts of `examples/` as ranks beside daemons."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from tests.e2e.hosts import DaemonProcess
from tests.nursery import nursery_of

Rank = tuple[DaemonProcess, Sequence[str], Mapping[str, str]]
"""Its daemon, its arguments, and what is in its environment besides."""


def run_example(script: str, imports: tuple[str, ...], ranks: Sequence[Rank], seconds: float = 120) -> list[str]:
    """What each rank printed; all have ended well. imports: what the nursery has imported."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("ULTIMA", "MASTER"))}
    processes = [
        nursery_of(imports).start(
            f"examples.{script}",
            arguments,
            {**plain, **variables, "ULTIMA_SOCKET": str(daemon.socket), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for daemon, arguments, variables in ranks
    ]
    try:
        said = ["".join(each.communicate(timeout=seconds)) for each in processes]
    finally:
        for each in processes:
            each.kill()
    assert [each.returncode for each in processes] == [0] * len(ranks), "\n".join(said)
    return said
