# SPDX-License-Identifier: Apache-2.0
"""A rank that nobody connected: it calls what the others call, with what the `peer` of the FakeDaemon says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ultima.base.buffers import AnyArray
from ultima.base.sparse_form import SparseCall
from ultima.base.words import COLLECTIVE_BY_CODE, DTYPE_BY_CODE, GIVE, NOWAIT, RESIDUAL_BITS, WORLD
from ultima.session.arena import Block
from ultima.testing.seat import Seat

Peer = Callable[[int, int, AnyArray], AnyArray | None]


def brought(call: Any, arena: npt.NDArray[np.uint8], hosts: int) -> AnyArray:
    """A copy of what a rank brings by a `ut_submission`; of sparse entries the dense array that they stand for."""
    sparse = _sparse(call)
    if sparse is not None:
        dense = np.empty(call.count, np.float32)
        sparse.scatter(arena[call.src : call.src + sparse.nbytes], dense)
        return dense
    held = arena[call.src : call.src + _sizes(call, hosts)[0]]
    return held.copy().view(DTYPE_BY_CODE[call.dtype].numpy)


def _sparse(call: Any) -> SparseCall | None:
    if COLLECTIVE_BY_CODE[call.collective] != "allreduce_sparse":
        return None
    said = call.alike.sparse
    return SparseCall(call.entries, said.group, said.form, said.hint, said.down)


def _sizes(call: Any, hosts: int) -> tuple[int, int]:
    """Bytes that a rank brings, and bytes of its result."""
    whole = call.count * DTYPE_BY_CODE[call.dtype].itemsize
    match COLLECTIVE_BY_CODE[call.collective]:
        case "barrier":
            return hosts, hosts
        case "all_gather":
            return whole // hosts, whole
        case "reduce_scatter":
            return whole, whole // hosts
    return whole, whole


class StandIn:
    """See the module. `seat` is like that of any other rank."""

    def __init__(self, seat: Seat, peer: Peer, hosts: int, policy: str) -> None:
        self.seat = seat
        self._peer, self._hosts, self._policy = peer, hosts, policy
        self._next = seat.first_op_seq
        """Number of its next request."""
        self._asked = -1
        """The newest op or step that `peer` was asked about."""
        self._blocks: dict[int, tuple[Block, Block | None]] = {}
        """Memory of requests that are not over, by their numbers."""

    def hear(self, call: Any, op_seq: int, mine: AnyArray) -> bool:
        """Another rank calls op `op_seq` (of a coded job: that step) by a `ut_submission`, and brings `mine`. True if
        this one calls, too."""
        partial = self._policy != "none"
        if op_seq <= self._asked or (partial and not call.flags & GIVE):
            return False
        if partial and self._policy != "coded" and self._still_waits():
            return False
        self._asked = op_seq
        given = self._peer(self.seat.rank, op_seq, mine.copy())
        if given is None:
            return False
        if not partial:
            self._pass_over(op_seq)
        self._call(call, np.ascontiguousarray(np.asarray(given, dtype=mine.dtype).reshape(-1)))
        return True

    def forget(self) -> None:
        """Takes back the memory of what is over."""
        numbers = self.seat.answered()
        if self._policy != "none":
            numbers = [number for number in self._blocks if number < self.seat.told.freed]
        for number in numbers:
            self._blocks.pop(number, None)

    def _still_waits(self) -> bool:
        """What it gave last is in no op yet."""
        return bool(self._blocks) and max(self._blocks) >= self.seat.told.taken

    def _pass_over(self, op_seq: int) -> None:
        """It had no part in earlier ops: a request without a mode is refused, and its number is used."""
        while self._next < op_seq:
            entry = self._entry()
            entry.mode = 0
            self.seat.put()

    def _entry(self) -> Any:
        if not self.seat.has_room():
            self.forget()
        if not self.seat.has_room():
            raise MemoryError(f"rank {self.seat.rank}, for which the peer stands, has 64 calls without an answer")
        entry = self.seat.free()
        entry.op_seq = self._next
        self._next += 1
        return entry

    def _call(self, call: Any, values: AnyArray) -> None:
        raw, entries, sparse = values.view(np.uint8), call.entries, _sparse(call)
        if sparse is not None:
            rows = values.reshape(-1, sparse.group)
            at = np.flatnonzero(rows.any(axis=1)).astype(np.uint32)
            entries = len(at)
            raw = np.concatenate([at.view(np.uint8), np.ascontiguousarray(rows[at]).reshape(-1).view(np.uint8)])
        if COLLECTIVE_BY_CODE[call.collective] == "allreduce_quant":
            entries = entries >> RESIDUAL_BITS << RESIDUAL_BITS  # a residual is the caller's own, a weight everybody's
        in_place = COLLECTIVE_BY_CODE[call.collective] == "broadcast"
        source = self.seat.arena.allocate(raw.nbytes)
        result = None if in_place else self.seat.arena.allocate(_sizes(call, self._hosts)[1])
        target = source if in_place else result
        if source is None or target is None:
            raise MemoryError(f"rank {self.seat.rank}, for which the peer stands, has too many calls at once")
        self.seat.arena.view(source.offset, raw.nbytes)[:] = raw
        self._blocks[self._next] = source, result
        number = self._next
        entry = self._entry()
        entry[0] = call[0]
        entry.op_seq, entry.src, entry.dst, entry.entries = number, source.offset, target.offset, entries
        if COLLECTIVE_BY_CODE[call.collective] == "allreduce_quant" and self._policy != "none":
            entry.gift_residual = 0
        if self._policy != "none":
            entry.flags = GIVE if self._policy == "coded" else GIVE | NOWAIT | call.flags & WORLD
        self.seat.put()
