# SPDX-License-Identifier: Apache-2.0
"""The pieces of the arena that a rank's contributions to a job with a policy lie in, and whose each of them is.

A contribution is not copied when it is given: the engine reads it where it lies until an op that took it has ended. So
there are three pieces at most: one that an op reads, one that waits as the gift, and one to compose the next in. Two
words of the completion ring say how far the engine is (`ut_completion_ring.taken` and `.freed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ultima.base.buffers import AnyArray
from ultima.base.errors import ResourceExhausted
from ultima.base.words import DType
from ultima.session.session import Session


@dataclass(slots=True)
class Given:
    """What was given and no op is known to have taken: one step's gradient, or the sum of those of several."""

    steps: list[int]
    array: AnyArray

    def apart(self) -> Given:
        """The same in memory of its own."""
        return Given(self.steps, self.array if self.array.base is None else self.array.copy())


class Piece:
    """Room for one contribution. `seq` is the number of the submission that gave what is in it, -1 before it was."""

    __slots__ = ("array", "seq", "sticky")

    def __init__(self, array: AnyArray) -> None:
        self.array = array
        self.seq = -1
        self.sticky = False


class GiftBuffers:
    """Those of one rank in one session. Not thread-safe."""

    def __init__(self, session: Session, count: int, kind: DType) -> None:
        self.session = session
        self._count = count
        self._kind = kind
        self._free: list[Piece] = []
        self._read: list[Piece] = []
        self.waiting: Piece | None = None
        """The gift that waits; a sticky one may be in an op as well."""

    def are_for(self, count: int, kind: DType) -> None:
        """From now on contributions have |count| elements of |kind|. What the engine may still read stays."""
        self._count, self._kind = count, kind

    def look(self) -> bool:
        """Takes in how far the engine is. True if an op took what waited since the last look."""
        words = self.session.words()
        self._free += [piece for piece in self._read if words.freed > piece.seq]
        self._read = [piece for piece in self._read if words.freed <= piece.seq]
        piece = self.waiting
        if piece is None or piece.sticky or words.taken <= piece.seq:
            return False
        self.waiting = None
        (self._free if words.freed > piece.seq else self._read).append(piece)
        return True

    def blank(self) -> Piece:
        """One that nobody reads; it goes back (`give_back`) or is the gift (`placed`). Raises ResourceExhausted."""
        while self._free:
            piece = self._free.pop()
            if piece.array.size == self._count and piece.array.dtype == self._kind.numpy:
                return piece
        nbytes = self._count * self._kind.itemsize
        arena = self.session.arena
        block = arena.allocate(nbytes)
        if block is None:
            text = (
                f"{nbytes} bytes for another contribution asked, {arena.free_bytes()[1]} of {arena.nbytes} are free in "
                "one piece; five times the largest array is enough (connect(arena=...))"
            )
            raise ResourceExhausted("arena_bytes", text, nbytes, arena.free_bytes()[1])
        arena.touch(block)
        return Piece(np.asarray(block).view(self._kind.numpy))

    def aside(self, piece: Piece) -> AnyArray:
        """Memory apart from `piece`, for an answer that brings nothing. The engine wants it for what is sticky."""
        other = self.blank()
        self.give_back(other)
        assert other is not piece
        return other.array

    def give_back(self, piece: Piece) -> None:
        """It did not become the gift."""
        self._free.append(piece)

    def placed(self, piece: Piece, seq: int, sticky: bool) -> Piece | None:
        """Submission `seq` made it the gift. What made room for it, to be `release`d."""
        before = self.empty()
        piece.seq, piece.sticky = seq, sticky
        self.waiting = piece
        return before

    def empty(self) -> Piece | None:
        """No gift waits. What was it, to be `release`d."""
        piece, self.waiting = self.waiting, None
        return piece

    def release(self, piece: Piece | None) -> None:
        """It is the gift no more; it may be in an op still."""
        if piece is not None:
            words = self.session.words()
            (self._read if words.freed <= piece.seq < words.taken else self._free).append(piece)
