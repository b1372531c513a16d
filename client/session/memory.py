# SPDX-License-Identifier: Apache-2.0
"""Shared mappings that a fork does not take along.

A forked child must not reach the session of its parent, so every mapping is marked MADV_DONTFORK. That alone is not
enough: the child inherits the Python objects, and when it drops them they would unmap addresses that by then may belong
to something else. So the child first fills the hole with an inaccessible reservation. Touching an arena array in a
child is thus always a segmentation fault, never silent damage.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

_MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 0x02, 0x20, 0x4000, 0x100000
_PROT_NONE = 0

_libc_mmap = ctypes.CDLL(None, use_errno=True).mmap
_libc_mmap.restype = ctypes.c_void_p
_libc_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)


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
