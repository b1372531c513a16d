# SPDX-License-Identifier: Apache-2.0
"""The caller's end of an op that is under way."""

from __future__ import annotations

import time
from types import TracebackType

import numpy as np

from ultima.base.durations import Duration, duration_s
from ultima.base.errors import NotDone
from ultima.base.receipt import Receipt
from ultima.base.sparse_form import Floats, Indices
from ultima.base.words import NEVER
from ultima.session.op import Op
from ultima.session.session import Session


class Handle:
    """An op that was started with `Job.allreduce_async` or one of its kind.

    Until wait() has returned, or done() has said True, the arrays of the op belong to it: neither write nor read them.
    As a context manager it waits at the end of the block.
    """

    __slots__ = ("_op", "_submitted_in")

    def __init__(self, session: Session, op: Op) -> None:
        self._submitted_in = session
        self._op = op

    @property
    def _session(self) -> Session:
        """That has the op now: a later one, if its daemon was told to stop and came back."""
        session: Session = self._op.owner or self._submitted_in
        return session

    @property
    def op_seq(self) -> int:
        """Number of the op in the job."""
        return self._op.seq

    @property
    def nbytes(self) -> int:
        """Size of the op's bucket, in bytes."""
        return self._op.nbytes

    def wait(self, timeout: Duration | None = None) -> Receipt:
        """The receipt, once the op has ended; by then the result is in its array. May be called again.

        By default waits for the op's own deadline (and at most 50 ms longer, if its arrays lie outside the arena); with
        `timeout` (seconds, or text such as "250ms") raises NotDone when the op goes on after that. Raises what became
        of the op otherwise: Desync, DeadlineExceeded (reliable mode), DaemonLost, ClosedHandle, ForkedHandle.
        """
        op = self._op
        until_ns = NEVER if timeout is None else time.monotonic_ns() + int(duration_s(timeout, "timeout") * 1e9)
        try:
            if not self._session.wait(op, until_ns):
                raise NotDone(f"op {op.seq} has not ended within the timeout of its wait; it goes on")
        except KeyboardInterrupt:
            self._session.abandon(op)
            raise
        return self._outcome()

    def done(self) -> bool:
        """True once the op has ended, well or not; then the result is in its array. Does not wait."""
        return self._session.poll(self._op)

    @property
    def receipt(self) -> Receipt:
        """The receipt of an op that has ended. Raises NotDone before that, and what wait() raises if it failed."""
        if not self.done():
            raise NotDone(f"op {self._op.seq} has not ended; wait() for it")
        return self._outcome()

    @property
    def result(self) -> object:
        """The object that holds the result: `out` if it was given, else the array. Raises as `receipt` does."""
        if not self.done():
            raise NotDone(f"op {self._op.seq} has not ended; wait() for it")
        self._outcome()
        return self._op.result

    @property
    def returned(self) -> tuple[Indices, Floats]:
        """Of a sparse allreduce that has ended: the entries of this rank that its result does not hold.

        Indices (uint32, ascending), and `group` values for each, flat. Of an op that failed these are all entries; of
        other ops there are none. Raises NotDone as `receipt` does.
        """
        if not self.done():
            raise NotDone(f"op {self._op.seq} has not ended; wait() for it")
        call, lacking = self._op.layout.sparse, self._op.lacking
        if call is None or (self._op.failure is None and lacking is None):
            return np.empty(0, np.uint32), np.empty(0, np.float32)
        indices, values = call.entries_of(self._op.source)
        if lacking is None:
            return indices, values
        rows = lacking.reshape(-1, call.group)
        back = rows.any(axis=1)
        return indices[back], rows[back].reshape(-1)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()

    def __repr__(self) -> str:
        return f"<ultima.Handle op {self._op.seq} {self._op.state.name.lower()}>"

    def _outcome(self) -> Receipt:
        if self._op.failure is not None:
            raise self._op.failure.with_traceback(None)
        assert self._op.receipt is not None
        return self._op.receipt
