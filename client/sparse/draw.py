# SPDX-License-Identifier: Apache-2.0
"""Drawing at random what all ranks draw alike: by whole numbers only, so that no release of numpy changes it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ultima.sparse.kernels import Indices

_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def drawn(candidates: Indices, count: int, seed: int) -> npt.NDArray[np.intp]:
    """Places of `count` of the (different) `candidates`, ascending: those with the smallest of the numbers that
    splitmix64's end makes of seed and candidate. It gives no number twice, so there are no ties. 0 <= seed < 2^32."""
    mixed = candidates.astype(np.uint64) | np.uint64(seed << 32)
    for shift, factor in _MIX:
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    if count >= candidates.size:
        return np.arange(candidates.size)
    return np.sort(np.argpartition(mixed, count)[:count])
