# SPDX-License-Identifier: Apache-2.0
"""How a rank combines the gradients that it gave and that no op has taken yet (docs/papers.md, sections 2.4 and 3.2).

    sum        eager-SGD: they are added up
    weighted   RNA: their mean with weights t - t_oldest + 1, t the rank's own step; those more than eta steps older
               than the newest are dropped

Pure functions over flat numpy arrays of one type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ultima.base.buffers import AnyArray
from ultima.base.reference import narrowed, widened
from ultima.base.words import BFLOAT16, FLOAT16, DType

LOCAL_REDUCES = ("sum", "weighted")


def dropped(steps: Sequence[int], eta: int) -> int:
    """How many of these steps, ascending, are more than `eta` older than the last one."""
    return sum(1 for step in steps if steps[-1] - step > eta)


def weights(steps: Sequence[int]) -> list[int]:
    """RNA's weight of each step, ascending: 1 for the oldest, and one more for each step that it is newer."""
    return [step - steps[0] + 1 for step in steps]


def weighted(steps: Sequence[int], arrays: Sequence[AnyArray], eta: int, kind: DType, out: AnyArray) -> None:
    """Puts the weighted mean of `arrays`, given at `steps` (ascending), into `out`; without those that are too old.

    Floating types only. Halves are computed in float32 and rounded once.
    """
    first = dropped(steps, eta)
    shares = weights(steps[first:])
    _mix(arrays[first:], shares, sum(shares), kind, out)


def total(arrays: Sequence[AnyArray], kind: DType, out: AnyArray) -> None:
    """Puts the sum of `arrays` into `out`, which may be none of them but the first. Integers wrap."""
    _mix(arrays, [1] * len(arrays), 1, kind, out)


def _mix(arrays: Sequence[AnyArray], shares: Sequence[int], divisor: int, kind: DType, out: AnyArray) -> None:
    if len(arrays) == 1:  # any weight is divided out again
        np.copyto(out, arrays[0])
        return
    half = kind in (FLOAT16, BFLOAT16)
    with np.errstate(all="ignore"):
        mixed = np.empty(out.shape, np.float32) if half else out
        for index, (array, share) in enumerate(zip(arrays, shares, strict=True)):
            wide = widened(array, kind) if half else array
            part = wide if share == 1 else wide * wide.dtype.type(share)
            if index:
                mixed += part
            else:
                np.copyto(mixed, part)
        if divisor != 1:
            mixed /= mixed.dtype.type(divisor)
        if half:
            np.copyto(out, narrowed(mixed, kind))


def scaled_rate(rate: float, included: int) -> float:
    """RNA's learning rate for an op that `included` ranks are in: gamma_k = gamma times their number.

    A mean over those ranks, taken with it, is gamma times the sum of their gradients. With none it is 0: no update.
    """
    return rate * included
