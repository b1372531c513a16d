# SPDX-License-Identifier: Apache-2.0
"""Whatever has memory is taken as it is, without a copy; the rest is refused with a reason."""

import array
import mmap
from typing import Any

import numpy as np
import pytest
import torch

from ultima import InvalidArgument
from ultima.base.buffers import address_of, as_bytes, dtype_named, elements
from ultima.base.words import BFLOAT16, DTYPES, FLOAT32, INT32, INT64


class WithInterface:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data
        self.__array_interface__ = data.__array_interface__


class WithDlpack:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


FLOATS = np.arange(6, dtype=np.float32)


@pytest.mark.parametrize(
    ("obj", "kind"),
    [
        (np.zeros((2, 3), dtype=np.float32), "float32"),
        (np.zeros(3, dtype=np.longlong), "int64"),
        (np.zeros((), dtype=np.float64), "float64"),
        (np.zeros(0, dtype=np.float16), "float16"),
        (np.zeros(2, dtype=np.int32), "int32"),
        (array.array("d", [1, 2]), "float64"),
        (array.array("f", [1, 2]), "float32"),
        (memoryview(array.array("i", [1, 2])), "int32"),
        (memoryview(np.zeros((2, 2), dtype=np.float16)), "float16"),
        (WithInterface(np.zeros(4, dtype=np.float32)), "float32"),
        (WithDlpack(np.zeros(4, dtype=np.int64)), "int64"),
        (torch.zeros(4), "float32"),
        (torch.zeros(4, dtype=torch.float16), "float16"),
        (torch.zeros(2, 2, dtype=torch.int64), "int64"),
        (torch.zeros(4, dtype=torch.bfloat16), "bfloat16"),
        (torch.nn.Parameter(torch.zeros(4)), "float32"),
    ],
)
def test_elements__same_memory_and_kind(obj: object, kind: str) -> None:
    found, found_kind = elements(obj, None, "array", writable=True)
    assert found_kind is DTYPES[kind]
    again, _ = elements(obj, None, "array", writable=True)
    as_bytes(found)[:] = 1
    assert bytes(as_bytes(again)) == b"\1" * found.nbytes, "not the same memory"


def test_elements__tensor_is_written_in_place() -> None:
    tensor = torch.zeros(3, dtype=torch.bfloat16)
    found, _ = elements(tensor, None, "array", writable=True)
    as_bytes(found)[:] = np.array([0x3F80] * 3, dtype=np.uint16).view(np.uint8)
    assert tensor.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("obj", [bytearray(16), memoryview(bytearray(16)), mmap.mmap(-1, 16), np.zeros(16, np.uint8)])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_elements__bytes_with_a_dtype(obj: object, dtype: str) -> None:
    found, kind = elements(obj, dtype_named(dtype), "array", writable=True)
    assert (found.nbytes, kind) == (16, DTYPES[dtype])


def test_elements__bfloat16_as_uint16() -> None:
    assert elements(np.zeros(3, np.uint16), BFLOAT16, "array", writable=True)[1] is BFLOAT16
    assert elements(np.zeros(3, np.float32), FLOAT32, "array", writable=True)[1] is FLOAT32


def read_only() -> np.ndarray[Any, Any]:
    data = np.zeros(3, np.float32)
    data.flags.writeable = False
    return data


@pytest.mark.parametrize(
    ("obj", "dtype", "words"),
    [
        (np.zeros(3, np.uint8), None, "bytes need a dtype="),
        (bytearray(8), None, "bytes need a dtype="),
        (np.zeros(3, np.uint16), None, "dtype='bfloat16'"),
        (np.zeros(3, np.complex64), None, "complex64"),
        (np.zeros(3, bool), None, "bool"),
        (np.zeros(3, ">f4"), None, "native byte order"),
        (np.zeros(3, object), None, "object"),
        (np.zeros((4, 4), np.float32)[:, 1], None, "C-contiguous"),
        (np.zeros((4, 4), np.float32).T, None, "C-contiguous"),
        (torch.zeros(4, 4)[:, 0], None, "C-contiguous"),
        (torch.zeros(4).to_sparse(), None, "dense tensor"),
        (torch.empty(4, device="meta"), None, "meta"),
        (torch.zeros(4, dtype=torch.bool), None, "bool"),
        (read_only(), None, "writable"),
        (b"12345678", FLOAT32, "writable"),
        (bytearray(7), FLOAT32, "whole elements of 4 bytes"),
        (np.zeros(3, np.float64), FLOAT32, "float64"),
        (np.zeros(3, np.int32), INT64, "int32"),
        ([1.0, 2.0], None, "a list"),
        (3.0, None, "a float"),
        (None, None, "a NoneType"),
        ("text", None, "a str"),
    ],
)
def test_elements__refused_with_a_reason(obj: object, dtype: Any, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        elements(obj, dtype, "array", writable=True)
    assert words in str(caught.value)
    assert caught.value.field in ("array", "dtype")


def test_elements__read_only_is_fine_to_read() -> None:
    assert elements(read_only(), None, "array", writable=False)[0].size == 3
    assert elements(b"12345678", INT32, "array", writable=False)[0].nbytes == 8


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("f4"), torch.float32, "f4"])
def test_dtype_named__many_spellings(dtype: object) -> None:
    assert dtype_named(dtype) is FLOAT32


def test_dtype_named__bfloat16_and_wrong_ones() -> None:
    assert dtype_named("bfloat16") is BFLOAT16
    assert dtype_named(torch.bfloat16) is BFLOAT16
    for wrong in ("float8", np.uint8, "uint16", object(), torch.complex64, ">f4"):
        with pytest.raises(InvalidArgument, match=r"dtype is .*float32, float64, float16, bfloat16, int32, int64"):
            dtype_named(wrong)


@pytest.mark.parametrize(
    "array",
    [
        np.ones(3, np.float32),
        np.ones((2, 0, 4)),
        np.array(7.0),
        read_only(),
        np.zeros(2, "datetime64[s]"),
        np.ones(8, np.float32)[5:],
    ],
    ids=["plain", "empty", "one", "read-only", "of a type without a word", "a part"],
)
def test_address_of__is_where_the_array_begins(array: np.ndarray[Any, Any]) -> None:
    assert address_of(array) == array.__array_interface__["data"][0]
