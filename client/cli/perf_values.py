# SPDX-License-Identifier: Apache-2.0
"""What the ranks of `ultima perf` contribute, and what must come out: small whole numbers, so that the check is exact.

Sums of up to 256 ranks stay within what bfloat16 can count. Averages are compared with the correctly rounded quotient,
integer ones with the quotient rounded toward zero, as the engine promises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# nccl-tests' names, what Ultima calls them, bytes of one element, numpy's type (bfloat16 as its bits).
TYPES: dict[str, tuple[str, int, type[np.generic]]] = {
    "float": ("float32", 4, np.float32),
    "double": ("float64", 8, np.float64),
    "half": ("float16", 2, np.float16),
    "bfloat16": ("bfloat16", 2, np.uint16),
    "int32": ("int32", 4, np.int32),
    "int64": ("int64", 8, np.int64),
}
SYNONYMS = {"float32": "float", "float64": "double", "float16": "half", "int": "int32"}
OPS = ("sum", "prod", "max", "min", "avg")
EXACT_SUM_MAX = 256
LEVELS = {"int16": 32767, "int8": 127, "int4": 7}
"""The largest code of each form of few bits."""


def contribution(rank: int, world: int, count: int, type_name: str, op: str) -> Array:
    """What |rank| gives: |count| elements of the type, as numpy holds it."""
    return _encode(_whole(rank, world, np.arange(count), op), type_name)


def expected(world: int, count: int, type_name: str, op: str) -> Array:
    """What every rank must hold afterwards. All values repeat with the index, so one period is computed and tiled."""
    period = _modulus(world) * world
    index = np.arange(min(count, period))
    parts = (_whole(rank, world, index, op) for rank in range(world))
    result = next(parts)
    for part in parts:
        match op:
            case "sum" | "avg":
                result = result + part
            case "prod":
                result = result * part
            case "min":
                result = np.minimum(result, part)
            case _:
                result = np.maximum(result, part)
    if op == "avg":
        result = result // world if type_name.startswith("int") else result / world
    return np.resize(_encode(result, type_name), count)


def wrong(got: Array, want: Array, within: float = 0.0) -> int:
    """Elements that differ, bit for bit, or by more than |within| if that is not 0."""
    return int(np.count_nonzero(~(np.abs(got - want) <= within) if within else got != want))


def slack(world: int, op: str, wire: str, answer: str | None) -> float:
    """By how much a result may be off whose contributions and answers were rounded at random: one step of each. A step
    is the block's largest value over the largest code, a sixteenth more at most."""
    largest = _modulus(world) - 1
    ranks = world if op == "sum" else 1
    return ranks * largest * 17 / 16 * (1 / LEVELS[wire] + 2 / LEVELS[answer or wire])


def _modulus(world: int) -> int:
    return max(2, min(32, EXACT_SUM_MAX // world + 1))


def _whole(rank: int, world: int, index: Array, op: str) -> Array:
    if op == "prod":
        return np.where(index % world == rank, 2, 1)
    return (index + 3 * rank) % _modulus(world)


def _encode(values: Array, type_name: str) -> Array:
    if type_name == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        # Round to nearest, ties to even: no value here is a NaN or near the largest.
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return values.astype(TYPES[type_name][2])
