# SPDX-License-Identifier: Apache-2.0
"""The numbers that Python and C share are written twice; here they are held against each other."""

import numpy as np

from ultima._native import lib
from ultima.base import words


def test_words__dtypes() -> None:
    for name, kind in words.DTYPES.items():
        assert kind.code == getattr(lib, f"UT_{name.upper()}"), name
        assert kind.itemsize == kind.numpy.itemsize, name


def test_words__bytes() -> None:
    assert (words.BYTES.code, words.BYTES.itemsize) == (lib.UT_BYTES, 1)


def test_words__errors_and_limits() -> None:
    for name, code in vars(words).items():
        if name.startswith("ERR_"):
            assert code == getattr(lib, f"UT_{name}"), name
    assert words.RING_ENTRIES == lib.UT_RING_ENTRIES


def test_words__flags_and_policies() -> None:
    for name in ("AGREE", "ADAPTIVE", "GIVE", "REPLACE", "STICKY", "NOWAIT", "WORLD"):
        assert getattr(words, name) == getattr(lib, f"UT_SUBMIT_{name}"), name
    for code, name in words.POLICY_BY_CODE.items():
        assert code == getattr(lib, f"UT_POLICY_{name.upper()}"), name


def test_words__both_64_bit_integers_of_c_mean_int64() -> None:
    assert {words.DTYPE_BY_NUMPY_NUM[np.dtype(letter).num].name for letter in "lq"} == {"int64"}


def test_field_value__words_for_numbers() -> None:
    assert words.field_value("dtype", 4) == "bfloat16"
    assert words.field_value("op", 2) == "avg"
    assert words.field_value("mode", 3) == "reliable"
    assert words.field_value("count", 12) == 12
    assert words.field_value("collective", 3) == "broadcast"
    assert words.field_value("collective", 8) == 8
    assert words.field_value("dtype", 99) == 99
