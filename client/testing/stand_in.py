# SPDX-License-Identifier: Apache-2.0
"""A rank that nobody connected: it calls what the others call, with what the `peer` of the FakeDaemon says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ultima.base.buffers import AnyArray
from ultima.base.words import COLLECTIVE_BY_CODE, GIVE, NOWAIT, WORLD
from ultima.session.arena import Block
from ultima.testing.call import Call
from ultima.testing.seat import Seat

Peer = Callable[[int, int, AnyArray], AnyArray | None]


def brought(call: Call, arena: npt.NDArray[np.uint8], hosts: int) -> AnyArray:
    """A copy of what a rank brings; of sparse entries the dense array that they stand for."""
    if call.sparse is not None:
        dense = np.empty(call.count, np.float32)
        call.sparse.scatter(arena[call.src : call.src + call.sparse.nbytes], dense)
        return dense
    size = _sizes(call, hosts)[0]
    return arena[call.src : call.src + size].copy().view(call.kind.numpy)


def _sizes(call: Call, hosts: int) -> tuple[int, int]:
    """Bytes that a rank brings, and bytes of its result."""
    name = COLLECTIVE_BY_CODE[call.layout.collective]
    whole = call.count * call.kind.itemsize
    match name:
        case "barrier":
            return hosts, hosts
        case "all_gather":
            return whole // hosts, whole
        case "reduce_scatter":
            return whole, whole // hosts
    return whole, whole


class StandIn:
    """See the module. `seat` is like that of any other rank."""

    def __init__(self, seat: Seat, peer: Peer, hosts: int, coded: bool) -> None:
        self.seat = seat
        self._coded = coded
        self._peer, self._hosts = peer, hosts
        self._next = seat.first_op_seq
        """Number of its next submission."""
        self._asked = -1
        """The newest op or step that `peer` was asked about."""
        self._blocks: dict[int, tuple[Block, Block | None]] = {}

    def hear(self, call: Call, op_seq: int, mine: AnyArray, now_ns: int) -> None:
        """Another rank calls op `op_seq` (of a coded job: that step), and brings `mine`."""
        if op_seq <= self._asked or (self.seat.partial and not call.flags & GIVE):
            return
        if self.seat.partial and not self._coded and self._still_waits():
            return
        self._asked = op_seq
        given = self._peer(self.seat.rank, op_seq, mine.copy())
        if given is None:
            return
        values = np.ascontiguousarray(np.asarray(given, dtype=mine.dtype).reshape(-1))
        if not self.seat.partial:
            self._pass_over(call, op_seq, now_ns)
        self._call(call, values, now_ns)

    def forget(self) -> None:
        """Takes back the memory of what is over."""
        while (completion := self.seat.take()) is not None:
            if not self.seat.partial:
                self._blocks.pop(completion.number, None)
        freed = self.seat.rings.words().freed
        for number in [number for number in self._blocks if self.seat.partial and number < freed]:
            del self._blocks[number]

    def _still_waits(self) -> bool:
        """What it gave last is in no op yet."""
        return bool(self._blocks) and max(self._blocks) >= self.seat.rings.words().taken

    def _pass_over(self, call: Call, op_seq: int, now_ns: int) -> None:
        """It had no part in earlier ops: a call without a mode is refused, and used up by that."""
        while self._next < op_seq:
            self.seat.submit(replace(call, seq=self._next, mode=0), now_ns)
            self._next += 1

    def _call(self, call: Call, values: AnyArray, now_ns: int) -> None:
        raw = values.view(np.uint8)
        layout = call.layout
        if call.sparse is not None:
            rows = values.reshape(-1, call.sparse.group)
            at = np.flatnonzero(rows.any(axis=1)).astype(np.uint32)
            layout = layout._replace(sparse=replace(call.sparse, entries=len(at)))
            raw = np.concatenate([at.view(np.uint8), np.ascontiguousarray(rows[at]).reshape(-1).view(np.uint8)])
        in_place = COLLECTIVE_BY_CODE[layout.collective] == "broadcast"
        source = self.seat.arena.allocate(raw.nbytes)
        result = None if in_place else self.seat.arena.allocate(_sizes(call, self._hosts)[1])
        if source is None or (result is None and not in_place):
            raise MemoryError("the stand-in for a rank has no memory for so many ops at once")
        self.seat.arena.view(source.offset, raw.nbytes)[:] = raw
        target = source if result is None else result
        flags = call.flags
        if self.seat.partial:
            flags = GIVE if self._coded else GIVE | NOWAIT | flags & WORLD
        mine = replace(call, seq=self._next, src=source.offset, dst=target.offset, layout=layout, flags=flags)
        self._blocks[self._next] = source, result
        self._next += 1
        self.seat.submit(mine, now_ns)
