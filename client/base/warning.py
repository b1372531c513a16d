# SPDX-License-Identifier: Apache-2.0
"""The one category of what this library warns of while it works, for `warnings.filterwarnings`, and how it warns."""

from __future__ import annotations

import sys
import warnings

_INSIDE = {__name__.partition(".")[0], "torch"}


class UltimaWarning(RuntimeWarning):
    """Something that a person should know while the program goes on: UDP is blocked, a rank is waited for."""


def warn(text: str) -> None:
    """Warns of |text| as an UltimaWarning at the line of the program that called this library, or torch, however deep
    the call is. A thread of the library's own has no such line: then it is the one at which the thread began.
    """
    warnings.warn(text, UltimaWarning, stacklevel=_level())


def renamed(old: str, new: str) -> None:
    """Warns, at that line too, that |old| is called |new| now. Python shows it in a program's own file and in tests."""
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=_level())


def _level() -> int:
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    return level
