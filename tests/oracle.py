# SPDX-License-Identifier: Apache-2.0
"""What an op must yield, in plain numpy.

The halves (float16, bfloat16) are added in float32 and rounded once, integers wrap, integer averages round toward zero:
as in `transport_c/kernels`. Ranks are added in the order given; the engine may add in another, so compare floats with a
tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ultima.base.buffers import AnyArray
from ultima.base.reference import narrowed, widened
from ultima.base.words import DType


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


def _divided(total: AnyArray, divisor: int) -> AnyArray:
    if total.dtype.kind != "i":
        mean: AnyArray = total / total.dtype.type(divisor)
        return mean.astype(total.dtype, copy=False)
    down: AnyArray = total // divisor
    down += (total < 0) & (down * divisor != total)
    return down
