# SPDX-License-Identifier: Apache-2.0
"""What a rank and its engine share on the fake: both rings and the arena, and what the rank has asked for but its
engine is not to hear yet."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from ultima.base.receipt import Host
from ultima.base.words import NEVER, RING_ENTRIES
from ultima.session import forks
from ultima.session.arena import Arena
from ultima.session.attachment import Completion
from ultima.session.memory import SharedMap
from ultima.session.rings import COMPLETION_RING_BYTES, SUBMISSION_RING_BYTES, NativeRings
from ultima.testing.call import Call
from ultima.testing.lan import Lan

PAGE = 4096


class Seat:
    """One rank at its engine. As with a real daemon, each side has mappings of its own, so neither can take the memory
    from under the other."""

    def __init__(
        self, lan: Lan, host: Host, rank: int, arena_bytes: int, hosts: Sequence[Host], world_size: int, partial: bool
    ) -> None:
        self.rank, self.host = rank, host.index
        self.partial = partial
        sizes = [-(-size // PAGE) * PAGE for size in (SUBMISSION_RING_BYTES, COMPLETION_RING_BYTES, arena_bytes)]
        pairs = [_mapped_twice(size) for size in sizes]
        submissions, completions, self.arena_map = (mine for mine, _ in pairs)
        self._maps = [mapping for pair in pairs for mapping in pair]
        forks.follow(self)
        self.arena = Arena(self.arena_map)
        self.first_op_seq = lan.next_op_seq()
        lanes = [(submissions, completions)]
        self.rings = NativeRings(lanes, hosts, rank, world_size, next_op_seq=self.first_op_seq, partial=partial)
        addresses = (pairs[0][1].address, pairs[1][1].address, pairs[2][1].address)
        place = host.ranks.index(rank)
        self.session = lan.session_add(host.index, place, addresses, sizes[2], self.first_op_seq)
        self.outstanding = 0
        self.cut_off = False
        """What it asks for waits here for as long as this is so."""
        self._held: deque[tuple[int, Call]] = deque()

    def submit(self, call: Call, due_ns: int) -> bool:
        """Asks for something; its engine hears of it at `due_ns`, after all that was asked before. False when 64
        requests are outstanding."""
        if self.outstanding >= RING_ENTRIES:
            return False
        self.outstanding += 1
        self._held.append((due_ns, call))
        return True

    def next(self) -> Call:
        """What its engine is to hear next; it is no longer held here."""
        return self._held.popleft()[1]

    def due_ns(self) -> int:
        """When that is due."""
        return self._held[0][0] if self._held and not self.cut_off else NEVER

    def take(self) -> Completion | None:
        """The next completion, or None."""
        completion = self.rings.take()
        if completion is not None:
            self.outstanding -= 1
        return completion

    def after_fork(self) -> None:
        """In a forked child: none of it is mapped there."""
        for mapping in self._maps:
            mapping.reserve_after_fork()


def _mapped_twice(size: int) -> tuple[SharedMap, SharedMap]:
    memfd = os.memfd_create("ultima-fake", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memfd, size)
        return SharedMap(memfd, size, writable=True), SharedMap(memfd, size, writable=True)
    finally:
        os.close(memfd)
