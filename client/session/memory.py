# SPDX-License-Identifier: Apache-2.0
"""Shared mappings that a fork does not take along.

A forked child must not reach the session of its parent, so every mapping is marked MADV_DONTFORK. That alone is not
enough: the child inherits the Python objects, and when it drops them they would unmap addresses that by then may belong
to something else. So the child first fills the hole with an inaccessible reservation. Touching an arena array in a
child is thus always a segmentation fault, never silent damage.

The memory is the daemon's to give: it takes the pages back when the session ends. What a program still holds then is
copied into memory of its own, at the same addresses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 0x02, 0x20, 0x4000, 0x100000
_PROT_NONE = 0
_MAP_FAILED = ctypes.c_void_p(-1).value
_MREMAP_MAYMOVE, _MREMAP_FIXED = 0x1, 0x2

_libc = ctypes.CDLL(None, use_errno=True)
_libc_mmap = _libc.mmap
_libc_mmap.restype = ctypes.c_void_p
_libc_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)

_libc_mremap = _libc.mremap
_libc_mremap.restype = ctypes.c_void_p
_libc_mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class SharedMap:
    """`nbytes` of a memfd, mapped shared. Unmapped when the last array over it is gone, never before."""

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.buffer = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=protection)
        self.buffer.madvise(mmap.MADV_DONTFORK)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.buffer, dtype=np.uint8)
        self.address: int = self.bytes.ctypes.data
        self.nbytes = nbytes

    def reserve_after_fork(self) -> None:
        """In a forked child, before anything else is mapped: keeps the parent's addresses from being used again."""
        _libc_mmap(
            self.address,
            self.nbytes,
            _PROT_NONE,
            _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE,
            -1,
            0,
        )

    def become_private(self, extents: Iterable[tuple[int, int]]) -> None:
        """Replaces the shared memory with memory of this process alone, in which those bytes (offset, size) are the
        same as before and all others are zero. What another thread writes there meanwhile may be lost.

        Raises OSError if there is no such memory; then all is as before.
        """
        copy = _libc_mmap(
            None,
            self.nbytes,
            mmap.PROT_READ | mmap.PROT_WRITE,
            _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE,
            -1,
            0,
        )
        if copy == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        for offset, size in extents:
            ctypes.memmove(copy + offset, self.address + offset, size)
        flags = _MREMAP_MAYMOVE | _MREMAP_FIXED
        if _libc_mremap(copy, self.nbytes, self.nbytes, flags, self.address) == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.buffer.madvise(mmap.MADV_DONTFORK)
