# SPDX-License-Identifier: Apache-2.0
"""The inside of the fake daemon of `ultima.testing` for jobs with a policy: the ranks' slots, and one op at a time.

A small model of `transport_c/core` in which all hosts hear of everything at once. As there, what an op took is read
from the trainers' arenas until it ends, so that a client that writes there too early is found out. All is called under
the fake daemon's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ultima.base.buffers import AnyArray
from ultima.base.receipt import Host, PeerReceipt, Receipt, Slot, StageEnd, Status, Why
from ultima.base.reference import nonfinite_count, partial_result, picks
from ultima.base.words import (
    DTYPE_BY_CODE,
    ERR_DESYNC,
    ERR_EXISTS,
    GIVE,
    NOWAIT,
    OPS,
    REPLACE,
    STATUS_EMPTY,
    STATUS_OVERTAKEN,
    STICKY,
    WORLD,
)
from ultima.session.attachment import Completion
from ultima.testing.fake_ops import FakeSession, FakeSubmission, digest
from ultima.v1.job_options import ETA, POLICIES, PROBES, TAU

Peer = Callable[[int, int, AnyArray], AnyArray | None]


@dataclass(slots=True)
class _Part:
    """What lies in a slot, or is in an op. Ranks that nobody connected have no session, but `data`."""

    session: FakeSession | None
    call: FakeSubmission
    given_for: int
    """The earliest op that something in it was given for: before the op that takes it, it is stale."""
    arrived_for: int
    """The latest: the rank is ready for ops up to it."""
    given_ns: int
    arrives_ns: int
    data: AnyArray | None = None

    def values(self) -> AnyArray:
        if self.session is None:
            assert self.data is not None
            return self.data
        held = self.session.arena[self.call.src : self.call.src + self.call.src_nbytes]
        return held.copy().view(DTYPE_BY_CODE[self.call.dtype].numpy)


@dataclass(slots=True)
class _Open:
    """The op that is under way."""

    op_seq: int
    parts: dict[int, _Part]
    initiator: int | None
    ends_ns: int
    waited_ns: int


class FakeSlots:
    """The slots of one job. `options`: numbers by field of the message JobOptions."""

    def __init__(self, hosts: tuple[Host, ...], world_size: int, options: Mapping[str, int]) -> None:
        self.policy = POLICIES[options["policy"] - 1]
        self._quorum = options.get("quorum") or -(-world_size // 2)
        self._probes = options.get("probes") or min(PROBES, world_size)
        self._tau = options.get("tau") or TAU
        self._eta = options.get("eta") or ETA
        self._seed = options.get("policy_seed", 0)
        self._hosts = hosts
        self._world_size = world_size
        self.next_op = 0
        self.op_ns = 0
        """How long an op takes."""
        self._slots: dict[int, _Part] = {}
        self._calls: list[tuple[FakeSession, FakeSubmission]] = []
        self._nulls = dict.fromkeys(range(world_size), 0)
        self._open: _Open | None = None
        self._due_ns: int | None = None
        self.results_kept: list[AnyArray] = []
        """Of all ops, for tests that add them up."""
        self._ended: tuple[Receipt, dict[int, Slot], AnyArray] | None = None

    def submit(self, session: FakeSession, call: FakeSubmission, arrives_ns: int, cut_off: bool) -> None:
        """A word to a rank's slot, or a question for a result. Ranks that are cut off hear of none."""
        rank, coming = session.rank, self.next_op + (self._open is not None)
        if call.flags & GIVE:
            there = self._slots.get(rank)
            if there is None and call.flags & REPLACE:
                self._answer(session, call, STATUS_OVERTAKEN)
                return
            if there is not None and not call.flags & REPLACE:
                self._answer(session, call, 0, error=ERR_EXISTS)
                return
            this = coming if call.flags & NOWAIT else call.wanted
            since = this if there is None or there.call.flags & STICKY else min(this, there.given_for)
            self._slots[rank] = _Part(session, call, since, this, time.monotonic_ns(), arrives_ns)
        newest = -1 if self._ended is None or cut_off else self._ended[0].op_seq
        if newest >= call.wanted:
            self._answer_with_result(session, call)
        elif call.flags & NOWAIT:
            self._answer(session, call, STATUS_EMPTY)
        else:
            self._calls.append((session, call))

    def forget(self, sessions: Mapping[int, FakeSession]) -> None:
        """Only these are alive still."""
        self._slots = {
            rank: part
            for rank, part in self._slots.items()
            if part.session is None or part.session is sessions.get(rank)
        }
        self._calls = [(session, call) for session, call in self._calls if session is sessions.get(session.rank)]

    def abort(self) -> None:
        """The daemons end in the middle of it all."""
        if self._open is not None:
            self.next_op = self._open.op_seq + 1
        self._open, self._ended = None, None
        self.forget({})

    def step(
        self, now_ns: int, sessions: Mapping[int, FakeSession], absent: set[int], cut_off: set[int], peer: Peer | None
    ) -> int | None:
        """Starts and ends what can be, and says when to look again."""
        self.forget(sessions)
        while True:
            if self._open is None:
                self._activate(now_ns, sessions, absent, cut_off, peer)
            if self._open is None or self._open.ends_ns > now_ns:
                break
            self._end(sessions, cut_off)
        for session, call in [each for each in self._calls if each[1].deadline_ns <= now_ns]:
            self._calls.remove((session, call))
            self._expire(session, call)
        wakes = [call.deadline_ns for _, call in self._calls]
        wakes += [part.arrives_ns for part in self._slots.values() if part.arrives_ns > now_ns]
        wakes += [self._open.ends_ns] if self._open is not None else []
        wakes += [self._late_ns()] if self._due_ns is not None else []
        return min(wakes, default=None)

    # Activation

    def _activate(
        self, now_ns: int, sessions: Mapping[int, FakeSession], absent: set[int], cut_off: set[int], peer: Peer | None
    ) -> None:
        op_seq = self.next_op
        there = {rank: part for rank, part in self._slots.items() if part.arrives_ns <= now_ns and rank not in cut_off}
        ready = {rank for rank, part in there.items() if part.arrived_for >= op_seq}
        if not ready:
            self._due_ns = None
            return
        if peer is not None:
            first = there[min(ready)]
            for rank in set(range(self._world_size)) - sessions.keys() - absent - cut_off - there.keys():
                given = peer(rank, op_seq, first.values())
                if given is not None:
                    data = np.asarray(given, dtype=first.values().dtype).reshape(-1)
                    there[rank] = _Part(None, first.call, op_seq, op_seq, now_ns, now_ns, data)
                    ready.add(rank)
        alive = set(range(self._world_size)) - absent - cut_off
        started, initiator = self._starts(op_seq, ready, alive)
        limit = min(there[rank].call.deadline_ns for rank in ready)
        if self.policy == "full" and now_ns >= limit:
            started = True
        if not started:
            self._due_ns = limit if self.policy == "full" else None
            return
        if self._due_ns is None:
            self._due_ns = now_ns
        awaited = [rank for rank in alive & sessions.keys() if self._nulls[rank] >= self._tau and rank not in there]
        if awaited and now_ns < self._late_ns():
            return
        self._due_ns = None
        given_ns = min(part.given_ns for part in there.values())
        self._open = _Open(op_seq, there, initiator, now_ns + self.op_ns, max(0, now_ns - given_ns))
        for rank in range(self._world_size):
            waited = self._nulls[rank] >= self._tau  # in vain, if it is not there: not again at once
            self._nulls[rank] = 0 if rank in there or waited else self._nulls[rank] + 1
        for rank, part in there.items():
            if part.session is not None:
                part.session.words = part.session.words._replace(taken=part.call.op_seq + 1)
                part.arrived_for = op_seq
                if not part.call.flags & STICKY:
                    del self._slots[rank]

    def _starts(self, op_seq: int, ready: set[int], alive: set[int]) -> tuple[bool, int | None]:
        """Whether the op starts with these ranks ready, and which one started it."""
        match self.policy:
            case "full":
                return ready >= alive, None
            case "solo":
                return True, min(ready)
            case "quorum":
                return len(ready) >= min(self._quorum, len(alive)), max(ready)
        count = 1 if self.policy == "majority" else self._probes
        drawn = [rank for rank in picks(self._seed, op_seq, self._world_size, count, alive) if rank in ready]
        return bool(drawn), drawn[0] if drawn else None

    def _late_ns(self) -> int:
        """When an op that waits for a rank that was absent too often starts all the same."""
        assert self._due_ns is not None
        if self.policy == "full":
            return self._due_ns
        spans = [part.call.deadline_ns - part.given_ns for part in self._slots.values()]
        return self._due_ns + min(spans, default=0) // 4

    # Ends

    def _end(self, sessions: Mapping[int, FakeSession], cut_off: set[int]) -> None:
        op, self._open = self._open, None
        assert op is not None
        self.next_op = op.op_seq + 1
        calls = [part.call for part in op.parts.values()]
        vectors = {(call.count, call.dtype, call.redop, call.mode, call.flags & WORLD) for call in calls}
        state = {
            rank: Slot.STALE if part.given_for < op.op_seq else Slot.FRESH for rank, part in sorted(op.parts.items())
        }
        receipt = self._receipt(op, state)
        here = [each for each in self._calls if each[1].wanted <= op.op_seq and each[0].rank not in cut_off]
        if len(vectors) == 1:
            kind = DTYPE_BY_CODE[calls[0].dtype]
            plain = calls[0].redop == OPS["sum"]
            divisor = "none" if plain else "world" if calls[0].flags & WORLD else "contributors"
            slots = [op.parts[rank].values() if rank in op.parts else None for rank in range(self._world_size)]
            result = partial_result(slots, kind, divisor)
            assert result is not None
            nonfinite = nonfinite_count(result, kind)
            object.__setattr__(receipt, "nonfinite", nonfinite)
            object.__setattr__(receipt, "digest", digest(result.tobytes()))
            self._ended = (receipt, state, result)
            self.results_kept.append(result[:1].copy())
        for part in op.parts.values():
            if part.session is not None:
                part.session.words = part.session.words._replace(freed=part.call.op_seq + 1)
        for rank, session in sessions.items():
            if rank not in cut_off and len(vectors) == 1:
                session.words = session.words._replace(results=op.op_seq + 1)
        for session, call in here:
            self._calls.remove((session, call))
            if len(vectors) == 1:
                self._answer_with_result(session, call)
            else:
                self._answer(session, call, 0, error=ERR_DESYNC)

    def _expire(self, session: FakeSession, call: FakeSubmission) -> None:
        """The deadline of a call that waits."""
        waiting = self._slots.get(session.rank)
        taken = session.words.taken > call.op_seq
        running = self._open is not None and session.rank in self._open.parts
        if not call.flags & GIVE or (taken and not running):
            self._answer(session, call, STATUS_EMPTY)
            return
        if waiting is not None and waiting.call is call:
            del self._slots[session.rank]
        session.arena[call.dst : call.dst + call.src_nbytes] = session.arena[call.src : call.src + call.src_nbytes]
        self._answer(session, call, 0, alone=True)

    # Answers

    def _answer_with_result(self, session: FakeSession, call: FakeSubmission) -> None:
        assert self._ended is not None
        receipt, state, result = self._ended
        session.arena[call.dst : call.dst + result.nbytes] = result.view(np.uint8)
        waiting = self._slots.get(session.rank)
        kept = waiting is not None and waiting.call is call
        mine = replace(receipt, slot=state.get(session.rank, Slot.NULL), kept=kept)
        session.complete(Completion(receipt.op_seq, 0, None, 0, 0, 0, mine, call.op_seq))

    def _answer(
        self, session: FakeSession, call: FakeSubmission, status: int, error: int = 0, alone: bool = False
    ) -> None:
        coming = self.next_op + (self._open is not None)
        receipt = self._receipt(_Open(coming, {}, None, 0, 0), {})
        if alone:
            receipt = replace(receipt, status=Status.INSUFFICIENT, contributors=(session.rank,))
        session.complete(Completion(coming, error, None, 0, 0, 0, receipt, call.op_seq, status))

    def _receipt(self, op: _Open, state: Mapping[int, Slot]) -> Receipt:
        rows = []
        for host in self._hosts:
            fresh, stale = (
                tuple(rank for rank in host.ranks if state.get(rank) is slot) for slot in (Slot.FRESH, Slot.STALE)
            )
            oldest = min((op.parts[rank].call.steps[0] for rank in (*fresh, *stale)), default=None)
            weight = len(fresh) + len(stale)
            row = PeerReceipt(host.index, host.ranks, (0, 0), (0, 0), weight, Why.NOTHING, None)
            rows.append(replace(row, fresh=fresh, stale=stale, oldest_step=oldest))
        by = next((host.ranks for host in self._hosts if op.initiator in host.ranks), ())
        missed = self.policy == "full" and len(op.parts) < self._world_size
        end = StageEnd.DEADLINE if missed else StageEnd.COMPLETE
        return Receipt(
            op_seq=op.op_seq,
            status=Status.PARTIAL if missed else Status.COMPLETE,
            world_size=self._world_size,
            contributors=tuple(sorted(op.parts)),
            partly=(),
            weight_min=len(op.parts),
            peers=tuple(rows),
            culprit=(),
            stage_ends=(end, end),
            stage_s=(0.0, 0.0),
            elapsed_s=self.op_ns * 1e-9,
            bytes_expected=0,
            bytes_used=0,
            bytes_missing=0,
            bytes_repaired=0,
            bytes_duplicate=0,
            nonfinite=0,
            drops_host=0,
            incast=1,
            policy=self.policy,
            included=len(op.parts),
            initiator=by,
            waited_s=op.waited_ns * 1e-9,
            eta=self._eta,
            owners=tuple(range(self._world_size)),
        )
