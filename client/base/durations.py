# SPDX-License-Identifier: Apache-2.0
"""Durations as people write them: seconds, a timedelta, or text with a unit (500us 250ms 2s 1.5m 1h)."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from ultima.base.errors import InvalidArgument
from ultima.base.warning import warn

Duration = float | int | str | timedelta

DURATION_MAX_S = 86400.0
DEADLINE_MAX_S = 10 * 366 * DURATION_MAX_S
NO_DEADLINE = "none"
UNIT_WANTED_S = 60.0

_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-z]*)\s*")
_SPELLINGS = "seconds, a timedelta, or text such as '250ms', '2s', '1.5m'"
_DURATION_ALLOWED = f"more than 0 and at most 24 h: {_SPELLINGS}"
_DEADLINE_ALLOWED = f"0 to ten years: {_SPELLINGS}; or '{NO_DEADLINE}'"


def duration_s(value: object, field: str) -> float:
    """Seconds of a duration. Raises InvalidArgument for NaN, infinity, zero, negative numbers and more than 24 h."""
    seconds = _seconds(value)
    if seconds is None or not 0 < seconds <= DURATION_MAX_S:
        raise InvalidArgument(field, value, _DURATION_ALLOWED)
    return seconds


def deadline_s(value: object, field: str) -> float:
    """Seconds of a deadline, 0 to ten years; infinity for "none". Raises InvalidArgument for anything else. Warns of a
    whole number above UNIT_WANTED_S without a unit, for whoever writes 250 most often means milliseconds.
    """
    if isinstance(value, str) and value.strip() == NO_DEADLINE:
        return math.inf
    seconds = _seconds(value)
    if seconds is None or not 0 <= seconds <= DEADLINE_MAX_S:
        raise InvalidArgument(field, value, _DEADLINE_ALLOWED)
    if seconds > UNIT_WANTED_S and (isinstance(value, int) or str(value).strip().isdigit()):
        given = str(value).strip()
        warn(f"{field} = {given} is {given} seconds, as it has no unit; write '{given}ms' or '{given}s' to say which")
    return seconds


def _seconds(value: object) -> float | None:
    """Any number, even NaN, that is written in one of the spellings."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)) and match[2] in _DURATION_UNITS:
        return float(match[1]) * _DURATION_UNITS[match[2]]
    return None
