# SPDX-License-Identifier: Apache-2.0
"""The inside of the fake daemon of `ultima.testing` for coded jobs: it decodes by the functions of `ultima.coded`.

All hosts hear of everything at once, so a step ends on all ranks alike. All is called under the fake daemon's lock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ultima.base.buffers import AnyArray
from ultima.base.receipt import Host, PeerReceipt, Receipt, Slot, StageEnd, Status, Why
from ultima.base.reference import nonfinite_count
from ultima.base.words import (
    DTYPE_BY_CODE,
    ERR_ABSENT,
    ERR_DESYNC,
    ERR_TIMEOUT,
    GIVE,
    STATUS_BEHIND,
    STATUS_FAILED,
)
from ultima.coded import Plan
from ultima.session.attachment import Completion
from ultima.testing.fake_ops import FakeSession, FakeSubmission, digest
from ultima.v1.job_options import BY_FIELD

Peer = Callable[[int, int, AnyArray], AnyArray | None]
KEPT = 3
YES = BY_FIELD["exact"].words.index("yes") + 1


@dataclass(slots=True)
class _Gift:
    session: FakeSession | None
    call: FakeSubmission
    arrives_ns: int
    data: AnyArray


@dataclass(slots=True)
class _Open:
    step: int
    started_ns: int
    ends_ns: int
    deadline_ns: int
    initiator: int
    parts: dict[int, _Gift] = field(default_factory=dict)


class FakeCoded:
    """The steps of one coded job. `options`: numbers by field of the message JobOptions."""

    policy = "coded"

    def __init__(self, hosts: tuple[Host, ...], world_size: int, options: Mapping[str, int]) -> None:
        children = options["children"] or None
        code = BY_FIELD["code"].words[options["code"] - 1]
        self.plan = Plan(world_size - (children is not None), options["stragglers"], children, code)
        self.op_ns = 0
        """How long an op takes at least."""
        self.next_op = 0
        self._exact = options["exact"] == YES
        self._hosts = hosts
        self._world_size = world_size
        self._gifts: dict[int, _Gift] = {}
        self._calls: list[tuple[FakeSession, FakeSubmission]] = []
        self._open: _Open | None = None
        self._next_step = 0
        self._results: dict[int, tuple[Receipt, AnyArray]] = {}

    def submit(self, session: FakeSession, call: FakeSubmission, arrives_ns: int, cut_off: bool) -> None:
        """A contribution to a step, or a question for its result."""
        if call.wanted < self._next_step and not cut_off:
            self._answer_with_result(session, call)
            return
        if call.flags & GIVE:
            held = session.arena[call.src : call.src + call.src_nbytes]
            data = held.copy().view(DTYPE_BY_CODE[call.dtype].numpy)
            self._gifts[session.rank] = _Gift(session, call, arrives_ns, data)
        self._calls.append((session, call))

    def abort(self) -> None:
        """The daemons end in the middle of it all."""
        self.next_op += self._open is not None
        self._open = None
        self._forget({})

    def step(
        self, now_ns: int, sessions: Mapping[int, FakeSession], absent: set[int], cut_off: set[int], peer: Peer | None
    ) -> int | None:
        """Starts and ends what can be, and says when to look again."""
        self._forget(sessions)
        while self._advance(now_ns, sessions, absent, cut_off, peer):
            pass
        for session, call in [each for each in self._calls if each[1].deadline_ns <= now_ns]:
            self._fail(session, call, ERR_TIMEOUT, None, self._receipt(self._open, now_ns, {}, Status.FAILED))
        wakes = [call.deadline_ns for _, call in self._calls]
        wakes += [gift.arrives_ns for gift in self._gifts.values() if gift.arrives_ns > now_ns]
        if self._open is not None:
            wakes += [self._open.deadline_ns] + [self._open.ends_ns] * (self._open.ends_ns > now_ns)
        return min(wakes, default=None)

    def _forget(self, sessions: Mapping[int, FakeSession]) -> None:
        def alive(session: FakeSession | None) -> bool:
            return session is not None and session is sessions.get(session.rank)

        self._gifts = {rank: gift for rank, gift in self._gifts.items() if alive(gift.session)}
        self._calls = [(session, call) for session, call in self._calls if alive(session)]

    def _advance(
        self, now_ns: int, sessions: Mapping[int, FakeSession], absent: set[int], cut_off: set[int], peer: Peer | None
    ) -> bool:
        """True if a step ended, one way or the other."""
        there = {rank: gift for rank, gift in self._gifts.items() if gift.arrives_ns <= now_ns and rank not in cut_off}
        if self._open is None:
            if not there:
                return False
            first = min(there, key=lambda rank: there[rank].arrives_ns)
            step, deadline_ns = there[first].call.wanted, there[first].call.deadline_ns
            self._open = _Open(step, now_ns, now_ns + self.op_ns, deadline_ns, first)
        op = self._open
        for rank in [rank for rank, gift in there.items() if gift.call.wanted == op.step]:
            op.parts[rank] = self._gifts.pop(rank)
            session, call = op.parts[rank].session, op.parts[rank].call
            assert session is not None
            session.words = session.words._replace(taken=call.op_seq + 1)
        self._pretend(op, now_ns, sessions, absent | cut_off, peer)
        used = self.plan.decoding(op.parts)
        if used is not None and now_ns >= op.ends_ns:
            self._end(op, used, now_ns, sessions, cut_off)
            return True
        possible = set(range(self._world_size)) - absent - cut_off | op.parts.keys()
        hopeless = not self.plan.decodable(possible)
        if now_ns < op.deadline_ns and not (hopeless and self._exact):
            return False
        estimate = None if self._exact else self._estimate(op)
        if estimate is not None:
            self._end(op, estimate, now_ns, sessions, cut_off)
        else:
            self._end_failed(op, ERR_ABSENT if hopeless else ERR_TIMEOUT, now_ns)
        return True

    def _pretend(
        self, op: _Open, now_ns: int, sessions: Mapping[int, FakeSession], gone: set[int], peer: Peer | None
    ) -> None:
        """Ranks that nobody connected give what `peer` says, when they are asked first."""
        if peer is None or not op.parts:
            return
        first = op.parts[min(op.parts)]
        for rank in set(range(self.plan.first, self.plan.hosts)) - sessions.keys() - gone - op.parts.keys():
            given = peer(rank, op.step, first.data.copy())
            if given is not None:
                data = np.asarray(given, dtype=first.data.dtype).reshape(-1)
                op.parts[rank] = _Gift(None, first.call, now_ns, data)

    def _estimate(self, op: _Open) -> dict[int, float] | None:
        """What the parts that are there are multiplied by, so that their sum is nearest to that of all."""
        if self.plan.children is not None:
            return None
        code = self.plan.parents
        came = sorted(op.parts)
        if code.kind == "groups":
            size = self.plan.stragglers + 1
            first = {rank // size: rank for rank in reversed(came)}
            groups = self.plan.workers // size
            return {rank: groups / len(first) for rank in first.values()}
        a = np.linalg.lstsq(code.encoding[came].T, np.ones(self.plan.workers), rcond=None)[0]
        return dict(zip(came, map(float, a), strict=True))

    def _end(
        self,
        op: _Open,
        used: Mapping[int, float],
        now_ns: int,
        sessions: Mapping[int, FakeSession],
        cut_off: set[int],
    ) -> None:
        calls = {(part.call.count, part.call.dtype) for part in op.parts.values()}
        if len(calls) > 1:
            self._end_failed(op, ERR_DESYNC, now_ns)
            return
        kind = DTYPE_BY_CODE[next(iter(calls))[1]]
        total = sum(
            (coefficient * op.parts[rank].data.astype(np.float64) for rank, coefficient in sorted(used.items())),
            np.zeros(1),
        )
        result: AnyArray = total.astype(kind.numpy)
        exact = self.plan.decodable(op.parts)
        receipt = self._receipt(op, now_ns, used, Status.COMPLETE if exact else Status.PARTIAL)
        receipt = replace(receipt, nonfinite=nonfinite_count(result, kind), digest=digest(result.tobytes()))
        self._close(op)
        self._next_step = op.step + 1
        self._results[op.step] = receipt, result
        for old in [step for step in self._results if step <= op.step - KEPT]:
            del self._results[old]
        for rank, session in sessions.items():
            if rank not in cut_off:
                session.words = session.words._replace(results=self._next_step)
        for rank in [rank for rank, gift in self._gifts.items() if gift.call.wanted < self._next_step]:
            del self._gifts[rank]
        for session, call in [each for each in self._calls if each[1].wanted < self._next_step]:
            if session.rank not in cut_off:
                self._calls.remove((session, call))
                self._answer_with_result(session, call)

    def _end_failed(self, op: _Open, error: int, now_ns: int) -> None:
        receipt = self._receipt(op, now_ns, {}, Status.FAILED)
        lacking = [rank for rank in range(self.plan.first, self.plan.hosts) if rank not in op.parts]
        blamed = next((host for host in self._hosts if set(host.ranks) & set(lacking)), None)
        receipt = replace(receipt, culprit=blamed.ranks if blamed is not None else ())
        self._close(op)
        giving = {id(part.call) for part in op.parts.values()}
        for session, call in [each for each in self._calls if id(each[1]) in giving]:
            self._fail(session, call, error, blamed, receipt)

    def _close(self, op: _Open) -> None:
        self._open = None
        self.next_op += 1
        for part in op.parts.values():
            if part.session is not None:
                part.session.words = part.session.words._replace(freed=part.call.op_seq + 1)

    def _fail(
        self, session: FakeSession, call: FakeSubmission, error: int, blamed: Host | None, receipt: Receipt
    ) -> None:
        self._calls.remove((session, call))
        waiting = self._gifts.get(session.rank)
        if waiting is not None and waiting.call is call:
            del self._gifts[session.rank]
        culprit = None if blamed is None else blamed.index
        op_seq = receipt.op_seq
        session.complete(Completion(op_seq, error, culprit, 3, 0, 0, receipt, call.op_seq, STATUS_FAILED))

    def _answer_with_result(self, session: FakeSession, call: FakeSubmission) -> None:
        kept = self._results.get(call.wanted)
        if kept is None:
            receipt = self._receipt(None, time.monotonic_ns(), {}, Status.FAILED)
            receipt = replace(receipt, step=self._next_step - 1)
            session.complete(Completion(self.next_op, 0, None, 0, 0, 0, receipt, call.op_seq, STATUS_BEHIND))
            return
        receipt, result = kept
        session.arena[call.dst : call.dst + result.nbytes] = result.view(np.uint8)
        mine = replace(receipt, slot=Slot.FRESH if session.rank in receipt.fresh else Slot.NULL)
        session.complete(Completion(receipt.op_seq, 0, None, 0, 0, 0, mine, call.op_seq))

    def _receipt(self, op: _Open | None, now_ns: int, used: Mapping[int, float], status: Status) -> Receipt:
        parts: dict[int, _Gift] = {} if op is None else op.parts
        rows = []
        for host in self._hosts:
            fresh = tuple(rank for rank in host.ranks if rank in parts)
            row = PeerReceipt(host.index, host.ranks, (0, 0), (0, 0), len(fresh), Why.NOTHING, None)
            rows.append(replace(row, fresh=fresh, oldest_step=op.step if op is not None and fresh else None))
        workers = range(self.plan.first, self.plan.hosts)
        elapsed_s = 0.0 if op is None else (now_ns - op.started_ns) * 1e-9
        end = StageEnd.COMPLETE if status is Status.COMPLETE else StageEnd.DEADLINE
        return Receipt(
            op_seq=self.next_op,
            status=status,
            world_size=self._world_size,
            contributors=tuple(sorted(used)),
            partly=(),
            weight_min=self._world_size if status is Status.COMPLETE else len(used),
            peers=tuple(rows),
            culprit=(),
            stage_ends=(end, end),
            stage_s=(elapsed_s, elapsed_s),
            elapsed_s=elapsed_s,
            bytes_expected=0,
            bytes_used=0,
            bytes_missing=0,
            bytes_repaired=0,
            bytes_duplicate=0,
            nonfinite=0,
            drops_host=0,
            incast=1,
            policy=self.policy,
            included=len(parts),
            initiator=next((host.ranks for host in self._hosts if op is not None and op.initiator in host.ranks), ()),
            owners=tuple(range(self._world_size)),
            step=None if op is None else op.step,
            exact=status is Status.COMPLETE,
            unused=tuple(rank for rank in sorted(parts) if rank not in used),
            late=tuple(rank for rank in workers if rank not in parts),
            residual=self._residual(used) if status is Status.PARTIAL else 0.0,
        )

    def _residual(self, used: Mapping[int, float]) -> float:
        total = sum(
            (each * self.plan.parents.encoding[rank] for rank, each in used.items()), np.zeros(self.plan.workers)
        )
        return math.sqrt(float(((total - 1) ** 2).sum()))
