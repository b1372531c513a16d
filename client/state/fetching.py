# SPDX-License-Identifier: Apache-2.0
"""Fetches a state in parts from all who hold it, one thread for each. A part counts when it is what its digest says.

What a holder that vanishes was asked for is asked of the others. What has come is kept: a fetch that found no holder
any more goes on where it stood, with new holders, for all parts that are still the same.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ultima.state.listing import LIST_BYTES_MAX, PART_BYTES, Listing, digest

Read = Callable[[int, bytes, Sequence[int]], Iterable[tuple[int, Any]]]
"""Asks a rank for parts of the state of a root, or with none of them for its list: bytes, or a buffer of them that
holds until the next ones are taken. Raises ConnectionError."""

AT_ONCE = 16  # parts that a holder is asked for in one call
FALSE_MAX = 3  # parts of a holder that may be false before it is asked no more


class Fetch:
    """See the module."""

    def __init__(self, read: Read, own: Listing | None, keep: Callable[[int], bytes]) -> None:
        """`own` is what the arrays hold, of which `keep` tells a part: what is the same is not fetched."""
        self._read = read
        self.sources: Counter[int] = Counter()
        self.parts = self.again = 0
        self._false: Counter[int] = Counter()
        self._gone: set[int] = set()
        self._guard = threading.Lock()
        self._have = {each: number for number, each in enumerate(own.sums if own is not None else ())}
        self._keep = keep
        self._listing: tuple[bytes, Listing] | None = None
        self._data = memoryview(bytearray())
        self._came: dict[int, bytes] = {}
        """Digests of the parts that are in it."""

    @property
    def false(self) -> tuple[int, ...]:
        """Ranks that sent something else than they had said."""
        return tuple(sorted(self._false))

    def listing(self, root: bytes, ranks: Sequence[int]) -> Listing | None:
        """The list of a state, of the first rank that has it; None if none gives it."""
        if self._listing is not None and self._listing[0] == root:
            return self._listing[1]
        for rank in self._usable(ranks):
            try:
                written = bytearray()
                for _, data in self._read(rank, root, ()):
                    written += data
                    if len(written) > LIST_BYTES_MAX:
                        break
            except ConnectionError:
                continue
            try:
                if digest(written) != root:
                    raise ValueError("another list")
                self._listing = root, Listing.read(bytes(written))
                return self._listing[1]
            except ValueError:
                with self._guard:
                    self._false[rank] = FALSE_MAX
        return None

    def run(self, listing: Listing, root: bytes, ranks: Sequence[int], wanted: Callable[[], bool]) -> memoryview | None:
        """All bytes of the state; None if they are not here and no holder is left, or it is not `wanted` any more."""
        self._gone.clear()
        if len(self._data) != listing.size:
            self._data = np.empty(listing.size, np.uint8).data  # all of it is written, and none read before
            self._came.clear()
        into, missing = self._data, deque[int]()
        for number, each in enumerate(listing.sums):
            place = slice(number * PART_BYTES, (number + 1) * PART_BYTES)
            if self._came.get(number) == each:
                continue
            if each in self._have and len(kept := self._keep(self._have[each])) == len(into[place]):
                into[place] = kept
                self._came[number] = each
            else:
                missing.append(number)
        left = set(missing)
        threads = [
            threading.Thread(target=self._ask, args=(rank, root, listing, missing, left, into, wanted), daemon=True)
            for rank in self._usable(ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return None if left else into

    def _usable(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if self._false[rank] < FALSE_MAX and rank not in self._gone]

    def _ask(
        self,
        rank: int,
        root: bytes,
        listing: Listing,
        missing: deque[int],
        left: set[int],
        into: memoryview,
        wanted: Callable[[], bool],
    ) -> None:
        """Asks one rank, until nothing is missing or it is of no use any more."""
        while wanted() and self._false[rank] < FALSE_MAX:
            with self._guard:
                asked = [missing.popleft() for _ in range(min(AT_ONCE, len(missing)))]
            if not asked:
                return
            open_parts = set(asked)
            try:
                for number, data in self._read(rank, root, asked):
                    place = slice(number * PART_BYTES, (number + 1) * PART_BYTES)
                    right = number in open_parts and digest(data) == listing.sums[number]
                    with self._guard:
                        if not right:
                            self._false[rank] += 1
                        else:
                            into[place] = data
                            self._came[number] = listing.sums[number]
                            open_parts.discard(number)
                            left.discard(number)
                            self.parts += 1
                            self.sources[rank] += len(data)
                    if not wanted() or self._false[rank] >= FALSE_MAX:
                        break
            except ConnectionError:
                with self._guard:
                    self._gone.add(rank)
            with self._guard:
                self.again += len(open_parts)
                missing.extendleft(sorted(open_parts, reverse=True))
                if len(open_parts) == len(asked):
                    self._gone.add(rank)  # it gave nothing, and may have no more to give
            if rank in self._gone:
                return
