# SPDX-License-Identifier: Apache-2.0
"""What an op must yield, in plain numpy: the arithmetic of the fake daemon, and the oracle of tests.

The halves (float16, bfloat16) are added in float32 and rounded once, integers wrap, integer averages round toward zero:
as in `transport_c/kernels`. Ranks are added in the order given; the engine may add in another, so compare floats with a
tolerance.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from ultima.base.buffers import AnyArray
from ultima.base.words import BFLOAT16, FLOAT16, DType


def reduce_arrays(arrays: Sequence[AnyArray], kind: DType, op: str) -> AnyArray:
    """`op` over arrays of `kind`, element by element; the result is of `kind` too (bfloat16 as uint16)."""
    with np.errstate(all="ignore"):
        total = widened(arrays[0], kind).copy()
        for array in arrays[1:]:
            other = widened(array, kind)
            match op:
                case "sum" | "avg":
                    total += other
                case "min":
                    np.minimum(total, other, out=total)
                case "max":
                    np.maximum(total, other, out=total)
                case "prod":
                    total *= other
                case _:
                    raise ValueError(f"op is {op!r}; allowed: sum, avg, min, max, prod")
        if op == "avg":
            total = _divided(total, len(arrays))
        return narrowed(total, kind)


def partial_result(
    slots: Sequence[AnyArray | None], kind: DType, divisor: str, world_size: int | None = None
) -> AnyArray | None:
    """What an op of a job with a policy yields from the ranks' slots, None where one was empty: their sum, divided by
    the number of "contributors", of all ranks ("world"), or not at all ("none"). None if all were empty.
    """
    given = [slot for slot in slots if slot is not None]
    if not given:
        return None
    parts = {"contributors": len(given), "world": world_size or len(slots), "none": 1}[divisor]
    with np.errstate(all="ignore"):
        total = widened(given[0], kind).copy()
        for array in given[1:]:
            total += widened(array, kind)
        return narrowed(_divided(total, parts) if parts > 1 else total, kind)


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


def collective_result(
    collective: str, rank: int, arrays: Sequence[AnyArray], kind: DType, op: str = "", root: int = 0
) -> AnyArray:
    """What `rank` must hold after a collective over `arrays`, flat, one of each rank in order.

    Of a barrier its bytes, which say nothing.
    """
    if collective in ("allreduce", "reduce_scatter"):
        whole = reduce_arrays(arrays, kind, op)
        return whole if collective == "allreduce" else np.split(whole, len(arrays))[rank]
    if collective == "all_gather":
        return np.concatenate(arrays)
    if collective == "all_to_all":
        return np.concatenate([np.split(array, len(arrays))[rank] for array in arrays])
    return arrays[root]


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


def nonfinite_count(array: AnyArray, kind: DType) -> int:
    """NaN and Inf elements; 0 for integers."""
    wide = widened(array, kind)
    return 0 if wide.dtype.kind == "i" else int(array.size - np.count_nonzero(np.isfinite(wide)))


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


def _divided(total: AnyArray, divisor: int) -> AnyArray:
    if total.dtype.kind != "i":
        mean: AnyArray = total / total.dtype.type(divisor)
        return mean.astype(total.dtype, copy=False)
    down: AnyArray = total // divisor
    down += (total < 0) & (down * divisor != total)
    return down
