# SPDX-License-Identifier: Apache-2.0
"""A newcomer of an elastic job that catches up before it counts: it gets the state of one rank and the results of the
ops since, while the others go on; and comes in when it is where they are.

Until then it is in no view: nobody waits for it, and what it gives is in no sum. Its calls return what the ranks that
are in have got, with the receipt that one of them has. The others agree on a view with it as soon as it has caught up.
Ops before that view's first are still answered so, and ops from there on are its own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ultima.api.connection import Connection
from ultima.api.handle import Handle
from ultima.api.newcomers import seconds_of
from ultima.api.state_pairs import PairReader
from ultima.base.buffers import as_bytes
from ultima.base.durations import Duration
from ultima.base.errors import DaemonLost, DeadlineExceeded, Desync, InvalidArgument, RanksGone, Unsupported
from ultima.base.views import View
from ultima.base.words import OP_BY_CODE
from ultima.session.attachment import StateLine
from ultima.session.op import Op, OpState
from ultima.session.session import Session
from ultima.state.chosen import Word
from ultima.state.fetching import Fetch
from ultima.state.listing import ROOT_BYTES, Arrays
from ultima.state.outcome import StateReport
from ultima.state.results import Kind, Result, read

LOOK_S = 0.005  # between two looks for what is not there yet
TURN_EVERY_S = 1.0  # that the daemon hears that this rank still follows
STEP_OPS_MAX = 100_000


class _Head(NamedTuple):
    """Of the state that a rank gives."""

    op_seq: int
    revision: int
    size: int
    root: bytes


class Follower:
    """What a rank that follows has from the rank whose state it took."""

    def __init__(self, connection: Connection, line: StateLine, until: float) -> None:
        """until: by time.monotonic."""
        self._connection, self._line, self._until = connection, line, until
        self.rank = connection.session.rank
        """Whose state and results are taken; at first its own, which gives nothing to itself."""
        self._reader: PairReader | None = None
        """Of the rank that is followed."""
        self._places: dict[int, str] = {}
        self.op_seq = 0
        """The op whose result is taken next."""
        self._results: deque[Result] = deque()
        self._turned = 0.0
        self._came = 0
        """Results by the last look, if these were all that there were."""
        self._ready = False

    def turn(self, always: bool = True) -> tuple[int, ...]:
        """Says that it follows; returns the ranks of the newest view, the oldest first."""
        now = time.monotonic()
        if not always and now < self._turned + TURN_EVERY_S:
            return ()
        self._turned = now
        word = Word(self.op_seq, False, False, b"", 0, 0, self.rank + 1)
        ranks = self._line.turn(word, 0, (0, b""), 0.0, ready=self._ready).ranks
        self._places = {each.rank: each.place for each in ranks if each.place}
        return tuple(each.rank for each in ranks)

    def take_state(self, arrays: Arrays) -> StateReport | None:
        """Brings the rank's state into the arrays; None if it gives none, or not any more. Raises Desync."""
        began, head = time.monotonic(), self._head()
        if head is None:
            return None
        self._reader = reader = self._new_reader(arrays.size)
        fetch = Fetch(reader, arrays.listing(), arrays.part)
        listing = fetch.listing(head.root, [self.rank])
        if listing is None:
            return None
        if differs := arrays.outline().differs(listing):
            name, here, there = differs
            text = f"state: {name!r} differs: {here} here, {there} on rank {self.rank}"
            raise Desync(self.rank, f"state[{name!r}]", here, there, None, text)
        data = fetch.run(listing, head.root, [self.rank], self._goes_on)
        if data is None:
            return None
        arrays.fill(data)
        self.op_seq = head.op_seq
        return StateReport(
            revision=head.revision,
            op_seq=head.op_seq,
            root=head.root.hex(),
            nbytes=arrays.size,
            sources=dict(fetch.sources),
            parts=fetch.parts,
            again=fetch.again,
            false=fetch.false,
            elapsed_s=time.monotonic() - began,
        )

    def has(self, count: int) -> bool:
        """Whether so many results are here, after one look at what there is. Raises RanksGone."""
        if len(self._results) >= count:
            return True
        now = time.monotonic()
        first = self.op_seq + len(self._results)
        try:
            assert self._reader is not None, "results come after the state"
            found = self._reader.results(self.rank, first)
            results, left = read(found, first)
            # All there was is here, and no more than the time before: this rank keeps pace, as far behind as it is now.
            self._ready = self._ready or (left == 0 and len(results) <= self._came)
            self._came = len(results) if left == 0 else 0
            self._results += results
            if self._ready or now >= self._turned + TURN_EVERY_S:
                self.turn()
        except (ConnectionError, ValueError) as error:
            text = f"follow: rank {self.rank} gives no result of op {first}: {error}; call follow() again"
            raise RanksGone(text, (self.rank,)) from None
        return len(self._results) >= count

    def next(self) -> Result:
        """The result of `op_seq`, which is here."""
        self.op_seq += 1
        return self._results.popleft()

    def next_is_here(self) -> bool:
        """Whether the result of `op_seq` has come."""
        return bool(self._results)

    def end(self) -> None:
        """Follows nobody any more."""
        if self._reader is not None:
            self._reader.end()
        with contextlib.suppress(ConnectionError):  # a daemon that is gone knows nothing any more
            self._line.turn(None, 0, (0, b""), 0.0)
        self._line.close()

    def _new_reader(self, size: int) -> PairReader:
        if self._reader is not None:
            self._reader.end()
        made = PairReader(self._connection, self._line, size, Kind.FOLLOWED)
        made.places = self._places
        return made

    def _head(self) -> _Head | None:
        """None while the rank gives nothing."""
        try:
            found = b"".join(data for _, data in self._line.read(self.rank, b"", (), Kind.HEAD))
            said = json.loads(found) if found else None
            if said is None:
                return None
            head = _Head(int(said["op_seq"]), int(said["revision"]), int(said["size"]), bytes.fromhex(said["root"]))
        except (ConnectionError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return head if len(head.root) == ROOT_BYTES and min(head[:3]) >= 0 else None

    def _goes_on(self) -> bool:
        self.turn(always=False)
        return time.monotonic() < self._until


class Following:
    """What an elastic job has for a rank that catches up before it counts."""

    _connection: Connection
    _views: deque[View]

    def __init__(self, connection: Connection) -> None:
        self._outside = connection.settings.follow and self.view.position is None
        """This rank is in no op yet."""
        self._follower: Follower | None = None
        self._followed_in: Session | None = None

    @property
    def view(self) -> View:
        """See Views."""
        raise NotImplementedError

    def _skip(self, op_seq: int) -> None:
        """See Newcomers."""
        raise NotImplementedError

    def _look(self) -> View:
        """See Views."""
        raise NotImplementedError

    def follow(self, state: Any, timeout: Duration = "60s") -> StateReport | None:
        """Takes the state of the oldest rank while all go on, on a newcomer that said `connect(follow=True)`: from here
        on its calls return what the others get, until it has caught up and is in.

        The others call `share` before each op, as for `sync_state`, and do not wait: one of them copies its state and
        each result, and its daemon passes them on. This rank then makes the calls that the others make, and applies
        what they return, with less to do than they have: what it gives does not count, so `following` says when there
        is no gradient to compute. From the op on with which it comes in it computes and is waited for.

        state: see `share`; the arrays must be writable, and are written once all of the state is here.
        timeout: for the state to come, up to 10 min.

        Returns a StateReport: `revision` says where the program goes on. None if this rank is in ops already: it is one
        of those with which the job began. Raises DeadlineExceeded, which says whom it waited for; Desync, which names
        the first array that is another one there; InvalidArgument; Unsupported; or DaemonLost. Then the arrays are as
        they were.
        """
        seconds = seconds_of(timeout, "timeout")
        if not self._outside:
            return None
        until = time.monotonic() + seconds
        session = self._connection.ready(time.monotonic_ns() + int(seconds * 1e9))
        if session.state_line is None:
            raise Unsupported("follow", "this daemon passes on no state")
        arrays = Arrays(state, writable=True)
        if self._follower is not None:
            self._follower.end()
        self._follower = None
        line = session.state_line.another()
        follower = Follower(self._connection, line, until)
        try:
            taken = self._take_state(follower, arrays, until)
        except ConnectionError as error:
            raise DaemonLost("hangup", f"follow: {error}; the arrays are as they were") from None
        finally:
            if self._follower is None:
                follower.end()
        self._followed_in = session
        self._skip(taken.op_seq)
        return taken

    def _take_state(self, follower: Follower, arrays: Arrays, until: float) -> StateReport:
        while True:
            ranks = follower.turn()
            if ranks and follower.rank not in ranks:
                follower.rank = ranks[0]
                continue
            taken = follower.take_state(arrays) if ranks else None
            if taken is not None:
                self._follower = follower
                return taken
            if time.monotonic() >= until:
                whom = f"rank {follower.rank} did not give its state" if ranks else "no rank is in the job"
                why = "let each rank call share() before each op" if ranks else "connect without follow"
                raise DeadlineExceeded(f"follow: {whom}: {why}; the arrays are as they were")
            time.sleep(LOOK_S)

    def following(self, ops: int = 1, timeout: Duration = "60s") -> bool:
        """Whether the results of the next `ops` calls of this rank come from the others. Then what it gives counts
        nowhere, and need not be computed; else it does, at least in the last of these calls.

        Ask once before each step, with the number of its ops: the answer holds for them. The call waits until it is
        known: until the others are through with these ops, or have taken this rank in. timeout: for that, up to 10 min.

        Raises InvalidArgument; RanksGone if the rank that is followed is gone, or has no results left for one that is
        so far behind: then call `follow` again, or `sync_state` if this rank is in the view by now;
        DeadlineExceeded if the others do not go on; and DaemonLost.
        """
        _check_ops(ops)
        until = time.monotonic() + seconds_of(timeout, "timeout")
        if not self._outside:
            return False
        return self._known(ops, until)

    def _known(self, ops: int, until: float) -> bool:
        """Whether the results of so many ops are here; False: this rank is in from one of them on."""
        follower = self._checked()
        while not follower.has(ops):
            first = self._first_op()
            # It began with a number that the others had reached, and may have taken an earlier state.
            if first is not None and max(first, self._connection.session.calls_next) < follower.op_seq + ops:
                return False
            if time.monotonic() >= until:
                raise DeadlineExceeded(f"follow: the others have not ended op {follower.op_seq + ops - 1} in time")
            time.sleep(LOOK_S)
        return True

    def _checked(self) -> Follower:
        if self._follower is None:
            raise Unsupported("allreduce", "this rank is in no op yet (connect: follow=True): call follow(state) first")
        session = self._connection.session
        if session is not self._followed_in:
            self._follower.end()
            self._follower = None
            raise DaemonLost("session", "the daemon was lost while this rank followed the others: call follow() again")
        return self._follower

    def _first_op(self) -> int | None:
        """With which this rank is in; None while the others have not taken it in."""
        self._look()
        return next((view.since for view in tuple(self._views) if view.position is not None), None)

    def _answered(self, op: Op) -> Handle | None:
        """The next op as the others did it; None if it is this rank's own, who is in from here on. Raises as
        `following`, and Desync if they did another one."""
        follower = self._checked()
        until = time.monotonic() + max(0.0, (op.expires_ns - time.monotonic_ns()) / 1e9)
        if not follower.next_is_here() and not self._known(1, until):
            self._outside = False
            self._follower = None
            follower.end()
            self._connection.settings = replace(self._connection.settings, follow=False)
            return None
        if op.layout.sparse is not None:
            text = "a rank that follows has the results of dense sums and averages alone; until it is in"
            raise Unsupported("allreduce_sparse", f"{text}, let the others call no sparse op")
        result = follower.next()
        _check(op, result, follower.rank)
        np.copyto(as_bytes(op.target), np.frombuffer(result.data, np.uint8))
        op.seq, op.receipt, op.state = result.op_seq, result.receipt(), OpState.DONE
        op.submitted_ns = time.monotonic_ns()
        self._skip(follower.op_seq)
        return Handle(self._connection.session, op)


def _check_ops(ops: object) -> None:
    if isinstance(ops, bool) or not isinstance(ops, int) or not 1 <= ops <= STEP_OPS_MAX:
        raise InvalidArgument("ops", ops, f"a whole number from 1 to {STEP_OPS_MAX}")


def _check(op: Op, result: Result, rank: int) -> None:
    """Raises Desync."""
    mine = (("op", OP_BY_CODE[op.redop]), ("dtype", op.kind.name), ("count", op.count))
    size = op.kind.itemsize
    theirs = (result.op, result.dtype, len(result.data) // size)
    for (field, here), there in zip(mine, theirs, strict=True):
        if here != there:
            raise Desync(rank, field, here, there, result.op_seq)
