# SPDX-License-Identifier: Apache-2.0
"""The inside of the fake daemon of `ultima.testing`: its sessions, and one op among them.

All is called under the fake daemon's lock. An op is a set of contributions, copied when they are submitted, and a list
of ranks that wait; each waiting rank gets a result when nothing more can come for it, or at its deadline.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ultima.base.buffers import AnyArray
from ultima.base.receipt import Host, PeerReceipt, Receipt, StageEnd, Status, Trouble, Why
from ultima.base.reference import collective_result, nonfinite_count
from ultima.base.sparse_form import SparseCall
from ultima.base.words import (
    AGREE,
    COLLECTIVE_BY_CODE,
    DTYPE_BY_CODE,
    ERR_ABSENT,
    ERR_DESYNC,
    ERR_TIMEOUT,
    FIELD_BY_CODE,
    MODES,
    OP_BY_CODE,
)
from ultima.session.attachment import Completion, SlotWords
from ultima.session.op import Op

# Parts of a submission that must be the same on all ranks, by the number of the field.
_FIELDS: dict[int, Callable[[FakeSubmission], int]] = {
    7: lambda submission: submission.collective,
    1: lambda submission: submission.dtype,
    2: lambda submission: submission.redop,
    3: lambda submission: submission.count,
    4: lambda submission: submission.mode,
    5: lambda submission: submission.agree,
    8: lambda submission: submission.root,
    10: lambda submission: submission.group,
    11: lambda submission: submission.form,
    12: lambda submission: submission.hint,
}
# The algorithm is the job's, divisors are of partial jobs, and with one lane no op is split.
assert FIELD_BY_CODE.keys() - _FIELDS.keys() == {6, 9, 13}


def digest(result: bytes) -> int:
    """Not the engine's, but as good: equal for equal bytes."""
    return int.from_bytes(hashlib.blake2b(result, digest_size=8).digest(), "big")


@dataclass(slots=True)
class FakeSubmission:
    """One request, as it stands in a submission ring (offsets are bytes into the arena), and the size of its job."""

    op_seq: int
    src: int
    dst: int
    count: int
    deadline_ns: int
    dtype: int
    redop: int
    mode: int
    flags: int
    collective: int
    root: int
    wanted: int
    steps: tuple[int, int]
    entries: int
    group: int
    form: int
    hint: int
    world_size: int = 1

    @classmethod
    def of(cls, op: Op, world_size: int) -> FakeSubmission:
        """What an op asks for that has its number and its place in the arena."""
        layout, sparse = op.layout, op.layout.sparse
        return cls(
            op.seq, op.src, op.dst, op.count, op.deadline_ns, op.kind.code, op.redop, op.mode, op.flags,
            layout.collective, layout.root, op.wanted, op.steps,
            *((sparse.entries, sparse.group, sparse.form, sparse.hint) if sparse else (0, 0, 0, 0)),
            world_size=world_size,
        )  # fmt: skip

    @property
    def agree(self) -> int:
        """Whether all results are to be the same bytes."""
        return self.flags & AGREE

    @property
    def src_nbytes(self) -> int:
        """Bytes that the rank brings: of all-gather only its own shard."""
        if self.name == "barrier":
            return 1
        count = self.count // self.world_size if self.name == "all_gather" else self.count
        return count * DTYPE_BY_CODE[self.dtype].itemsize

    def contribution(self, arena: npt.NDArray[np.uint8]) -> AnyArray:
        """A copy of what the rank brings; of sparse entries the dense array that they stand for."""
        if self.sparse:
            dense = np.empty(self.count, np.float32)
            self.sparse.scatter(arena[self.src : self.src + self.sparse.nbytes], dense)
            return dense
        held = arena[self.src : self.src + self.src_nbytes]
        return held.copy().view(DTYPE_BY_CODE[self.dtype].numpy)

    @property
    def sparse(self) -> SparseCall | None:
        return SparseCall(self.entries, self.group, self.form, self.hint) if self.group else None

    @property
    def name(self) -> str:
        return COLLECTIVE_BY_CODE[self.collective]


class FakeSession:
    """An attached rank. Owns its ends of the life line and of the completion bell."""

    def __init__(self, rank: int, arena: npt.NDArray[np.uint8], lifeline: socket.socket, bell: socket.socket) -> None:
        self.rank = rank
        self.arena = arena
        self.completions: deque[Completion] = deque()
        self.outstanding = 0
        self.words = SlotWords()
        self._lifeline = lifeline
        self._bell = bell
        self._open = True

    def alive(self) -> bool:
        """Whether the trainer still holds its end."""
        if not self._open:
            return False
        try:
            return bool(self._lifeline.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def complete(self, completion: Completion) -> None:
        """Hands a completion to the trainer, if he is still there."""
        if self._open:
            self.completions.append(completion)
            with contextlib.suppress(OSError):  # not heard yet, or nobody there
                self._bell.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def hang_up(self) -> None:
        """Ends the session. Idempotent."""
        if self._open:
            self._open = False
            self._lifeline.close()
            self._bell.close()


def _moved(submission: FakeSubmission, shard: list[int], here: int, there: int) -> tuple[int, int]:
    """Bytes of each stage that host `here` expects of host `there`."""
    root = submission.root
    match submission.name:
        case "reduce_scatter":
            return shard[here], 0
        case "all_to_all":
            return shard[there], 0
        case "all_gather" | "barrier":
            return 0, shard[there]
        case "broadcast":
            return (0, 0) if here == root else (shard[here] if there == root else 0, shard[there])
    return shard[here], shard[there]


@dataclass(slots=True)
class _Part:
    """What one rank brought."""

    session: FakeSession
    submission: FakeSubmission
    submitted_ns: int
    arrives_ns: int
    data: AnyArray
    waiting: bool = True


class FakeOp:
    """One op of the fake job."""

    def __init__(self, op_seq: int, hosts: tuple[Host, ...], world_size: int) -> None:
        self._op_seq = op_seq
        self._hosts = hosts
        self._world_size = world_size
        self._parts: dict[int, _Part] = {}
        self._pretended: dict[int, AnyArray | None] = {}

    def join(self, session: FakeSession, submission: FakeSubmission, arrives_ns: int) -> None:
        """A rank calls the op; the others see its contribution from `arrives_ns` on."""
        data = submission.contribution(session.arena)
        self._parts[session.rank] = _Part(session, submission, time.monotonic_ns(), arrives_ns, data)

    def step(
        self,
        now_ns: int,
        absent: set[int],
        left_out: set[int],
        peer: Callable[[int, int, AnyArray], AnyArray | None] | None,
    ) -> int | None:
        """Ends what can be ended; returns when to look again, None for never."""
        wakes: list[int] = []
        for rank, part in self._parts.items():
            if not part.waiting:
                continue
            differing = self._differing(rank)
            if differing is not None:
                self._end_desync(part, *differing)
                continue
            values = self._visible(rank, now_ns, absent, left_out, peer)
            missing = set(range(self._world_size)) - values.keys()
            if missing <= absent or now_ns >= part.submission.deadline_ns:
                self._end(part, values, missing, absent, now_ns)
                continue
            wakes += [other.arrives_ns for other in self._parts.values() if other.arrives_ns > now_ns]
            wakes.append(part.submission.deadline_ns)
        return min(wakes, default=None)

    def _differing(self, rank: int) -> tuple[int, int] | None:
        """Another rank that asked for something else, and the number of the field."""
        mine = self._parts[rank].submission
        for other, part in sorted(self._parts.items()):
            for field, value in _FIELDS.items():
                if value(part.submission) != value(mine):
                    return other, field
        return None

    def _visible(
        self,
        rank: int,
        now_ns: int,
        absent: set[int],
        left_out: set[int],
        peer: Callable[[int, int, AnyArray], AnyArray | None] | None,
    ) -> dict[int, AnyArray]:
        """What has reached `rank`, by the rank that it is of."""
        part = self._parts[rank]
        values = {rank: part.data}
        if rank in left_out:
            return values
        for other, theirs in self._parts.items():
            if other not in left_out and theirs.arrives_ns <= now_ns:
                values[other] = theirs.data
        if peer is not None:
            for other in set(range(self._world_size)) - self._parts.keys() - absent - left_out:
                pretended = self._pretend(other, peer, self._parts[min(self._parts)].data)
                if pretended is not None:
                    values[other] = pretended
        return values

    def _pretend(
        self, rank: int, peer: Callable[[int, int, AnyArray], AnyArray | None], mine: AnyArray
    ) -> AnyArray | None:
        if rank not in self._pretended:
            given = peer(rank, self._op_seq, mine.copy())
            self._pretended[rank] = None if given is None else np.asarray(given, dtype=mine.dtype).reshape(mine.shape)
        return self._pretended[rank]

    def _end(self, part: _Part, values: dict[int, AnyArray], missing: set[int], absent: set[int], now_ns: int) -> None:
        receipt, error = self._receipt(part, values, missing, absent, now_ns), 0
        submission = part.submission
        if missing and (submission.mode == MODES["reliable"] or submission.agree):
            # In agree mode, too: a rank that is missing takes its shard with it.
            error = ERR_ABSENT if missing <= absent else ERR_TIMEOUT
        else:
            kind = DTYPE_BY_CODE[submission.dtype]
            arrays = [values[rank] for rank in sorted(values)]
            op = OP_BY_CODE.get(submission.redop, "")
            name = "allreduce" if submission.sparse else submission.name
            result = collective_result(name, part.session.rank, arrays, kind, op, submission.root)
            part.session.arena[submission.dst : submission.dst + result.nbytes] = result.view(np.uint8)
            receipt = replace(receipt, digest=digest(result.tobytes()))
        part.waiting = False
        culprit = None if not missing else self._host_of(min(missing)).index
        part.session.complete(Completion(self._op_seq, error, culprit, 0, 0, 0, receipt))

    def _end_desync(self, part: _Part, other: int, field: int) -> None:
        value = _FIELDS[field]
        here, there = value(part.submission), value(self._parts[other].submission)
        part.waiting = False
        receipt = self._receipt(part, {}, set(range(self._world_size)), set(), time.monotonic_ns())
        culprit = self._host_of(other).index
        part.session.complete(Completion(self._op_seq, ERR_DESYNC, culprit, field, here, there, receipt))

    def _host_of(self, rank: int) -> Host:
        return next(host for host in self._hosts if rank in host.ranks)

    def _receipt(
        self, part: _Part, values: dict[int, AnyArray], missing: set[int], absent: set[int], now_ns: int
    ) -> Receipt:
        here = self._host_of(part.session.rank)
        kind = DTYPE_BY_CODE[part.submission.dtype]
        # A barrier's is a byte of each host; its count is a note.
        count = len(self._hosts) if part.submission.name == "barrier" else part.submission.count
        share, rest = divmod(count, len(self._hosts))
        shard = [(share + (index < rest)) * kind.itemsize for index in range(len(self._hosts))]
        rows = [self._row(part.submission, host, here, shard, values, absent) for host in self._hosts]
        expected = sum(sum(row.expected_bytes) for row in rows)
        lost = sum(sum(row.missing_bytes) for row in rows)
        if not missing:
            status = Status.COMPLETE
        elif not values or part.submission.mode == MODES["reliable"] or part.submission.agree:
            status = Status.FAILED
        elif set(values) <= (set(here.ranks) if len(self._hosts) > 1 else {part.session.rank}):
            status = Status.INSUFFICIENT
        else:
            status = Status.PARTIAL
        elapsed_s = (now_ns - part.submitted_ns) * 1e-9
        end = StageEnd.COMPLETE if not missing else StageEnd.ABSENT if missing <= absent else StageEnd.DEADLINE
        return Receipt(
            op_seq=self._op_seq,
            status=status,
            world_size=self._world_size,
            contributors=self._host_of(part.submission.root).ranks
            if part.submission.name == "broadcast" and not missing
            else tuple(sorted(values)),
            partly=(),
            weight_min=len(values),
            peers=tuple(rows),
            culprit=tuple(sorted(missing & set(self._host_of(min(missing)).ranks))) if missing else (),
            stage_ends=(end, end),
            stage_s=(elapsed_s, 0.0),
            elapsed_s=elapsed_s,
            bytes_expected=expected,
            bytes_used=expected - lost,
            bytes_missing=lost,
            bytes_repaired=0,
            bytes_duplicate=0,
            nonfinite=nonfinite_count(part.data, kind),
            drops_host=0,
            trouble=(Trouble.GONE if missing <= absent else Trouble.SENDER) if missing else Trouble.NONE,
            incast=1,
            # The hosts that are gone own nothing.
            owners=tuple(rank for host in self._hosts if not absent.issuperset(host.ranks) for rank in host.ranks),
        )

    @staticmethod
    def _row(
        submission: FakeSubmission,
        host: Host,
        here: Host,
        shard: list[int],
        values: dict[int, AnyArray],
        absent: set[int],
    ) -> PeerReceipt:
        inside = tuple(rank for rank in host.ranks if rank in values)
        weight = len(inside)
        told = PeerReceipt(host.index, host.ranks, (0, 0), (0, 0), weight, Why.NOTHING, None)
        if inside or absent.issuperset(host.ranks):
            gone = tuple(rank for rank in host.ranks if rank in absent - values.keys())
            late = tuple(rank for rank in host.ranks if rank not in absent | values.keys())
            told = replace(told, fresh=inside, gone=gone, late=late)
        if host is here:
            return told
        expected = _moved(submission, shard, here.index, host.index)
        if weight:
            return replace(told, expected_bytes=expected, opened_s=0.0)
        why, trouble = (Why.ABSENT, Trouble.GONE) if told.gone else (Why.SILENT, Trouble.SENDER)
        return replace(told, expected_bytes=expected, missing_bytes=expected, why=why, trouble=trouble)
