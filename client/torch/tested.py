# SPDX-License-Identifier: Apache-2.0
"""Which releases of torch this was tested with. A newer release changes the line below, and nothing else."""

from __future__ import annotations

import re
import warnings

OLDEST, NEWEST = "2.12.1", "2.15.0"
"""`make check` runs the tests of the process group on both, by the lock files that deploy/lock.py writes for them."""


def warn_of(version: str) -> None:
    """Warns when |version| of torch (`torch.__version__`) is a release, by its first two numbers, outside of them."""
    if not _minor(OLDEST) <= _minor(version) <= _minor(NEWEST):
        tested = " to ".join(".".join(map(str, _minor(each))) for each in (OLDEST, NEWEST))
        warnings.warn(
            f"ultima.torch is tested with torch {tested}, and this is torch {version}. A process group relies on what "
            "torch does inside, so compare the results of a short run with those of another backend first.",
            stacklevel=3,
        )


def _minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
