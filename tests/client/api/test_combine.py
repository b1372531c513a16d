# SPDX-License-Identifier: Apache-2.0
"""Gradients that a rank combines by itself: the examples of docs/papers.md, section 3.5, to the bit, in every type."""

import numpy as np
import pytest

from tests.oracle import partial_result
from ultima.api import combine
from ultima.base.buffers import AnyArray
from ultima.base.reference import bfloat16_bits, bfloat16_values, picks, splitmix64
from ultima.base.words import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, INT32

# steps, gradients, eta, the sum of weight times gradient, the sum of weights
VECTORS = [
    ([3, 4, 5], [1, 2, 3], 4, 14, 6),
    ([3, 5], [1, 3], 4, 10, 4),
    ([5, 7, 8, 10], [1, 2, 3, 4], 3, 24, 7),  # 5 is too old
    ([9], [7], 4, 7, 1),
    ([0, 4], [1, 2], 4, 11, 6),  # eta steps apart are not too old
    ([0, 5], [1, 2], 4, 2, 1),
]


@pytest.mark.parametrize("steps,values,eta,total,weight", VECTORS)
def test_weighted__the_papers_vectors(steps: list[int], values: list[int], eta: int, total: int, weight: int) -> None:
    for kind in (FLOAT32, FLOAT64):
        arrays = [np.full(3, value, kind.numpy) for value in values]
        out = np.empty(3, kind.numpy)
        combine.weighted(steps, arrays, eta, kind, out)
        assert out.tolist() == [kind.numpy.type(total) / kind.numpy.type(weight)] * 3
        assert [array[0] for array in arrays] == values, "they are weighed again with the next one"


def test_weighted__halves_are_rounded_once() -> None:
    """256 * 1 + 1 * 2 + 1 * 3 over 6 is 43.5; after a rounding of each sum to bfloat16 it would be 43.25."""
    out = np.empty(2, np.uint16)
    arrays = [bfloat16_bits(np.full(2, value)) for value in (256.0, 1.0, 1.0)]
    combine.weighted([1, 2, 3], arrays, 4, BFLOAT16, out)
    assert bfloat16_values(out).tolist() == [43.5, 43.5]
    half = np.empty(1, np.float16)
    combine.weighted([0, 1], [np.array([1.0], np.float16), np.array([2.0], np.float16)], 4, FLOAT16, half)
    assert half[0] == np.float16(5 / 3)


def test_total__sums_in_every_type_and_in_place() -> None:
    for kind in DTYPES.values():
        first, second, third = (_held(kind.name, value) for value in (5, 7, 9))
        combine.total([first, second, third], kind, first)
        assert _read(kind.name, first) == [21, 21]
    wrapped = np.array([2**31 - 1], np.int32)
    combine.total([wrapped, np.array([1], np.int32)], INT32, wrapped)
    assert wrapped[0] == -(2**31)


def _held(name: str, value: int) -> AnyArray:
    kind = DTYPES[name]
    return bfloat16_bits(np.full(2, value)) if kind is BFLOAT16 else np.full(2, value, kind.numpy)


def _read(name: str, array: AnyArray) -> list[float]:
    values: list[float] = (bfloat16_values(array) if DTYPES[name] is BFLOAT16 else array).tolist()
    return values


def test_scaled_rate__rna_and_eager_sgd_take_the_same_step() -> None:
    """docs/papers.md, section 3.5: {2, null, 4, 6} is a mean of 4 over three; with 3 gamma it is the step that
    eager-SGD takes with alpha = 4 gamma: both 12 gamma.
    """
    slots = [np.array([2.0]), None, np.array([4.0]), np.array([6.0])]
    gamma = 0.5
    mean, world = partial_result(slots, FLOAT64, "contributors"), partial_result(slots, FLOAT64, "world")
    whole = partial_result(slots, FLOAT64, "none")
    assert mean is not None and world is not None and whole is not None
    assert (mean[0], world[0], whole[0]) == (4.0, 3.0, 12.0)
    assert combine.scaled_rate(gamma, 3) * mean[0] == 4 * gamma * world[0] == 12 * gamma
    assert partial_result([None, None], FLOAT64, "world") is None
    assert combine.scaled_rate(gamma, 0) == 0


def test_picks__the_vectors() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert [picks(42, t, 8, 1)[0] for t in range(16)] == [5, 0, 2, 4, 5, 6, 3, 3, 4, 0, 3, 3, 1, 4, 3, 4]
    pairs = [(5, 7), (0, 2), (2, 7), (4, 1), (5, 3), (6, 5), (3, 6), (3, 4)]
    assert [tuple(picks(42, t, 8, 2)) for t in range(8)] == pairs
    assert picks(42, 0, 8, 2, {0, 2, 7}) == [7, *picks(42, 0, 8, 8, {0, 2})[:1]], "who is dead is skipped"
    assert sorted(picks(7, 3, 5, 9)) == [0, 1, 2, 3, 4]
