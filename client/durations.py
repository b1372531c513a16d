# SPDX-License-Identifier: Apache-2.0
"""Durations as people write them: seconds, a timedelta, or text with a unit (500us 250ms 2s 1.5m 1h)."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from .errors import InvalidArgument

Duration = float | int | str | timedelta

DURATION_MAX_S = 86400.0
NO_DEADLINE = "none"

_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-z]*)\s*")
_DURATION_ALLOWED = "more than 0 and at most 24 h: seconds, a timedelta, or text such as '250ms', '2s', '1.5m'"


def duration_s(value: object, field: str) -> float:
    """Seconds of a duration. Raises InvalidArgument for NaN, infinity, zero, negative numbers and more than 24 h."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)) and match[2] in _DURATION_UNITS:
        seconds = float(match[1]) * _DURATION_UNITS[match[2]]
    else:
        raise InvalidArgument(field, value, _DURATION_ALLOWED)
    if not 0 < seconds <= DURATION_MAX_S or math.isnan(seconds):
        raise InvalidArgument(field, value, _DURATION_ALLOWED)
    return seconds


def deadline_s(value: object, field: str) -> float:
    """The same of a deadline, for which "none" is allowed as well: infinity. Raises InvalidArgument."""
    if isinstance(value, str) and value.strip() == NO_DEADLINE:
        return math.inf
    try:
        return duration_s(value, field)
    except InvalidArgument as error:
        raise InvalidArgument(field, value, f"{error.allowed}; or '{NO_DEADLINE}'") from None
