# SPDX-License-Identifier: Apache-2.0
"""How much of glibc's heaps this process uses: what Python's own count of its objects does not show."""

from __future__ import annotations

import ctypes
import gc

import pytest


class Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "a", "b", "c", "d", "e", "f", "used", "free", "g")]


def used() -> int:
    """Bytes that are allocated in all heaps of this process."""
    measure = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if measure is None:
        pytest.skip("this C library has no mallinfo2")
    measure.restype = Heap
    gc.collect()
    return int(measure().used)
