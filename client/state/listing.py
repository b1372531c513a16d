# SPDX-License-Identifier: Apache-2.0
"""The arrays of a state as one run of bytes, cut into parts, and the list that tells both: names, types, shapes, and a
digest of each part. The root is the digest of the list, so two states of one root are the same bit by bit.

The list comes from another host: `Listing.read` refuses whatever is not one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ultima.base.buffers import as_bytes, movable
from ultima.base.errors import InvalidArgument
from ultima.base.words import BYTES

PART_BYTES = 512 << 10  # half of what a message between daemons may have
LIST_BYTES_MAX = 64 << 20
THREADS_MAX = min(8, os.cpu_count() or 1)  # more wait for memory
ROOT_BYTES = SUM_BYTES = 32
ALLOWED = "a dict of names to arrays or CPU tensors, or of names to such dicts"


def digest(data: Any) -> bytes:
    """BLAKE2b-256."""
    return hashlib.blake2b(data, digest_size=SUM_BYTES).digest()


def digests(count: int, pieces: Callable[[int], Iterable[Any]]) -> tuple[bytes, ...]:
    """Of each of so many parts, of which `pieces` tells the buffers one behind the other. On all cores, as hashing
    releases the interpreter."""

    def one(number: int) -> bytes:
        found = hashlib.blake2b(digest_size=SUM_BYTES)
        for piece in pieces(number):
            found.update(piece)
        return found.digest()

    with ThreadPoolExecutor(THREADS_MAX) as threads:
        return tuple(threads.map(one, range(count)))


def parts_of(size: int) -> int:
    """Number of parts of so many bytes."""
    return -(-size // PART_BYTES)


@dataclass(frozen=True, slots=True)
class Row:
    """One array."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Listing:
    """What the arrays of a state are, and the digests of its parts."""

    rows: tuple[Row, ...]
    size: int
    sums: tuple[bytes, ...]

    def written(self) -> bytes:
        """For another host."""
        rows = [[row.name, row.dtype, list(row.shape)] for row in self.rows]
        said = {"rows": rows, "size": self.size, "sums": [each.hex() for each in self.sums]}
        return json.dumps(said, separators=(",", ":")).encode()

    @staticmethod
    def read(written: bytes) -> Listing:
        """Raises ValueError for what is no list."""
        try:
            said = json.loads(written)
            rows = tuple(Row(str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in said["rows"])
            size, sums = int(said["size"]), tuple(map(bytes.fromhex, said["sums"]))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no list of a state: {error!r}") from None
        if size < 0 or len(sums) != parts_of(size) or any(len(each) != SUM_BYTES for each in sums):
            raise ValueError(f"no list of a state: {len(sums)} digests of {size} bytes")
        return Listing(rows, size, sums)

    def differs(self, other: Listing) -> tuple[str, str, str] | None:
        """The first array that is another one: its name, and what it is here and there."""
        here, there = ({row.name: row for row in each.rows} for each in (self, other))
        for name in sorted({*here, *there}):
            if here.get(name) != there.get(name):
                return name, str(here.get(name, "absent")), str(there.get(name, "absent"))
        return None if self.size == other.size else ("", f"{self.size} bytes", f"{other.size} bytes")


class Arrays:
    """The arrays of a program, by name, in the order of their names. Never copies them."""

    def __init__(self, state: Any, *, writable: bool) -> None:
        """Raises InvalidArgument, which names the array."""
        self.rows: list[Row] = []
        self._bytes = []
        found = dict(_flat(state, ""))
        for name in sorted(found):
            array, kind = movable(found[name], f"state[{name!r}]", writable=writable)
            dtype = str(getattr(found[name], "dtype", array.dtype)) if kind is BYTES else kind.name
            shape = tuple(map(int, getattr(found[name], "shape", array.shape)))
            self.rows.append(Row(name, dtype.removeprefix("torch."), shape))
            self._bytes.append(as_bytes(array))
        self.size = sum(each.size for each in self._bytes)
        self._ends = np.cumsum([each.size for each in self._bytes], dtype=np.int64)

    def part(self, number: int) -> bytes:
        """The bytes of a part."""
        first = number * PART_BYTES
        return b"".join(piece.tobytes() for piece, _ in self._pieces(first, min(first + PART_BYTES, self.size)))

    def listing(self) -> Listing:
        """Reads all bytes: about a second for each GB and core."""

        def pieces(number: int) -> Iterator[Any]:
            first = number * PART_BYTES
            return (piece for piece, _ in self._pieces(first, min(first + PART_BYTES, self.size)))

        return Listing(tuple(self.rows), self.size, digests(parts_of(self.size), pieces))

    def outline(self) -> Listing:
        """The same without digests, for a comparison of what the arrays are."""
        return Listing(tuple(self.rows), self.size, ())

    def fill(self, data: memoryview) -> None:
        """Puts `size` bytes into the arrays."""
        for piece, at in self._pieces(0, self.size):
            piece[:] = np.frombuffer(data[at : at + piece.size], dtype=np.uint8)

    def _pieces(self, first: int, end: int) -> Iterator[tuple[Any, int]]:
        """Views of the bytes from `first` to `end`, and where each begins."""
        at = first
        index = int(np.searchsorted(self._ends, first, side="right"))
        while at < end:
            begins = int(self._ends[index]) - self._bytes[index].size
            piece = self._bytes[index][at - begins : min(end - begins, self._bytes[index].size)]
            if piece.size:
                yield piece, at
            at += piece.size
            index += 1


def _flat(state: Any, above: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(state, Mapping):
        raise InvalidArgument("state", type(state).__name__, ALLOWED)
    for key, value in state.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/")
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            yield name, value
        else:
            raise InvalidArgument(f"state[{name!r}]", type(value).__name__, ALLOWED)
