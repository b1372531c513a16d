# SPDX-License-Identifier: Apache-2.0
"""What the client and the C must compute alike: draws of ranks, and halves as they are computed with.

The halves (float16, bfloat16) are computed with in float32 and rounded once, as in `transport_c/kernels`.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import numpy.typing as npt

from ultima.base.buffers import AnyArray
from ultima.base.words import BFLOAT16, FLOAT16, DType


def splitmix64(x: int) -> int:
    """The 64 bits that a seed is mixed into."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def picks(seed: int, op_seq: int, world_size: int, count: int, alive: Container[int] | None = None) -> list[int]:
    """The `count` different ranks that are drawn for an op from a shared seed, in order (`ut_picks`); those that are
    not `alive` are skipped, as long as there are others.
    """
    there = [rank for rank in range(world_size) if alive is None or rank in alive]
    drawn: list[int] = []
    for draw in range(256):
        if len(drawn) == min(count, len(there)):
            break
        mixed = splitmix64(seed ^ op_seq * 0xD1342543DE82EF95 % 2**64 ^ draw << 56)
        rank = (mixed >> 32) * world_size >> 32
        if rank in there and rank not in drawn:
            drawn.append(rank)
    rest = [rank for rank in there if rank not in drawn]
    return drawn + rest[: min(count, len(there)) - len(drawn)]


def bfloat16_bits(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """float32 values as bfloat16, rounded to the nearest (ties to even), held as uint16. A NaN stays a NaN.

    Every constant has a type: numpy 1 makes a float of an unsigned scalar and a plain int.
    """
    wide = np.array(values, dtype=np.float32, order="C")
    bits = wide.view(np.uint32)
    high = bits >> np.uint32(16)
    rounded = (bits.astype(np.uint64) + np.uint64(0x7FFF) + (high & np.uint32(1))) >> np.uint64(16)
    return np.where(np.isnan(wide), high | np.uint32(0x40), rounded).astype(np.uint16)


def bfloat16_values(bits: AnyArray) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 elements held as uint16."""
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def widened(array: AnyArray, kind: DType) -> AnyArray:
    """In the type that is computed in: halves as float32, all others as they are."""
    if kind is BFLOAT16:
        return bfloat16_values(array)
    return array.astype(np.float32) if kind is FLOAT16 else array


def narrowed(array: AnyArray, kind: DType) -> AnyArray:
    """Back from it, rounded to the nearest."""
    if kind is BFLOAT16:
        return bfloat16_bits(array)
    return array.astype(kind.numpy, copy=False)
