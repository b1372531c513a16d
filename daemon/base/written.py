# SPDX-License-Identifier: Apache-2.0
"""How the values of options are written, in the configuration file and in the environment, and how sizes are shown."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("allowed: a number")
    return value


def _bytes(value: object) -> object:
    """Accepts 65536, "64K", "512M", "4G" (powers of 1024)."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+)\s*([KMGT]?)(i?B)?", value.strip(), re.IGNORECASE)
        if match is None:
            raise ValueError('allowed: bytes as a number, or like "64K", "512M", "4G"')
        return int(match[1]) * _UNITS[match[2].upper()]
    return _number(value)


def shown_bytes(value: int) -> str:
    """As a limit is written: the largest number of whole units that is not more than `value`."""
    unit = next(unit for unit in ("T", "G", "M", "K", "") if value >= 16 * _UNITS[unit] or not unit)
    return f"{value // _UNITS[unit]}{unit}"


def listed(value: object) -> object:
    """The parts of a list with commas, as an environment variable holds it; anything else as it is."""
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Int = Annotated[int, BeforeValidator(_number)]
Seconds = Annotated[float, BeforeValidator(_number)]
Bytes = Annotated[int, BeforeValidator(_bytes)]
