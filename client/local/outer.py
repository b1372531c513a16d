# SPDX-License-Identifier: Apache-2.0
"""`Outer`: one rank's part in local SGD.

Each rank trains by itself, and now and then all average how far they came from the outer model, theta, which has the
same bits on all of them. What a rank did is never thrown away because a round went without it: its parameters phi move
with theta (they are *rebased*) and keep what it did, so the next difference theta - phi holds all of it. That holds
range by range, where only some of it was missed. For that to be right the sum is divided by the weight of all members,
and not of those that are in it: then all that a rank does moves theta once, by its share, whenever it comes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ultima.api.handle import Handle
from ultima.api.job import ElasticJob, Job
from ultima.base.buffers import AnyArray
from ultima.base.durations import Duration
from ultima.base.errors import Desync, UltimaError
from ultima.base.receipt import Receipt
from ultima.base.warning import warn
from ultima.local.account import OuterSummary, Round, round_of
from ultima.local.carrier import ABSENT
from ultima.local.company import company_of
from ultima.local.largest import carrier_of
from ultima.local.marks import sized
from ultima.local.moves import Moves
from ultima.local.pieces import Pieces
from ultima.local.round_kernels import Bools, Floats, first_nonfinite
from ultima.local.rules import Nesterov
from ultima.local.settings import (
    AUTO,
    PASSES,
    check_grace,
    check_schedule,
    check_sparse,
    check_words,
    deadline_of,
    quorum_of,
    rule_of,
    seats_of,
    weight_of,
)
from ultima.local.state import STATE_VERSION, Digest, check_state, digest_of
from ultima.local.telling import tell
from ultima.local.turns import MEND, ROUND, Turns, Verdict
from ultima.local.values import Arrays, Layout, Values
from ultima.local.vector import FEW_BITS, Head, Vector
from ultima.local.window import AUTO_SHARE
from ultima.local.window_elastic import window_of
from ultima.settings.options import Options

EMPTY_IN_A_ROW = 3
_ARENA_VECTORS = 4
_opened: weakref.WeakKeyDictionary[Job, int] = weakref.WeakKeyDictionary()


class Nonfinite(UltimaError, ArithmeticError):
    """A tensor holds NaN or infinity, where a round was due; raised with nonfinite="raise"."""


class Outer:
    """One rank's part in local SGD over numpy arrays. All arguments alike on all ranks, but `deadline`.

        outer = ultima.Outer(job, {"w": w, "b": b}, every=100, wire="int8")
        for batch in data:
            train(w, b, batch)                  # in place
            outer.step(tokens=len(batch))

    job: of the training; the rounds are ops of a job beside it. arrays: float arrays by name, trained in place; those
    of rank 0 are everybody's to begin with.
    every: steps of a rank between two rounds of a fragment (H). fragments: parts of the model, each with rounds of its
    own, every / fragments steps apart. delay: steps after which a result is taken; 0 waits for it.
    outer: the outer rule. alpha: the share of the steps made meanwhile that is given up, 0 to 1.
    wire: "float32", or in few bits: "int16", "int8", "int4". feedback: whether what rounding took is sent with the next
    round; None for int4 alone. sparse: the share of the elements that a rank gives, the largest of each 4,096, above 0
    to 1 (SparseLoCo: 1/64); then `feedback` is how much of the others it keeps for the next round, 0.95 for None.
    quorum: ranks that a round needs, a number or "majority" or "all". In an elastic job those of the view are meant.
    grace: how long a round waits for the other ranks once `quorum` of them have given: a duration, or "auto" for a
    quarter of the time between rounds. A rank gives at its next step then, with what it did so far. If that comes too
    late, a thread takes part in the round for it, without anything of it. None: rounds wait until their deadline.
    weight: what a rank counts as: "equal", "tokens" (those of one of its steps), or a number above 0 of its own.
    nonfinite: what to do where the parameters are not finite: "reset" them to the outer model, or "raise".
    deadline: of a round, as for `Job.allreduce`; where the job was not told one either, four times as long as the first
    copy of the model took, if that is above 30 s. `layout` says where each array is in the flat outer model.

    In an elastic job this returns on a newcomer when it has the state of the others and is in a round with them, for
    which it waits up to 10 min. Raises InvalidArgument, also where ranks differ in their tensors or settings, and what
    `Job.beside` and `ElasticJob.sync_state` raise.
    """

    def __init__(
        self,
        job: Job,
        arrays: Mapping[str, AnyArray] | Values,
        every: int = 100,
        *,
        fragments: int = 1,
        delay: int = 0,
        outer: Nesterov | None = None,
        alpha: float = 0.0,
        wire: str = "float32",
        feedback: bool | float | None = None,
        sparse: float | None = None,
        quorum: int | str = 1,
        grace: Duration | None = None,
        weight: float | str = "equal",
        nonfinite: str = "reset",
        deadline: Duration | None = None,
    ) -> None:
        check_schedule(every, fragments, delay, alpha)
        check_words(wire, weight, nonfinite)
        check_sparse(sparse, wire, feedback)
        grace_s, seats, needed = check_grace(grace), seats_of(job), quorum_of(quorum, seats_of(job))
        self._rule = rule_of(outer)
        wire = "topk" if sparse is not None else wire
        self.every, self.delay, self.alpha, self.wire = every, delay, alpha, wire
        self._values: Values = Arrays(arrays) if isinstance(arrays, Mapping) else arrays
        self._weight, self._nonfinite = weight, nonfinite
        settings = {"every": every, "outer": self._rule.as_dict(), "wire": wire, "grace": grace_s,
                    "quorum": quorum if isinstance(job, ElasticJob) else needed,
                    "weight": weight if isinstance(weight, str) else "a number"}  # fmt: skip
        settings |= {} if sparse is None else {"sparse": sparse}
        self.layout = Layout(self._values.entries, fragments, settings)
        self._vectors = Vector(int(self.layout.longest), seats, wire)
        nbytes = 4 * self._vectors.count
        number = _opened[job] = _opened.get(job, -1) + 1
        name = f"outer{number}" if number else "outer"
        self.job = job.beside(name, Options(), arena_bytes=_ARENA_VECTORS * nbytes, bucket_bytes=nbytes)
        self._turns = Turns(self.job.rank, seats, fragments, PASSES[wire], needed)
        self._theta = np.empty(self.layout.count, np.float32)
        self._momentum = np.zeros(self.layout.count, np.float32)
        self._values.read(0, self._theta)
        self._company = company_of(self.job, self.layout, self._vectors.ranges, quorum, deadline)
        try:
            enters = self._company.begin(self._turns, self._theta, self._momentum)
            self._window = window_of(job, self.job, f"{name}/bell", grace_s)
        except BaseException:
            self.job.close()
            raise
        self._values.write(0, self._theta)
        self._moves = Moves(self._values, self._vectors.range, alpha)
        deadline = deadline_of(self.job, deadline, self._company.copied_s)
        self._carrier = carrier_of(self.job, self._vectors, wire, sparse, feedback, self.layout, deadline)
        self._pieces = Pieces(self.layout, self._theta, self._momentum)
        self._standing_in = False
        self._handle: Handle | None = None
        self._called = 0.0
        self._sent: Floats | None = None
        self._sent_at = self._sends = self._void_row = self._next_op = 0
        self._seen = self._turns.turn
        self._lock = threading.RLock()
        self._broken: UltimaError | None = None
        self._tokens_since = 0.0
        self._began: float | None = None
        self._summary = OuterSummary()
        self.last: Round | None = None
        """The newest round."""
        self.on_round: Callable[[Round], None] | None = None
        """Is called with each; with `grace` by another thread, too."""
        if enters:  # the others are about to call a round, and count on this rank
            self._send()
            Outer.finish(self)
        if self._window is not None:
            self._window.watch(self._tend)

    # What a training program calls

    def step(self, tokens: float = 1) -> None:
        """After each step of this rank: sends a fragment or takes a result when it is time.

        tokens: that the step was of; 0 if it was none, as without gradients. Raises Nonfinite, and Desync where ranks
        call other things; never because ranks, daemons or the network fail.
        """
        now = time.monotonic()
        with self._lock:
            self._began = now if self._began is None else self._began
            if tokens:
                self._summary.steps += 1
                self._summary.tokens += tokens
                self._tokens_since += tokens
            waited = self._summary.waited_s
            self._follow()
            if not self._standing_in:
                self._take()
            if self._is_due():
                if self._handle is None:
                    early = self._points() <= self._sends and not self._turns.urgent
                    self._sends = max(self._sends, self._points() + early)
                    self._send()
                    if self.delay == 0:
                        self._take()
                else:
                    self._summary.postponed += 1
            self._seen = self._turns.turn
            self._summary.spent_s += max(0.0, time.monotonic() - now - (self._summary.waited_s - waited))

    def finish(self) -> None:
        """Waits for the round under way, if there is one, and takes it; so does the end of a `with` block."""
        with self._lock:
            self._follow()
            self._take(wait=True)

    def meet(self) -> None:
        """One more round of every fragment at once; then this rank's own arrays become the outer model. To be called on
        all ranks after the same round: before an evaluation, or at the end. These rounds have no grace."""
        with self._lock:
            Outer.finish(self)
            for _ in range(self.layout.fragments):
                self._send(calls=False)
                Outer.finish(self)
            self._values.write(0, self._theta)

    def close(self) -> None:
        """Leaves the rounds. Idempotent."""
        if self._window is not None:
            self._window.close()
        self._handle = None
        self._company.leave()

    def __enter__(self) -> Outer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.finish()
        self.close()

    def summary(self) -> OuterSummary:
        """What the rounds added up to so far."""
        return replace(self._summary, elapsed_s=0.0 if self._began is None else time.monotonic() - self._began)

    @property
    def theta(self) -> Floats:
        """A copy of the outer model, flat: the same bits on all ranks that are not behind."""
        with self._lock:
            return self._theta.copy()

    @property
    def behind(self) -> bool:
        """Whether this rank may lack a round that others had, and waits for the state."""
        return self._turns.listens

    def state_dict(self) -> dict[str, Any]:
        """The outer model and momentum, how many results are in them, and what rounding took on this rank. To be saved
        with the model; between rounds (`finish`)."""
        turns = self._turns
        return {
            "version": STATE_VERSION,
            "layout": self.layout.text(),
            "turn": turns.turn,
            "fragment": turns.fragment,
            "theta": self._theta.copy(),
            "momentum": self._momentum.copy(),
            "residuals": None if self._carrier.residuals is None else [each.copy() for each in self._carrier.residuals],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave, on any number of ranks; the arrays themselves are not touched.

        Ranks that loaded less are behind those that loaded more, and get it from them. Raises InvalidArgument, which
        names the entry, before anything is changed.
        """
        check_state(state, self.layout)
        self._theta[:], self._momentum[:] = state["theta"], state["momentum"]
        turns = self._turns
        self._turns = Turns(turns.rank, turns.ranks, turns.fragments, turns.passes, turns.quorum,
                            int(state["turn"]), int(state["fragment"]), turns.who, turns.members)  # fmt: skip
        for mine, saved in zip(self._carrier.residuals or (), state["residuals"] or (), strict=False):
            if mine.shape == np.shape(saved):
                mine[:] = saved

    # How: when

    def _points(self) -> int:
        """How many sends the steps so far are worth."""
        return self._summary.steps * self.layout.fragments // self.every

    def _is_due(self) -> bool:
        if self._handle is None and (self._turns.urgent or self._is_called()):
            return True
        # The step that has a result calls no round by itself, so that ranks which stop with one have none under way.
        return self._points() > self._sends and (self._window is None or self._turns.turn == self._seen)

    def _is_called(self) -> bool:
        """Whether as many ranks as a round needs have given for the next one."""
        return self._window is not None and self._window.given(self._next_op) >= self._turns.quorum

    def _follow(self) -> None:
        """The trainer is here: its parameters follow what came meanwhile."""
        self._moves.settle()
        if self._broken is not None:
            raise self._broken

    def _grace_s(self) -> float:
        assert self._window is not None
        if self._turns.urgent:  # nobody's steps are asked for
            return 0.0
        if self._window.grace != AUTO:
            return float(self._window.grace)
        told = self.summary()
        return AUTO_SHARE * self.every / self.layout.fragments * (told.elapsed_s - told.waited_s) / max(1, told.steps)

    def _tend(self) -> None:
        """What the window's thread does while the trainer is late: takes a result, or takes part without giving."""
        if not self._lock.acquire(blocking=False):
            return  # the trainer is here, perhaps for long: others are still to hear that it has given
        try:
            if (window := self._window) is None or self._broken is not None:
                return
            closes = window.closes_in(self._next_op, self._turns.quorum, self._grace_s())
            if self._handle is not None and self._handle.done() and (self._standing_in or closes is not None):
                self._take(wait=True)
            elif self._handle is None and closes == 0:
                self._sends = self._points() + 1  # its next call is that of the others, or a point further on
                self._send(stands_in=True)
                if self._handle is None:
                    window.forget()  # the daemon is away: not again before the others go on
        except UltimaError as error:
            self._broken = error
        finally:
            self._lock.release()

    def _take(self, wait: bool = False) -> None:
        """The result of the op under way, if it is there and it is time."""
        handle = self._handle
        if handle is None:
            return
        age = self._summary.steps - self._sent_at
        hurry = wait or self.delay == 0 or self._turns.urgent
        if not hurry and (age < self.delay or (age < self.every and not handle.done())):
            return
        began = time.monotonic()
        self._handle, self._standing_in = None, False
        try:
            receipt = handle.wait()
        except ABSENT as error:
            self._fail(str(error), getattr(error, "receipt", None))
            return
        finally:
            self._summary.waited_s += time.monotonic() - began
        if lacks := self._company.lacks(self._turns, receipt):
            self._fail(lacks, receipt)
        else:
            self._ended(receipt)

    # How: sending

    def _send(self, stands_in: bool = False, calls: bool = True) -> None:
        """stands_in: for a trainer that is late, of which nothing is given. calls: the others are told."""
        turns = self._turns
        if self._window is not None and calls and not stands_in and self._company.stands_still(turns):
            self._window.ring(self._next_op)  # the thread of a late rank is to come, too
        self._summary.learned += self._company.catch_up(
            turns, self._theta, self._momentum, self._moves, self._carrier, self._trains
        )
        self._carrier.prepare()
        self._sent, data = None, None
        if not turns.listens and (turns.mend or not stands_in):
            data = self._pieces.to_give(turns.piece(turns.mend)) if turns.mend else self._read()
        weight = weight_of(self._weight, self._summary.tokens, self._summary.steps)
        digest = 0 if turns.listens or turns.mend else self._digest(turns.fragment)
        head = turns.head(weight, data is not None and (not turns.mend or turns.root), digest, self.layout.hash)
        self._fill(head, data if head.gave else None, weight)
        self._called, self._sent_at = time.monotonic(), self._summary.steps
        try:
            self._handle = self._carrier.start(turns.fragment, not turns.mend and head.gave)
        except ABSENT as error:
            self._fail(str(error), None)
            return
        self._standing_in = stands_in
        if self._window is not None:
            op = self._handle.op_seq
            if op < self._next_op:
                self._window.forget()
            self._next_op = op + 1
            if calls and not stands_in:
                self._window.ring(op)

    def _fill(self, head: Head, data: Floats | None, weight: float) -> None:
        """Makes the vector that of the next op. data: the piece of the state, or the own parameters, that are given."""
        turns, vectors, vector = self._turns, self._vectors, self._carrier.vector
        part, sizes = slice(*self.layout.bounds(turns.fragment)), None
        if self.wire in FEW_BITS:
            told = self._theta[part], self._momentum[part], self._rule.momentum
            sizes = sized(vectors, self.wire, *told, turns, data if turns.mend else None)
        vectors.clear(vector, turns.rank, head, sizes.head if sizes else 1.0, data.size if data is not None else 0)
        if data is None:
            return
        vectors.mark(vector, turns.rank, sizes.marks if sizes else None)
        if turns.mend:
            vectors.put(vector, data)
        else:
            self._carrier.give(turns.fragment, self._theta[part], data, weight, sizes)

    def _read(self) -> Floats | None:
        """This rank's own parameters in the fragment; None if they are not finite."""
        low, high = self.layout.bounds(self._turns.fragment)
        local = self._moves.room(high - low)
        self._values.read(low, local)
        if (wrong := first_nonfinite(local)) is not None:
            name = self.layout.name_at(low + wrong)
            if self._nonfinite == "raise":
                raise Nonfinite(f"{name} holds NaN or infinity")
            warn(f"{name} holds NaN or infinity: the fragment is set back to the outer model, and gives nothing")
            self._values.write(low, self._theta[low:high])
            self._summary.discarded_tokens += self._tokens_since
            return None
        self._sent = local
        return local

    def _digest(self, fragment: int) -> int:
        part = slice(*self.layout.bounds(fragment))
        return digest_of(self._theta[part], self._momentum[part])

    # How: taking

    def _fail(self, why: str, receipt: Receipt | None) -> None:
        """No result came here: others may have one."""
        self._summary.failed += 1
        self._summary.failure = why
        turns = self._turns
        if not turns.listens and not turns.mend:
            self._moves.hold(self.layout.bounds(turns.fragment)[0], self._sent)
            self._carrier.failed(turns.fragment, self._sent is not None)
        turns.failed()
        self._tell(Round(turns.turn, turns.fragment, "failed", why, receipt=receipt))

    def _ended(self, receipt: Receipt) -> None:
        turns, vectors = self._turns, self._vectors
        heads, holds = vectors.heads(self._carrier.vector), vectors.holds(self._carrier.vector)
        touched = vectors.touches(self._carrier.vector)
        for rank, head in heads.items():
            if head.layout != self.layout.hash:
                raise Desync(rank, "layout", f"{self.layout.hash:06x}", f"{head.layout:06x}", receipt.op_seq)
        number, fragment, gave = turns.turn, turns.fragment, not turns.listens and turns.mend == 0
        verdict = turns.judge(heads, [bool(each) for each in touched], [bool(each) for each in np.all(holds, axis=0)])
        if verdict.differ:
            self._summary.differed += 1
            warn(f"the outer models differ in fragment {fragment}: ranks {list(verdict.differ)} take that of the rest")
        mine = holds[:, turns.rank].copy() if self._sent is not None else np.zeros(len(holds), np.bool_)
        stepped = verdict.kind == ROUND and not turns.listens
        if gave:
            self._carrier.settle(fragment, mine if stepped else np.zeros(len(holds), np.bool_))
        digest = self._step_outer(fragment, verdict, mine) if stepped else 0
        if stepped:
            self._tokens_since = 0.0 if mine.all() else self._tokens_since
        elif verdict.piece is not None:
            self._take_piece(verdict)
        told = round_of(verdict, number, fragment, stepped, heads, holds, touched, mine, digest, receipt)
        self._summary.add(told, turns.rank)
        self._void_row = self._void_row + 1 if told.outcome == "void" else 0
        if self._void_row == EMPTY_IN_A_ROW:
            warn(f"{EMPTY_IN_A_ROW} rounds in a row moved nothing: {told.why}")
        self._tell(told)

    def _step_outer(self, fragment: int, verdict: Verdict, mine: Bools) -> int:
        """An outer step, part by part, and this rank's own parameters follow; returns the digest of the state then."""
        low, high = self.layout.bounds(fragment)
        theta, momentum, vectors = self._theta[low:high], self._momentum[low:high], self._vectors
        rows, digest = vectors.rows(self._carrier.vector), Digest()
        parts = vectors.parts(theta.size)
        for ranges, part in self._moves.stepping(low, theta, mine, self._sent, parts, self._trains):
            rule = self._rule.divided_by(verdict.divisor, max(0, self.layout.plain_from - low - part.start))
            rows.step(theta[part], momentum[part], rule, ranges.start)
            digest.add(theta[part], momentum[part])
        return digest.value

    @property
    def _trains(self) -> bool:
        """Whether this is the trainer, whose parameters may follow; its thread acts while it is in a step."""
        return self._window is None or not self._window.here

    def _take_piece(self, verdict: Verdict) -> None:
        piece, taken = verdict.piece, self._turns.taken
        assert piece is not None
        low, high = self.layout.bounds(piece.fragment)
        self._pieces.take(piece, self._vectors.data(self._carrier.vector, high - low))
        if not piece.last or (verdict.kind != MEND and not verdict.whole):
            return
        for low, before, after in self._pieces.put():
            self._moves.learn(low, before, after, self._vectors.ranges, taken, self._trains)
        if verdict.kind != MEND and taken:
            self._carrier.taken()
        self._turns.taken = False

    def _tell(self, told: Round) -> None:
        self.last = told
        tell(self.job, told, self.summary(), time.monotonic() - self._called)
        if self.on_round is not None:
            self.on_round(told)
