# SPDX-License-Identifier: Apache-2.0
"""A rank that goes on with its ops while others follow it: they get the state that it had before one op, and the
results of its ops from there on. A thread answers what they ask; the rank itself copies its state once, and each
result."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict

from ultima.api.connection import Connection
from ultima.api.handle import Handle
from ultima.api.state_pairs import PairsGiven
from ultima.base.words import OP_BY_CODE
from ultima.session.attachment import StateLine
from ultima.session.op import Op
from ultima.session.session import Session
from ultima.state.chosen import Turn
from ultima.state.listing import PART_BYTES, Arrays, Listing, digest, digests, parts_of
from ultima.state.results import Backlog, Kind, Result, facts_of

TURN_S = 0.2  # that a turn waits for a wish
RUNS_MAX = 4  # that are kept while their pieces are asked for, beside those of other followers


class Giver:
    """See the module."""

    def __init__(self, connection: Connection, line: StateLine, arrays: Arrays, revision: int, op_seq: int) -> None:
        """The arrays are as they are before op `op_seq`; they are copied here."""
        self._line, self._pairs = line, PairsGiven(connection, line, self._part, self._run_from, self._yields)
        self._rows, self._size, self._revision = tuple(arrays.rows), arrays.size, revision
        self._parts = [arrays.part(number) for number in range(parts_of(arrays.size))]
        self._op_seq = op_seq
        self._backlog = Backlog(op_seq, arrays.size)
        self._open: dict[int, tuple[Session, Op]] = {}
        self._guard = threading.Lock()
        """Held while a result is copied, which the caller may change once it has it."""
        self._written = self._root = b""
        self._looking = threading.Lock()
        """Held while one looks for results: messages and jobs of two ask for them."""
        self._runs: OrderedDict[int, bytes] = OrderedDict()
        self.over = False
        """Nobody follows any more, or what they would need is not kept."""
        threading.Thread(target=self._work, name="ultima-giver", daemon=True).start()

    def expect(self, session: Session, op: Op) -> None:
        """An op was begun, whose result followers will need."""
        self._open[op.seq] = session, op

    def take(self, op: Op) -> None:
        """An op has ended: keeps its result. Whoever calls this first copies it."""
        with self._guard:
            if self.over or self._open.pop(op.seq, None) is None:
                return
            if op.failure is not None or op.receipt is None:
                self.over = True  # nobody here knows what others got
                return
            data, facts = op.target.tobytes(), facts_of(op.receipt)
            self._backlog.add(Result(op.seq, op.kind.name, OP_BY_CODE[op.redop], data, facts))

    def end(self) -> None:
        """Gives nothing any more."""
        self.over = True

    def _work(self) -> None:
        sums = digests(len(self._parts), lambda number: self._parts[number : number + 1])
        self._written = Listing(self._rows, self._size, sums).written()
        self._root = digest(self._written)
        answer = 0, b""
        try:
            while not self.over:
                turn = self._line.give(answer, TURN_S)
                if not turn.followers:
                    break
                answer = turn.wish, self._answer(turn) if turn.wish else b""
        except ConnectionError:
            pass
        finally:
            self.over = True
            self._pairs.end()
            self._line.close()
            self._open.clear()

    def _part(self, number: int) -> bytes:
        return self._parts[number] if 0 <= number < len(self._parts) else b""

    def _answer(self, turn: Turn) -> bytes:
        number = turn.part
        if turn.kind == Kind.HEAD:
            if self._backlog.first > self._op_seq or 2 * self._backlog.bytes > self._backlog.bytes_max:
                self.over = True  # too old for who begins now: the next `share` begins anew
                return b""
            head = {"op_seq": self._op_seq, "revision": self._revision, "size": self._size, "root": self._root.hex()}
            return json.dumps(head).encode()
        if turn.kind == Kind.FOLLOWED:
            if number < 0:
                first = (-number - 1) * PART_BYTES
                return self._written[first : first + PART_BYTES]
            return self._part(number)
        if turn.kind == Kind.PAIR:
            return self._pairs.begin(turn.op_seq, turn.place)
        if turn.kind != Kind.RESULTS:
            return b""
        if number == 0 and turn.op_seq not in self._runs:
            found = self._run_from(turn.op_seq)
            if not found:
                return b""
            self._runs[turn.op_seq] = found
            while len(self._runs) > RUNS_MAX:
                self._runs.popitem(last=False)
        return self._runs.get(turn.op_seq, b"")[number * PART_BYTES : (number + 1) * PART_BYTES]

    def _yields(self) -> bool:
        """Whether the state waits as an op is under way: while results that came about meanwhile leave it the time."""
        return bool(self._open) and 2 * self._backlog.bytes < self._backlog.bytes_max

    def _run_from(self, op_seq: int) -> bytes:
        """Results of ops from that one on, as they travel; nothing while it is under way."""
        with self._looking:
            self._look(op_seq)
            found = self._backlog.run(op_seq)
            self.over = self.over or found is None
            return found or b""

    def _look(self, op_seq: int) -> None:
        """An op that has ended may be one whose result its caller has not asked for yet."""
        for seq, (session, op) in sorted(self._open.items()):
            if seq >= op_seq and session.poll(op):
                self.take(op)


class GivenHandle(Handle):
    """Of an op whose result others need who follow this rank."""

    __slots__ = ("_giver",)

    def __init__(self, session: Session, op: Op, giver: Giver) -> None:
        super().__init__(session, op)
        self._giver = giver
        giver.expect(session, op)

    def done(self) -> bool:
        """See Handle."""
        ended = super().done()
        if ended:
            self._giver.take(self._op)
        return ended

    def _outcome(self):  # type: ignore[no-untyped-def]
        self._giver.take(self._op)
        return super()._outcome()
