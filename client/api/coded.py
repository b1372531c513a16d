# SPDX-License-Identifier: Apache-2.0
"""The interface of a coded job: the exact sum over all data, although ranks are late (`ultima.coded` has the codes).

    plan = ultima.coded.Plan(12, stragglers=1)
    with ultima.connect(options=ultima.Options(**plan.options())) as job:
        coded = job.coded(plan)
        receipt = coded.reduce(mine, step)        # mine: the sum of coefficient * gradient over plan.allocation(...)

A contribution is for one step, and so is each result. An op begins with the first contribution to a step. Who gives
while it runs is still in, and who gives after that gets the result without having been in it: `over` says so before
the work is done.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from ultima.api.connection import Connection
from ultima.api.gift_buffers import GiftBuffers
from ultima.api.partial import STEP_MAX, Result
from ultima.api.requests import allreduce_op
from ultima.base.buffers import elements
from ultima.base.durations import Duration
from ultima.base.errors import Behind, DeadlineExceeded, InvalidArgument
from ultima.base.receipt import Receipt
from ultima.base.words import FLOAT32, FLOAT64, GIVE, MODES, OPS, STATUS_BEHIND, STATUS_EMPTY, DType
from ultima.coded import Plan
from ultima.session.op import Op
from ultima.session.session import Session, SessionState

RESULTS_KEPT = 3
"""Steps whose results a host keeps for a rank that is behind."""


class Coded:
    """This rank's part in a coded job. `Job.coded` makes it, one per job; it is safe for several threads.

    Nothing of a contribution outlives its call: when `reduce` raises, the contribution is in no op any more, and the
    same one may be given again.
    """

    def __init__(self, connection: Connection, world_size: int) -> None:
        options = connection.session.options
        tree = None if options["children"] == "star" else int(options["children"])
        stragglers = 0 if options["stragglers"] == "none" else int(options["stragglers"])
        self.plan = Plan(world_size - (tree is not None), stragglers, tree, options["code"])
        """Who computes which data, as the ranks agreed when they joined."""
        self.exact = options["exact"] == "yes"
        """Whether a step fails if its sum cannot be had; else it ends with an estimate, and its receipt says so."""
        self._connection = connection
        self._session = connection.session
        self._giving = threading.Lock()
        self._buffers: GiftBuffers | None = None
        # The newest contribution, for as long as the daemon has not answered it.
        self._left: Op | None = None
        self._count = 0
        self._kind: DType | None = None

    def check(self, plan: Plan | None) -> None:
        """Raises InvalidArgument for another plan than the job's."""
        if plan is not None and plan != self.plan:
            raise InvalidArgument("plan", plan, f"{self.plan}, the plan of this job: connect(options=...) names it")

    def reduce(
        self, array: Any, step: int, *, deadline: Duration | None = None, out: Any = None, dtype: Any = None
    ) -> Receipt:
        """Gives `array` to `step` and waits for the sum over all data of that step, in place or in `out`.

        array: float32 or float64, C-contiguous, the same number of elements in all calls.
        step: 0 to 2^32 - 1.
        deadline, out, dtype: as for `Job.allreduce`.

        If the step went on without this rank, its result comes at once, and `array` is not needed. Raises RanksGone if
        so many ranks are gone that the rest cannot have the sum, and DeadlineExceeded if there was none in time; then
        give the same array again. Raises Behind if the result of the step is here no more, and InvalidArgument.
        """
        now = time.monotonic_ns()
        number = _step_of(step)
        request = allreduce_op(
            self._connection, now, array, "sum", deadline=deadline, out=out, mode="bounded", dtype=dtype
        )
        self._check_vector(request.count, request.kind, "array")
        session = self._connection.ready(request.expires_ns)
        if not self._giving.acquire(timeout=max(0.0, (request.expires_ns - time.monotonic_ns()) / 1e9)):
            raise DeadlineExceeded("another thread's call to this job did not end by the deadline")
        try:
            op = self._give(session, request, number)
        finally:
            self._giving.release()
        return self._outcome(op, number)

    def wait(self, step: int, *, deadline: Duration | None = None, out: Any = None) -> Result:
        """The result of `step`, without a contribution to it, once it is there: for a rank that was too late.

        out: where the result goes; new memory by default, which needs a call of `reduce` before. Raises
        DeadlineExceeded if there is none by the deadline, and Behind as `reduce` does.
        """
        now = time.monotonic_ns()
        number = _step_of(step)
        times = self._connection.times(now, deadline)
        session = self._connection.ready(times[1])
        if out is not None:
            target, kind = elements(out, self._kind, "out", writable=True)
            self._check_vector(target.nbytes // kind.itemsize, kind, "out")
        elif self._kind is None:
            raise InvalidArgument("out", None, "an array, for a rank that has given nothing yet")
        else:
            kind = self._kind
            target = self._connection.empty(self._count, kind.name)
        op = Op(target, target, target, kind, OPS["sum"], MODES["bounded"], times=times, wanted=number)
        self._ask(session, op)
        return Result(target if out is None else out, self._outcome(op, number))

    def over(self, step: int) -> bool:
        """Whether the result of `step` is there: what this rank still computes for it is not needed. It does not ask
        the daemon. Raises DaemonLost once the daemon is known to be lost, until the next call attaches again.
        """
        number = _step_of(step)
        session = self._connection.session
        if session.look() is not SessionState.OPEN:
            raise session.failure()
        return session.words().results > number

    def __repr__(self) -> str:
        return f"<ultima.Coded of job {self._connection.settings.job!r}, {self.plan}>"

    # How

    def _give(self, session: Session, request: Op, step: int) -> Op:
        if session is not self._session or self._buffers is None:
            self._session, self._buffers, self._left = session, GiftBuffers(session, request.count, request.kind), None
        self._buffers.are_for(request.count, request.kind)  # other than before, if no step had a result yet
        session.check_size(request)
        buffers = self._buffers
        if self._left is not None and not session.hears_of(self._left, request):
            request.seq, request.submitted_ns, request.exact = self._left.seq, time.monotonic_ns(), True
            session.go_without(request)
            return request
        buffers.look()
        piece = buffers.blank()
        np.copyto(piece.array, request.source.reshape(-1).view(request.kind.numpy))
        op = Op(
            piece.array,
            request.target,
            request.result,
            request.kind,
            OPS["sum"],
            request.mode,
            times=(request.deadline_ns, request.expires_ns),
            flags=GIVE,
            wanted=step,
            steps=(step, step),
        )
        self._left = op
        try:
            self._ask(session, op)
        finally:
            if op.seq < 0:
                buffers.give_back(piece)
            else:
                before = buffers.placed(piece, op.seq, False)
                if op.answer is not None:  # no gift waits any more
                    buffers.release(before)
                    buffers.look()
                    buffers.release(buffers.empty())
        return op

    def _ask(self, session: Session, op: Op) -> None:
        """Submits and waits for the answer. Raises what the op failed of."""
        op.exact = True
        try:
            session.start(op)
            session.wait(op)
        except BaseException:
            if op.seq >= 0:
                session.abandon(op)
            raise

    def _outcome(self, op: Op, step: int) -> Receipt:
        if op.failure is not None:
            raise op.failure
        assert op.receipt is not None and op.answer is not None
        if op.answer.status == STATUS_BEHIND:
            raise Behind(step, op.receipt)
        if op.answer.status == STATUS_EMPTY:
            raise DeadlineExceeded(f"step {step}: no result by the deadline", op.receipt)
        self._count, self._kind = op.count, op.kind
        return op.receipt

    def _check_vector(self, count: int, kind: DType, field: str) -> None:
        if kind not in (FLOAT32, FLOAT64):
            raise InvalidArgument(field, f"elements of {kind.name}", "float32 or float64")
        if self._kind is not None and (count, kind) != (self._count, self._kind):
            allowed = f"{self._count} elements of {self._kind.name}, as in the calls before"
            raise InvalidArgument(field, f"{count} elements of {kind.name}", allowed)


def _step_of(step: Any) -> int:
    whole = hasattr(step, "__index__") and not isinstance(step, bool)
    if not whole or not 0 <= step.__index__() <= STEP_MAX:
        raise InvalidArgument("step", step, f"a whole number from 0 to {STEP_MAX}")
    return int(step.__index__())
