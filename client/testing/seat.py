# SPDX-License-Identifier: Apache-2.0
"""What a rank and its engine share on the fake: both rings and the arena.

The rank writes what it asks for into a ring of its own, with the code that it has in production. The engine reads
another one, into which the fake copies each request when the engine is to hear of it. So requests can be late, and the
engine's clock can be another. The completion ring and the arena are the same for both sides, and each side has mappings
of its own, so neither can take the memory from under the other.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from ultima.base.native import ffi
from ultima.base.receipt import Host
from ultima.base.words import NEVER, RING_ENTRIES
from ultima.session import forks
from ultima.session.arena import Arena
from ultima.session.memory import SharedMap
from ultima.session.rings import COMPLETION_RING_BYTES, SUBMISSION_RING_BYTES
from ultima.testing.lan import Lan

PAGE = 4096
_ENTRY_BYTES: int = ffi.sizeof("ut_submission")


class Seat:
    """One rank at its engine. Requests are structs `ut_submission`, which stay in their ring until they are over."""

    def __init__(self, lan: Lan, host: Host, rank: int, arena_bytes: int) -> None:
        self.rank, self.host = rank, host.index
        self.submissions_map, _ = pairs_asked = _mapped_twice(SUBMISSION_RING_BYTES)
        _, heard = pairs_heard = _mapped_twice(SUBMISSION_RING_BYTES)
        self.completions_map, told = pairs_told = _mapped_twice(COMPLETION_RING_BYTES)
        self.arena_map, given = pairs_given = _mapped_twice(arena_bytes)
        self._maps = [*pairs_asked, *pairs_heard, *pairs_told, *pairs_given]
        forks.follow(self)
        self._asked = ffi.cast("ut_submission_ring *", self.submissions_map.address)
        self._heard = ffi.cast("ut_submission_ring *", heard.address)
        self.told = ffi.cast("ut_completion_ring *", told.address)
        self.arena = Arena(self.arena_map)
        self.first_op_seq = lan.next_op_seq()
        addresses = (heard.address, told.address, given.address)
        place = host.ranks.index(rank)
        self.session = lan.session_add(host.index, place, addresses, given.nbytes, self.first_op_seq)
        self.cut_off = False
        """What it asks for waits here for as long as this is so."""
        self._due: deque[int] = deque()
        """Of each request that the engine has not heard of, when it is to."""

    def rung(self, due_ns: int) -> None:
        """The rank has written something. Its engine hears of it at `due_ns`, after all that was asked before."""
        self._due.extend([due_ns] * (self._asked.head - self._heard.head - len(self._due)))

    def due_ns(self) -> int:
        """When the engine is to hear of the next request; NEVER if there is none."""
        return self._due[0] if self._due and not self.cut_off else NEVER

    def next(self, skipped_ns: int) -> Any:
        """Hands the next request to the engine, whose clock is so far ahead, and returns it."""
        self._due.popleft()
        entry = self.free()
        ffi.memmove(entry, self._asked.entries + self._heard.head % RING_ENTRIES, _ENTRY_BYTES)
        if entry.deadline_ns != NEVER:
            entry.deadline_ns += skipped_ns
        self._heard.completions_taken = self._asked.completions_taken
        self._heard.head += 1
        return entry

    def look(self) -> None:
        """Tells the engine which answers the rank has taken."""
        self._heard.completions_taken = self._asked.completions_taken

    # For ranks that nobody connected, whose requests are written here

    def free(self) -> Any:
        """Where the next request goes that the engine is to hear of."""
        return self._heard.entries + self._heard.head % RING_ENTRIES

    def has_room(self) -> bool:
        """Whether a request can be written there: 64 may be unanswered."""
        return bool(self._heard.head - self._asked.completions_taken < RING_ENTRIES)

    def put(self) -> None:
        """The engine may read what was written there."""
        self._heard.head += 1
        self._asked.head = self._heard.head

    def answered(self) -> list[int]:
        """Numbers of the requests that were answered since the last call."""
        new = range(self._asked.completions_taken, self.told.head)
        self._asked.completions_taken = self.told.head
        return [int(self.told.entries[at % RING_ENTRIES].call_seq) for at in new]

    def after_fork(self) -> None:
        """In a forked child: none of it is mapped there."""
        for mapping in self._maps:
            mapping.reserve_after_fork()


def _mapped_twice(size: int) -> tuple[SharedMap, SharedMap]:
    size = -(-size // PAGE) * PAGE
    memfd = os.memfd_create("ultima-fake", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memfd, size)
        return SharedMap(memfd, size, writable=True), SharedMap(memfd, size, writable=True)
    finally:
        os.close(memfd)
