# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks by speed: the examples of docs/papers.md, section 3.5, and what holds for any times."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultima import InvalidArgument
from ultima.speed_groups.grouping import groups, iteration_time

VECTORS = [
    ([10, 11, 12, 50, 52, 55], [[0, 1, 2], [3, 4, 5]]),
    ([10, 20, 100, 300], [[0, 1], [2], [3]]),
    ([100, 110, 120, 190], [[0, 1, 2, 3]]),  # zeta 90, v 130
    ([1, 3], [[0, 1]]),  # zeta 2 is v, and must exceed it
    ([20 + extra for extra in (0, 10, 25, 40, 60, 75, 80, 95)], [[0, 1], [2, 3], [4, 5, 6, 7]]),
    ([100 + extra for extra in (0, 10, 25, 40, 60, 75, 80, 95)], [list(range(8))]),  # zeta 95, v 148
    ([300, 10, 100, 20], [[1, 3], [2], [0]]),  # the fastest first, whatever the ranks' order
    ([5], [[0]]),
    ([7, 7, 7], [[0, 1, 2]]),
]


@pytest.mark.parametrize(("times", "expected"), VECTORS)
def test_groups__vectors(times: list[float], expected: list[list[int]]) -> None:
    assert groups(times) == expected
    assert groups(np.array(times, dtype=np.float32)) == expected
    assert groups([one * 1e-3 for one in times]) == expected, "the unit must not matter"


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=64))
def test_groups__partition_by_speed_and_none_has_a_gap_above_its_mean(times: list[float]) -> None:
    found = groups(times)
    assert sorted(rank for group in found for rank in group) == list(range(len(times)))
    slowest = -math.inf
    for group in found:
        own = [times[rank] for rank in group]
        assert group == sorted(group)
        assert max(own) - min(own) <= fmean(own)
        assert min(own) > slowest, "groups do not overlap, and come fastest first"
        slowest = max(own)


def test_iteration_time__weighs_the_newest_most_and_forgets_what_is_older_than_the_window() -> None:
    assert iteration_time([0.25]) == 0.25
    assert iteration_time([3.0] * 50) == pytest.approx(3.0)
    # window 3: a = 1/2, weights 1/4, 1/2, 1.
    assert iteration_time([1, 2, 4], 3) == pytest.approx((0.25 * 1 + 0.5 * 2 + 4) / 1.75)
    assert iteration_time([1, 3], 3) == pytest.approx((0.5 * 1 + 3) / 1.5)
    assert iteration_time([1000, 1, 2, 4], 3) == iteration_time([1, 2, 4], 3)
    assert iteration_time([9, 8, 7], 1) == 7


@pytest.mark.parametrize("times", [[], [0.0], [1, -1], [1, math.nan], [math.inf, 1], ["1", 2], [None], [True, 1]])
def test_groups__bad_times_are_named(times: list[float]) -> None:
    with pytest.raises(InvalidArgument, match=r"^times is "):
        groups(times)


def test_iteration_time__bad_input_is_named() -> None:
    for samples in ([], [0.0], [1, math.nan]):
        with pytest.raises(InvalidArgument, match=r"^samples is "):
            iteration_time(samples)
    for window in (0, -1, 1.5, True):
        with pytest.raises(InvalidArgument, match=r"^window is .*from 1"):
            iteration_time([1.0], window)  # type: ignore[arg-type]
