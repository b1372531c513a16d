# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers: which entries of a gradient are sent. `Feedback` does the same and keeps what was not sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from ultima.base.buffers import elements
from ultima.base.checks import check_whole_between
from ultima.base.errors import InvalidArgument
from ultima.base.words import FLOAT32
from ultima.sparse import kernels
from ultima.sparse.codec import Sparse
from ultima.sparse.container import SIZE_MAX
from ultima.sparse.draw import drawn
from ultima.sparse.kernels import Floats


def check_ratio(ratio: object, field: str = "ratio") -> float:
    """Raises InvalidArgument for all but a share above 0, to 1."""
    if not isinstance(ratio, float | int) or isinstance(ratio, bool) or not 0 < ratio <= 1:
        raise InvalidArgument(field, ratio, "a number above 0, to 1")
    return float(ratio)


def count_of(ratio: float, size: int) -> int:
    """Entries that `ratio` of `size` elements are: rounded down, but one at least where there is one."""
    return min(size, max(1, int(ratio * size)))


def gradient_of(gradient: Any) -> Floats:
    """Flat float32 over the memory of a numpy array, a buffer or a CPU tensor. Raises InvalidArgument."""
    array, kind = elements(gradient, None, "gradient", writable=False)
    if kind is not FLOAT32 or array.size > SIZE_MAX:
        raise InvalidArgument("gradient", f"{array.size} elements of {kind.name}", f"float32, to {SIZE_MAX} elements")
    return array.reshape(-1)


def top_entries(gradient: Any, ratio: float) -> Sparse:
    """The share `ratio` of the elements with the largest magnitudes; of equal ones those with lower indices. NaN is
    larger than all else.

    gradient: float32, of any shape; it is read as one dimension.
    ratio: above 0, and at most 1; rounded down to whole entries, but at least one.

    Raises InvalidArgument.
    """
    dense = gradient_of(gradient)
    count = count_of(check_ratio(ratio), dense.size)
    if count == 0:
        return Sparse(np.empty(0, np.uint32), dense[:0], 0)
    above, ties = kernels.kth_largest(dense, count)
    return Sparse(*kernels.keep(dense.copy(), None, above, ties, count), dense.size)


def random_entries(gradient: Any, ratio: float, seed: int, scaled: bool = False) -> Sparse:
    """The share `ratio` of the elements, drawn alike wherever `seed` is the same. With `scaled` values are multiplied
    by size / entries, so that their mean over seeds is the gradient.

    gradient, ratio: as for `top_entries`.
    seed: 0 to 2^32 - 1.

    Raises InvalidArgument.
    """
    dense = gradient_of(gradient)
    count = count_of(check_ratio(ratio), dense.size)
    check_whole_between(seed, "seed", 0, 2**32 - 1)
    indices = drawn(np.arange(dense.size, dtype=np.uint32), count, seed).astype(np.uint32)
    factor = np.float32(dense.size / count) if scaled and count else np.float32(1)
    return Sparse(indices, dense[indices] * factor, dense.size)


def entries_above(gradient: Any, threshold: float) -> Sparse:
    """The elements with a magnitude above `threshold` (finite, from 0); NaN among them.

    gradient: as for `top_entries`. Raises InvalidArgument.
    """
    dense = gradient_of(gradient)
    check_threshold(threshold)
    indices = np.flatnonzero(~(np.abs(dense) <= np.float32(threshold))).astype(np.uint32)
    return Sparse(indices, dense[indices], dense.size)


def check_threshold(threshold: object) -> float:
    """Raises InvalidArgument, also for NaN, to which nothing compares."""
    if not isinstance(threshold, float | int) or isinstance(threshold, bool) or not 0 <= threshold < float("inf"):
        raise InvalidArgument("threshold", threshold, "a finite number, 0 or more")
    return float(threshold)
