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
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UltimaWarning, stacklevel=level)
