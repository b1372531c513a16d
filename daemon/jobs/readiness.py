# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a partial job on this host have to give, and the answers to those who probe for it.

The engine tells by events which of its ranks have given something for the next op, and when an op starts and ends. A
probe is a question about one rank and one op number; it stays open until there is an answer, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ultima.daemon.base.errors import DeadlineExceeded, ResourceExhausted
from ultima.daemon.base.waiting import Changes
from ultima.daemon.engine.engine import Event, EventKind
from ultima.v1 import peer_pb2

READY, EXPIRED = peer_pb2.ProbeResponse.RESULT_READY, peer_pb2.ProbeResponse.RESULT_EXPIRED
UNKNOWN_RANK = peer_pb2.ProbeResponse.RESULT_UNKNOWN_RANK
if TYPE_CHECKING:
    Result: TypeAlias = peer_pb2.ProbeResponse.Result.ValueType

COMING = -1  # in the place of one: the rank is on its way in
WAITING_MAX = 1024  # probes of one job that are open here; a controller has as many as it has been told to draw


class Readiness:
    """Of one job. Ranks are named by their place among those of the job on this host."""

    def __init__(self) -> None:
        self.next_op_seq = 0
        """The op that follows the newest one that started here, as far as events have told."""
        self._given = 0
        self._running = -1
        self._waiting = 0
        self._changes = Changes()

    def take(self, event: Event) -> None:
        """Takes READY, ACTIVATED and OP_DONE."""
        if event.kind == EventKind.READY:
            if event.op_seq >= self.next_op_seq:
                self.next_op_seq, self._given = event.op_seq, event.a
        elif event.kind == EventKind.ACTIVATED:
            self.started(event.op_seq)
        elif event.kind == EventKind.OP_DONE:
            self._begun(event.op_seq)
            if event.op_seq >= self._running:
                self._running = -1
        self.look_again()

    def started(self, op_seq: int) -> None:
        """That op has started here."""
        self._begun(op_seq)
        if op_seq + 1 == self.next_op_seq:
            self._running = op_seq

    def denied(self, op_seq: int) -> None:
        """The engine would not start that op: nobody has anything for it, whatever was told before."""
        if op_seq == self.next_op_seq:
            self._given = 0

    def look_again(self) -> None:
        """Something changed that open probes depend on."""
        self._changes.notify()

    def result(self, op_seq: int, place: int | None) -> Result | None:
        """What a probe is answered now; None: not yet. `place` is None for a rank that is not alive here."""
        if op_seq < self.next_op_seq:
            return EXPIRED
        if place is None:
            return UNKNOWN_RANK
        if place == COMING:
            return None  # other hosts may have begun, and ask, before its session stands here
        # While an op runs the next one cannot start, so what lies ready for it is of no use to the one who asks.
        ready = op_seq == self.next_op_seq and self._running < 0 and self._given >> place & 1
        return READY if ready else None

    async def answer(self, op_seq: int, place: Callable[[], int | None], deadline: float) -> Result:
        """Waits for the answer. Raises DeadlineExceeded, and ResourceExhausted where too many wait already."""
        if self._waiting >= WAITING_MAX:
            raise ResourceExhausted(f"probes = {WAITING_MAX}: so many already wait for this job")
        self._waiting += 1
        try:
            if not await self._changes.until(lambda: self.result(op_seq, place()) is not None, deadline):
                raise DeadlineExceeded(f"op_seq = {op_seq}: the rank has given nothing for it yet")
            answer = self.result(op_seq, place())
            assert answer is not None
            return answer
        finally:
            self._waiting -= 1

    def _begun(self, op_seq: int) -> None:
        if op_seq >= self.next_op_seq:
            self.next_op_seq, self._given = op_seq + 1, 0
