# SPDX-License-Identifier: Apache-2.0
"""Where a gradient is looked at to guess how large its largest entries are, as Deep Gradient Compression does (Lin et
al. 2018, its hierarchical sampling).

A threshold that follows from the steps before does not work: what error feedback keeps crowds right below it, so that a
threshold that is a little too high or too low lets nothing or everything through, and the next one swings back.
"""

from __future__ import annotations

from typing import NamedTuple

RUN = 16
"""Neighbours that are looked at together: a cache line of float32."""
_RUNS_MIN = 1024
_FOUND = 256
"""Of the sample, as many are above the threshold: the number of entries then scatters by 1 / sqrt(256)."""
_LARGEST_FINITE = 0x7F7FFFFF


class Sample(NamedTuple):
    """`runs` runs of RUN elements, each `stride` elements after the one before, from `start` on; and the rank in the
    sample of the smallest magnitude that is sent."""

    start: int
    stride: int
    runs: int
    rank: int


def sample_of(size: int, count: int, step: int) -> Sample | None:
    """What to look at when about `count` of `size` elements are to be sent; in every step at other places. None: so few
    elements that an exact choice costs no more."""
    runs = max(-(-_FOUND * size // (RUN * count)), _RUNS_MIN) if count else 0
    stride = size // runs if runs else 0
    if stride < 2 * RUN:
        return None
    start = (step * 0x9E3779B1 & 0xFFFFFFFF) * (stride - RUN + 1) >> 32
    return Sample(start, stride, runs, max(1, round(runs * RUN * count / size)))


def limit_of(magnitude: int) -> int:
    """The limit that `magnitude` (in bits), the smallest that is sent, is above. What is 0 is not sent, and what is not
    finite always."""
    return min(max(magnitude, 1) - 1, _LARGEST_FINITE)
