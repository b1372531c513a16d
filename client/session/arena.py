# SPDX-License-Identifier: Apache-2.0
"""Memory that trainer and daemon share, handed out in blocks.

An array in this memory is reduced in place without a copy; any other array is staged through a block for the time of
its op. A block is free again when the last array over it is gone. A program may keep an array for longer than the
session that it came from: when the session ends, what is held becomes memory of the program's own.

Blocks are given first fit from the low end, rounded to 64 bytes (a cache line, and what vector loads like). First fit
matters: a page of shared memory costs far more at its first touch than at any later copy, so it pays to use the same
low pages again.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque

import numpy as np
import numpy.typing as npt

from ultima.base.warning import warn
from ultima.session.memory import SharedMap

ALIGNMENT = 64


class Block:
    """A piece of an arena. It stays allocated while something holds it, such as numpy through the array interface."""

    __slots__ = ("__weakref__", "_extent", "arena", "nbytes", "offset")

    def __init__(self, arena: Arena, offset: int, nbytes: int, extent: int) -> None:
        self.arena = arena
        self.offset = offset
        self.nbytes = nbytes
        self._extent = extent

    @property
    def __array_interface__(self) -> dict[str, object]:
        address = self.arena.address + self.offset
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (address, False)}

    def __del__(self) -> None:
        # May run inside any allocation, the arena's own included: no lock here.
        self.arena.give_back(self.offset, self._extent)


class Arena:
    """The allocator of one session's shared memory. Safe for several threads."""

    def __init__(self, mapping: SharedMap) -> None:
        self._map = mapping
        self.address = mapping.address
        self.nbytes = mapping.nbytes
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int]] = deque()
        # Free extents, ascending, never adjacent.
        self._starts: list[int] = [0]
        self._sizes: list[int] = [mapping.nbytes // ALIGNMENT * ALIGNMENT]
        # Everything below was touched by this process.
        self._touched = 0

    def allocate(self, nbytes: int) -> Block | None:
        """A block of `nbytes`, with whatever content; None when no free extent is large enough."""
        extent = max(nbytes + ALIGNMENT - 1, ALIGNMENT) // ALIGNMENT * ALIGNMENT
        with self._lock:
            self._collect()
            index = next((at for at, size in enumerate(self._sizes) if size >= extent), None)
            if index is None:
                return None
            offset = self._starts[index]
            if self._sizes[index] == extent:
                del self._starts[index], self._sizes[index]
            else:
                self._starts[index] += extent
                self._sizes[index] -= extent
            return Block(self, offset, nbytes, extent)

    def touch(self, block: Block) -> None:
        """Writes to the block's pages that nobody has touched yet.

        A page is charged to whoever touches it first and stalls him: better this process than the daemon's engine
        thread.
        """
        end = block.offset + block.nbytes
        with self._lock:
            start, self._touched = max(self._touched, block.offset), max(self._touched, end)
        if start < end:
            self._map.bytes[start:end] = 0

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The bytes at `offset`. Does not keep a block allocated."""
        return self._map.bytes[offset : offset + nbytes]

    def offset_of(self, address: int, nbytes: int) -> int | None:
        """Where `nbytes` at `address` lie in this arena; None when they do not lie wholly inside."""
        offset = address - self.address
        return offset if offset >= 0 and offset + nbytes <= self.nbytes else None

    def free_bytes(self) -> tuple[int, int]:
        """All bytes that are free, and the largest block that could be allocated now."""
        with self._lock:
            self._collect()
            return sum(self._sizes), max(self._sizes, default=0)

    def give_back(self, offset: int, extent: int) -> None:
        """Marks an extent free at the next allocation. Takes no lock: it may be called from a finalizer."""
        self._returned.append((offset, extent))

    def leave(self) -> None:
        """The session ends: its memory goes back to the daemon. Blocks that something still holds keep their addresses
        and what is in them."""
        with self._lock:
            self._collect()
            held, at = [], 0
            for start, size in zip([*self._starts, self.nbytes], [*self._sizes, 0], strict=True):
                if start > at:
                    held.append((at, start - at))
                at = start + size
            try:
                if held:
                    self._map.become_private(held)
            except OSError as error:
                text = f"arrays of the arena are lost with their session, as they cannot be copied: {error.strerror}"
                warn(text)

    def after_fork(self) -> None:
        """In a forked child: the lock may have been held, and the mapping is gone."""
        self._lock = threading.Lock()
        self._map.reserve_after_fork()

    def _collect(self) -> None:
        while self._returned:
            start, size = self._returned.popleft()
            at = bisect_left(self._starts, start)
            if at < len(self._starts) and start + size == self._starts[at]:
                size += self._sizes[at]
                del self._starts[at], self._sizes[at]
            if at and self._starts[at - 1] + self._sizes[at - 1] == start:
                self._sizes[at - 1] += size
            else:
                self._starts.insert(at, start)
                self._sizes.insert(at, size)
