# SPDX-License-Identifier: Apache-2.0
"""What is trained, as one long vector of float32: its tensors in order, and the fragments into which it is cut."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ultima.base.errors import InvalidArgument
from ultima.local.round_kernels import Floats


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the vector."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    plain: bool = False
    """It is no parameter but a statistic such as BatchNorm's: averages replace it, without the outer rule."""

    @property
    def size(self) -> int:
        """Its elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return f"{self.name!r} ({' x '.join(map(str, self.shape)) or 'a scalar'}, {self.dtype})"


class Values(Protocol):
    """The tensors themselves. Offsets count elements of the vector, parameters first, then what is plain."""

    entries: Sequence[Entry]

    def read(self, low: int, out: Floats) -> None:
        """Copies elements from `low` on into `out`, as float32."""

    def write(self, low: int, values: Floats) -> None:
        """Copies float32 values into the elements from `low` on, rounded to the tensors' own types."""

    def spans(self, low: int, size: int) -> list[tuple[slice, Floats]] | None:
        """Where `size` elements from `low` on lie, in order, for who writes to them at once: which of them, and their
        memory. None if they are not all float32 in memory of this host, one after the other in each tensor."""


class Arrays:
    """Values in numpy arrays of floats, by name; they are written in place.

    Raises InvalidArgument for what is not a writable array of floats.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not array.flags.writeable:
                said = str(getattr(array, "dtype", type(array).__name__))
                raise InvalidArgument(f"arrays[{name!r}]", said, "a writable numpy array of floats")
            if not array.flags.c_contiguous:
                raise InvalidArgument(f"arrays[{name!r}]", "a strided array", "a C-contiguous one")
        if not arrays:
            raise InvalidArgument("arrays", "none", "at least one")
        self.entries: Sequence[Entry] = [Entry(name, a.shape, a.dtype.name) for name, a in arrays.items()]
        self._flat: list[Any] = [array.reshape(-1) for array in arrays.values()]

    def read(self, low: int, out: Floats) -> None:
        for index, mine, its in overlaps(self.entries, low, out.size):
            out[mine] = self._flat[index][its]

    def write(self, low: int, values: Floats) -> None:
        for index, mine, its in overlaps(self.entries, low, values.size):
            self._flat[index][its] = values[mine]

    def spans(self, low: int, size: int) -> list[tuple[slice, Floats]] | None:
        found = [(mine, self._flat[index][its]) for index, mine, its in overlaps(self.entries, low, size)]
        return found if all(flat.dtype == np.float32 for _, flat in found) else None


def overlaps(entries: Sequence[Entry], low: int, size: int) -> Iterator[tuple[int, slice, slice]]:
    """The tensors that hold elements `low` to `low + size`: index, where in these elements, and where in the tensor."""
    at, high = 0, low + size
    for index, entry in enumerate(entries):
        begin, end = max(low, at), min(high, at + entry.size)
        if begin < end:
            yield index, slice(begin - low, end - low), slice(begin - at, end - at)
        at += entry.size


class Layout:
    """How the vector is cut: fragment f of F holds elements floor(f n / F) to floor((f + 1) n / F).

    settings: what else must be the same on all ranks. Raises InvalidArgument.
    """

    def __init__(self, entries: Sequence[Entry], fragments: int, settings: Mapping[str, Any]) -> None:
        self.entries = tuple(entries)
        self.settings = dict(settings)
        self.count = sum(entry.size for entry in entries)
        self.plain_from = sum(entry.size for entry in entries if not entry.plain)
        if not 1 <= fragments <= max(1, self.count):
            raise InvalidArgument("fragments", fragments, f"1 to {self.count}, the number of elements")
        self.fragments = fragments
        self._bounds = [index * self.count // fragments for index in range(fragments + 1)]
        self.longest = max(np.diff(self._bounds), default=0)

    def bounds(self, fragment: int) -> tuple[int, int]:
        """First element of a fragment, and the one behind its last."""
        return self._bounds[fragment], self._bounds[fragment + 1]

    def text(self) -> str:
        """All of it, to be compared between ranks."""
        rows = [[each.name, list(each.shape), each.dtype, each.plain] for each in self.entries]
        return json.dumps({"settings": self.settings, "fragments": self.fragments, "tensors": rows}, sort_keys=True)

    @property
    def hash(self) -> int:
        """24 bits that depend on all of it."""
        return zlib.crc32(self.text().encode()) & 0xFFFFFF

    def name_at(self, element: int) -> str:
        """The tensor that holds an element."""
        index, _, _ = next(overlaps(self.entries, element, 1))
        return str(self.entries[index])


def difference(mine: str, theirs: str, rank: int) -> str | None:
    """What the text of rank `rank`'s layout says otherwise than this rank's, in a sentence; None if nothing."""
    if mine == theirs:
        return None
    here, there = json.loads(mine), json.loads(theirs)
    for name, value in here["settings"].items():
        if there["settings"].get(name) != value:
            return f"{name} is {there['settings'].get(name)!r} on rank {rank}, {value!r} here"
    if here["fragments"] != there["fragments"]:
        return f"fragments is {there['fragments']} on rank {rank}, {here['fragments']} here"
    for index, (own, other) in enumerate(zip(here["tensors"], there["tensors"], strict=False)):
        if own != other:
            told = [Entry(row[0], tuple(row[1]), row[2], row[3]) for row in (other, own)]
            return f"tensor {index} is {told[0]} on rank {rank}, {told[1]} here"
    return f"rank {rank} has {len(there['tensors'])} tensors, this rank {len(here['tensors'])}"
