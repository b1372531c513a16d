# SPDX-License-Identifier: Apache-2.0
"""Halves, and the oracle of the tests itself, against numbers worked out by hand."""

import numpy as np
import pytest

from tests.oracle import reduce_arrays
from ultima.base.reference import bfloat16_bits, bfloat16_values
from ultima.base.words import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.00390625, 0x3F80),  # exactly half way: to even, down
        (1.01171875, 0x3F82),  # exactly half way: to even, up
        (3.4e38, 0x7F80),  # over the largest: infinity
        (float("inf"), 0x7F80),
    ],
)
def test_bfloat16_bits__rounds_to_nearest_even(value: float, bits: int) -> None:
    assert bfloat16_bits(np.float32(value)).tolist() == bits


def test_bfloat16__nan_stays_nan_and_values_come_back() -> None:
    assert np.isnan(bfloat16_values(bfloat16_bits([np.nan]))).all()
    values = np.array([0.5, -1.5, 256.0], dtype=np.float32)
    assert bfloat16_values(bfloat16_bits(values)).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("op", "result"), [("sum", [-3, 6]), ("avg", [-1, 3]), ("min", [-2, 2]), ("max", [-1, 4]), ("prod", [2, 8])]
)
def test_reduce_arrays__integers(op: str, result: list[int]) -> None:
    for kind in (INT32, INT64):
        arrays = [np.array([-1, 4], dtype=kind.numpy), np.array([-2, 2], dtype=kind.numpy)]
        reduced = reduce_arrays(arrays, kind, op)
        assert (reduced.tolist(), reduced.dtype) == (result, kind.numpy)


def test_reduce_arrays__integers_wrap() -> None:
    top = np.array([2**31 - 1], dtype=np.int32)
    assert reduce_arrays([top, np.array([1], dtype=np.int32)], INT32, "sum").tolist() == [-(2**31)]


def test_reduce_arrays__halves_are_added_in_float32() -> None:
    # In float16 2048 + 1 + 1 stays 2048, for 2049 does not exist.
    arrays = [np.array([value], dtype=np.float16) for value in (2048, 1, 1)]
    assert reduce_arrays(arrays, FLOAT16, "sum").tolist() == [2050.0]
    bits = [bfloat16_bits([value]) for value in (256.0, 1.0, 1.0)]
    assert bfloat16_values(reduce_arrays(bits, BFLOAT16, "sum")).tolist() == [258.0]


def test_reduce_arrays__one_rank_and_inputs_untouched() -> None:
    mine = np.array([1.5, -2.0], dtype=np.float32)
    assert reduce_arrays([mine], FLOAT32, "avg").tolist() == [1.5, -2.0]
    reduce_arrays([mine, mine], FLOAT32, "sum")
    assert mine.tolist() == [1.5, -2.0]
