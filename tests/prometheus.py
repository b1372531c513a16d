# SPDX-License-Identifier: Apache-2.0
"""Where Prometheus and promtool are: installed, or unpacked by .ci/prometheus."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tool(name: str) -> str:
    """The path of one of the two. Fails, and says what to do, if it is not there."""
    unpacked = ROOT / "build/prometheus/usr/bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    assert found, f"{name} is not here: run .ci/prometheus, or install the Debian package prometheus"
    return found
