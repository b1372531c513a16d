# SPDX-License-Identifier: Apache-2.0
"""The interface of a job with a policy: what this rank gives is its gift, until an op that starts takes it.

    eager-SGD   receipt = job.allreduce(gradient)            # waits for the result of its step, or takes a later one
    RNA         partial = job.partial()
                partial.give(gradient)                       # at once, in the thread that computes
                result = partial.wait()                      # in the one that communicates; or poll() between two steps

A gradient that came too late for its op stays, and is combined with the next one (`combine.py`). Each gradient is in
one op at most. Replacing a gift is a compare-and-swap (`submission.h`, REPLACE): if an op took the old
gradient first, the op wins, and the new gradient is given alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from ultima.api import combine
from ultima.api.connection import Connection
from ultima.api.gift_buffers import GiftBuffers, Given, Piece
from ultima.api.requests import allreduce_op
from ultima.base.buffers import AnyArray, elements
from ultima.base.durations import Duration
from ultima.base.errors import DeadlineExceeded, InvalidArgument, ProtocolError
from ultima.base.quant_form import WireWords
from ultima.base.receipt import Receipt, Status
from ultima.base.words import (
    ADAPTIVE,
    GIVE,
    INTEGERS,
    NEVER,
    NOWAIT,
    OPS,
    REPLACE,
    STATUS_EMPTY,
    STATUS_OVERTAKEN,
    STICKY,
    WORLD,
    DType,
)
from ultima.session.op import Op
from ultima.session.session import Session, SessionState
from ultima.v1.job_options import ETA

DIVISORS = {"contributors": (OPS["avg"], 0), "world": (OPS["avg"], WORLD), "none": (OPS["sum"], 0)}
# As in the paper that each policy comes from: eager-SGD's by default, RNA's for these.
RNA = ("probe", "seeded")
STEP_MAX = 2**32 - 1
# An op can win the race for the gift once, and once more for a call that was interrupted.
SWAPS_MOST = 4


class Result(NamedTuple):
    """What an op yielded."""

    array: AnyArray
    """Flat, yours to keep and to change; or the `out` that was given. bfloat16 is held as uint16."""
    receipt: Receipt
    """What is in `array`, and what is not."""


@dataclass(slots=True)
class _Left:
    """A call that was given up before its answer came: whether it left its gift is still to be learned."""

    op: Op
    replaced: Piece | None
    before: _Left | None
    """An earlier one of which that is not known either, whose memory the engine may still read."""


class Partial:
    """Where this rank leaves gradients for ops. `Job.partial` makes it, one per job. It is safe for
    several threads: while one gives, others may poll and wait.

    When the daemon is lost, a gradient that an op had taken is either lost or counted, and nobody can say which. A
    gradient that no op had taken is given again with the next one. A gradient that was given with a call that raised is
    never given again, but an op may have taken it before. When the job is closed, what waits is withdrawn.
    """

    def __init__(self, connection: Connection) -> None:
        session = connection.session
        self.policy = session.options["policy"]
        """What starts the ops, by the newest receipt."""
        self.local_reduce = "weighted" if self.policy in RNA else "sum"
        """How gradients that no op has taken yet are combined: "sum" or "weighted"."""
        self.divisor = "contributors" if self.policy in RNA else "world"
        """What the sum is divided by: the ranks in it ("contributors"), all ("world"), nothing ("none")."""
        eta = session.options.get("eta", "")
        self.eta = int(eta) if eta.isdigit() and int(eta) else ETA
        """Steps that may lie between the oldest and the newest gradient that are combined by weight; the older are
        dropped. It is the job's, by the newest receipt."""
        self.step = session.next_op
        """Number of the next gradient if none is named: calls are counted, from the job's next op at the join."""
        self.newest = -1
        """Number of the newest op whose result this rank has had; -1 for none."""
        self._connection = connection
        self._session = session
        self._giving = threading.Lock()
        self._learning = threading.Lock()
        # The next op, as far as known. Steps may be more, for ops may fail or not come, and are counted anew when all
        # daemons were restarted.
        self._coming = session.next_op
        self._last = 0
        self._count = 0
        self._kind: DType | None = None
        self._words = (OPS["avg"], 0, 1)
        self._buffers: GiftBuffers | None = None
        self._pending: list[Given] = []
        self._left: _Left | None = None
        self._shaped = threading.Event()

    def configure(self, local_reduce: str | None, divisor: str | None) -> None:
        """Sets what `Job.partial` explains, from the next call on; None leaves it as it is. Raises InvalidArgument."""
        if local_reduce is not None and local_reduce not in combine.LOCAL_REDUCES:
            raise InvalidArgument("local_reduce", local_reduce, "one of " + ", ".join(combine.LOCAL_REDUCES))
        if divisor is not None and divisor not in DIVISORS:
            raise InvalidArgument("divisor", divisor, "one of " + ", ".join(DIVISORS))
        self.local_reduce = local_reduce or self.local_reduce
        self.divisor = divisor or self.divisor

    @property
    def pending(self) -> tuple[int, ...]:
        """Steps that were given and that no op is known to have taken, ascending."""
        with self._giving:
            if self._buffers is not None:
                self._settle(self._buffers)
            return tuple(step for given in self._pending for step in given.steps)

    # Eager-SGD

    def allreduce(
        self,
        array: Any,
        *,
        step: int | None = None,
        deadline: Duration | None = None,
        out: Any = None,
        mode: str | None = None,
        dtype: Any = None,
        **wire: Unpack[WireWords],
    ) -> Receipt:
        """Gives `array` for the op with the number `step` and waits for the result of that op, or takes a later one's.

        If the op has ended before, this rank is behind: the newest result comes at once (`receipt.op_seq > step`), and
        `array` stays for the next op (`receipt.kept`), combined with what is given until then. If no op ends by the
        deadline, the result is what was given, combined with what was pending; nothing of it stays (INSUFFICIENT).

        array, deadline, out, mode, dtype, and wire, answer, rounding, feedback: as for `PartialJob.allreduce`; the same
            number and type of elements in all calls.
        step: by default `self.step`; not below the one before.
        """
        return self.reduce(array, None, step=step, deadline=deadline, out=out, mode=mode, dtype=dtype, **wire)

    def reduce(
        self,
        array: Any,
        divisor: str | None,
        *,
        step: int | None,
        deadline: Duration | None,
        out: Any,
        mode: str | None,
        dtype: Any,
        **wire: Unpack[WireWords],
    ) -> Receipt:
        """The same as `allreduce`, with another `divisor`: "world", "contributors" or "none"; None for this face's."""
        now = time.monotonic_ns()
        request = allreduce_op(
            self._connection, now, array, "avg", deadline=deadline, out=out, mode=mode, dtype=dtype, **wire
        )
        op = self._give(request, step, divisor or self.divisor, sticky=False, waits=True)
        assert op.receipt is not None
        if op.abandoned:
            return replace(op.receipt, op_seq=self._coming, policy=self.policy, included=1, eta=self.eta)
        assert op.answer is not None
        if op.answer.status == STATUS_EMPTY:
            raise DeadlineExceeded(f"step {self._last}: an op took it, but its result did not arrive", op.receipt)
        self._learn(op.receipt)
        return op.receipt

    # RNA

    def give(
        self,
        array: Any,
        step: int | None = None,
        *,
        sticky: bool = False,
        deadline: Duration | None = None,
        mode: str | None = None,
        dtype: Any = None,
        **wire: Unpack[WireWords],
    ) -> int:
        """Gives `array` for the next op, and does not wait for it: only for the daemon to say that it has it.

        Returns the number of that op: its result, and no earlier one, holds what was given; if it is sticky, so do all
        later results.

        array: as for `allreduce`; it is copied.
        step, mode, dtype, wire: as for `allreduce`.
        sticky: every op from now on takes the array, until something else is given. It is not combined with what was
            given before, which is forgotten.
        deadline: how long an op that this starts may take; the job's by default.
        """
        now = time.monotonic_ns()
        request = allreduce_op(
            self._connection, now, array, "avg", deadline=deadline, mode=mode, dtype=dtype, reads_only=True, **wire
        )
        answer = self._give(request, step, self.divisor, sticky=sticky, waits=False).answer
        assert answer is not None
        return answer.op_seq

    def poll(self, newer_than: int | None = None, *, out: Any = None) -> Result | None:
        """The newest result, if its op has a number above `newer_than` (default: `self.newest`); else None. It returns
        at once and does not ask the daemon.

        out: where the result goes, C-contiguous; new memory in the arena by default. Raises DaemonLost once the daemon
        is known to be lost, until `give` or another call has attached again.
        """
        session = self._connection.session
        if session.look() is not SessionState.OPEN:
            raise session.failure()
        after = self._after(newer_than)
        if session.words().results <= after + 1 or not (self._shaped.is_set() or out is not None):
            return None
        return self._read(session, after + 1, time.monotonic_ns(), None, out, NOWAIT)

    def wait(
        self, newer_than: int | None = None, *, deadline: Duration | None = None, out: Any = None
    ) -> Result | None:
        """What `poll` gives, once it is there; None if there is none by the deadline (the job's by default).

        Before this rank has given anything, and without `out`, the call waits for that first.
        """
        now = time.monotonic_ns()
        _, expires_ns = self._connection.times(now, deadline)
        session = self._connection.ready(expires_ns)
        while out is None and not self._shaped.wait(min(0.1, max(0.0, (expires_ns - time.monotonic_ns()) / 1e9))):
            if session.look() is not SessionState.OPEN:
                raise session.failure()
            if time.monotonic_ns() >= expires_ns:
                return None
        return self._read(session, self._after(newer_than) + 1, now, deadline, out, 0)

    def rate_factor(self, receipt: Receipt) -> float:
        """What to multiply the learning rate by, for a step with the result of this receipt: with divisor
        "contributors" the number of ranks in it (RNA's gamma_k), else 1."""
        if self.divisor != "contributors" or receipt.status is Status.INSUFFICIENT:
            return 1.0
        return combine.scaled_rate(1.0, receipt.included)

    def __repr__(self) -> str:
        job = self._connection.settings.job
        return f"<ultima.Partial of job {job!r}, {self.policy}, {self.local_reduce}, divided by {self.divisor}>"

    # How: giving

    def _give(self, request: Op, step: int | None, divisor: str, *, sticky: bool, waits: bool) -> Op:
        """The answered submission."""
        self._connection.ready(request.expires_ns)  # before the lock: in a forked child nobody would ever let go of it
        with self._alone(request.expires_ns):
            session = self._connection.ready(request.expires_ns)
            if session is not self._session:
                self._take_over(session)
            number = self._checked(session, request, step)
            redop, flags = DIVISORS[divisor]
            self._words = (redop, flags, request.mode)
            flags |= request.flags & ADAPTIVE | GIVE | (STICKY if sticky else 0) | (0 if waits else NOWAIT)
            buffers = self._buffers = self._buffers or GiftBuffers(session, request.count, request.kind)
            given = Given([number], request.source.reshape(-1).view(request.kind.numpy))
            if self._left is not None and not session.hears_of(self._left.op, request):
                self._go_without(session, request, waits)
                self.step, self._last = number + 1, number
                return request
            for _ in range(SWAPS_MOST):
                self._settle(buffers)
                piece = buffers.blank()
                parts = self._composed(given, piece, sticky)
                op = Op(
                    piece.array,
                    request.target if waits else buffers.aside(piece) if sticky else piece.array,
                    request.result,
                    request.kind,
                    redop,
                    request.mode,
                    times=(request.deadline_ns, request.expires_ns),
                    flags=flags | (REPLACE if buffers.waiting is not None else 0),
                    layout=request.layout,
                    wanted=min(number, max(self._coming, session.words().results)) if waits else NEVER,
                    steps=(parts[0].steps[0] if parts else number, number),
                )
                self._ask(buffers, op, piece, sticky)
                if op.abandoned or self._account(buffers, op, piece, parts, sticky):
                    self.step = number + 1
                    self._last = number
                    self._shaped.set()
                    return op
            raise ProtocolError(
                "the daemon says that this rank's contribution is there and is not: different releases?"
            )

    def _ask(self, buffers: GiftBuffers, op: Op, piece: Piece, sticky: bool) -> None:
        """Submits and waits for the answer. If that is not heard, what was given may wait for an op, or may not."""
        session = buffers.session
        try:
            session.start(op)
            session.wait(op)
            if op.failure is not None and (op.answer is None or op.abandoned):
                raise op.failure
        except BaseException:
            if op.seq < 0:
                buffers.give_back(piece)
            else:
                session.abandon(op)
                self._leave(buffers, op, piece, sticky)
            raise
        if op.abandoned:
            self._pending = []  # it is in the caller's own values
            self._leave(buffers, op, piece, sticky)

    def _go_without(self, session: Session, request: Op, waits: bool) -> None:
        """An earlier call has had no answer yet, and while nobody knows which gift waits, none is touched."""
        assert self._left is not None
        request.seq, request.submitted_ns = self._left.op.seq, time.monotonic_ns()
        request.exact = not waits
        session.go_without(request)
        if request.failure is not None:
            raise request.failure

    def _leave(self, buffers: GiftBuffers, op: Op, piece: Piece, sticky: bool) -> None:
        """Its answer was not heard: what is pending, the daemon may have or may not."""
        self._left = _Left(op, buffers.placed(piece, op.seq, sticky), self._left)
        self._detach()

    def _account(self, buffers: GiftBuffers, op: Op, piece: Piece, parts: list[Given], sticky: bool) -> bool:
        """Takes in the answer. False if an op was quicker; then what waited is pending no more, or is no gift.

        Raises what the op failed of; then it was not given, unless the op that failed had taken it.
        """
        answer = op.answer
        assert answer is not None
        taken = buffers.session.words().taken > op.seq
        self._coming = max(self._coming, answer.op_seq + (taken and op.failure is not None))
        if answer.status == STATUS_OVERTAKEN:
            buffers.give_back(piece)
            self._settle(buffers)
            if buffers.waiting is not None:  # no op took it: it was taken back
                self._detach()
                buffers.release(buffers.empty())
            return False
        if op.failure is not None and not taken:
            buffers.give_back(piece)
            raise op.failure
        buffers.release(buffers.placed(piece, op.seq, sticky))
        self._pending = parts
        if not taken and answer.receipt.status is Status.INSUFFICIENT and not answer.receipt.kept:
            buffers.release(buffers.empty())
            self._pending = []
        self._settle(buffers)
        if op.failure is not None:
            raise op.failure
        return True

    def _settle(self, buffers: GiftBuffers) -> None:
        """Learns what became of what was given."""
        left = self._left
        if left is not None and left.op.answer is not None:
            self._left = None
            if left.op.answer.status == STATUS_OVERTAKEN:
                self._detach()
                if left.replaced is not None and buffers.session.words().taken > left.replaced.seq:
                    self._pending = []
                buffers.release(buffers.empty())
            buffers.release(left.replaced)
        if buffers.look():
            self._pending = []

    def _detach(self) -> None:
        """Copies what is pending out of the engine's pieces, which are about to be used anew."""
        self._pending = [part.apart() for part in self._pending]

    def _composed(self, given: Given, piece: Piece, sticky: bool) -> list[Given]:
        """Fills `piece` with what is given and what is pending. What will be pending then."""
        before, kind = self._pending, self._kind
        assert kind is not None
        weighted = self.local_reduce == "weighted"
        if weighted:
            steps = [part.steps[-1] for part in before] + given.steps
            before = before[combine.dropped(steps, self.eta) :]
        if sticky or not before:
            np.copyto(piece.array, given.array)
            return [] if sticky else [Given(given.steps, piece.array)]
        if not weighted:
            combine.total([*(part.array for part in before), given.array], kind, piece.array)
            return [Given([step for part in before for step in part.steps] + given.steps, piece.array)]
        # The weights change with each newer one, so that all are kept.
        parts = [part.apart() for part in (*before, given)]
        steps = [part.steps[-1] for part in parts]
        combine.weighted(steps, [part.array for part in parts], self.eta, kind, piece.array)
        return parts

    def _checked(self, session: Session, request: Op, step: int | None) -> int:
        number = self.step if step is None else step
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise InvalidArgument("step", step, "a whole number")
        number = int(number.__index__())
        if not self._last <= number <= STEP_MAX:
            raise InvalidArgument("step", number, f"{self._last} to {STEP_MAX}: not below the step before")
        if self.local_reduce == "weighted" and request.kind in INTEGERS:
            raise InvalidArgument("local_reduce", "weighted", f"'sum' for {request.kind.name}")
        self._check_vector(request.count, request.kind, "array")
        session.check_size(request)
        self._count, self._kind = request.count, request.kind
        return number

    def _check_vector(self, count: int, kind: DType, field: str) -> None:
        if self._kind is not None and (count, kind) != (self._count, self._kind):
            allowed = f"{self._count} elements of {self._kind.name}, as in the calls before: there is one gift"
            raise InvalidArgument(field, f"{count} elements of {kind.name}", allowed)

    def _take_over(self, session: Session) -> None:
        """Goes on in a new session. What no op of the old one took is given again with the next gradient."""
        if self._buffers is not None:
            self._settle(self._buffers)
            left = self._left
            if left is not None and left.replaced is not None and self._session.words().taken > left.replaced.seq:
                self._pending = []
        self._session, self._buffers, self._left = session, None, None
        with self._learning:
            self.newest = min(self.newest, session.next_op - 1)
        self._coming = session.next_op

    @contextmanager
    def _alone(self, expires_ns: int) -> Iterator[None]:
        if not self._giving.acquire(timeout=max(0.0, (expires_ns - time.monotonic_ns()) / 1e9)):
            raise DeadlineExceeded("another thread's call to this job did not end by the deadline")
        try:
            yield
        finally:
            self._giving.release()

    # How: reading

    def _read(
        self, session: Session, wanted: int, now: int, deadline: Duration | None, out: Any, flags: int
    ) -> Result | None:
        times = self._connection.times(now, deadline)
        redop, divided, mode = self._words
        if out is not None:
            target, kind = elements(out, self._kind, "out", writable=True)
            self._check_vector(target.nbytes // kind.itemsize, kind, "out")
        else:
            assert self._kind is not None
            kind = self._kind
            target = self._connection.empty(self._count, kind.name)
        op = Op(target, target, target, kind, redop, mode, times=times, flags=flags | divided, wanted=wanted)
        op.lent = out is None
        try:
            session.start(op)
            session.wait(op)
        except KeyboardInterrupt:
            session.abandon(op)
            raise
        if op.failure is not None:
            raise op.failure
        if op.abandoned:  # nothing was heard, so there is no result
            return None
        assert op.receipt is not None and op.answer is not None
        if op.answer.status == STATUS_EMPTY:
            return None
        self._learn(op.receipt)
        return Result(target if out is None else out, op.receipt)

    def _after(self, newer_than: int | None) -> int:
        if newer_than is None:
            return self.newest
        if isinstance(newer_than, bool) or not hasattr(newer_than, "__index__") or newer_than < -1:
            raise InvalidArgument("newer_than", newer_than, "the number of an op, or -1 for any")
        return int(newer_than.__index__())

    def _learn(self, receipt: Receipt) -> None:
        with self._learning:
            if receipt.policy != "none":
                self.policy, self.eta = receipt.policy, receipt.eta or self.eta
            if receipt.included:
                self.newest = max(self.newest, receipt.op_seq)
