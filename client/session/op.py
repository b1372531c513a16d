# SPDX-License-Identifier: Apache-2.0
"""One op on its way: what was asked, where its bytes lie, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np

from ultima.base.buffers import AnyArray, address_of, as_bytes
from ultima.base.errors import (
    DeadlineExceeded,
    Desync,
    InvalidArgument,
    ProtocolError,
    RanksGone,
    ResourceExhausted,
    UltimaError,
)
from ultima.base.quant_form import QuantCall
from ultima.base.receipt import Host, Receipt, StageEnd, Status, Trouble, ranks_text
from ultima.base.sparse_form import SparseCall
from ultima.base.words import (
    AGREE,
    COLLECTIVES,
    ERR_ABSENT,
    ERR_ARGUMENT,
    ERR_CLOSED,
    ERR_DESYNC,
    ERR_DTYPE,
    ERR_FULL,
    ERR_RANGE,
    ERR_REDOP,
    ERR_SEQUENCE,
    ERR_TIMEOUT,
    ERR_TOO_LARGE,
    FIELD_BY_CODE,
    GIVE,
    MODES,
    NOWAIT,
    STATUS_BEHIND,
    STATUS_EMPTY,
    STATUS_OVERTAKEN,
    WORLD,
    DType,
    field_value,
)
from ultima.session import timeline
from ultima.session.arena import Arena, Block
from ultima.session.attachment import Completion

WITHOUT_RESULT = (STATUS_EMPTY, STATUS_OVERTAKEN, STATUS_BEHIND)


class OpState(Enum):
    """Forward only, though COPYING is skipped when there is nothing to copy."""

    FLYING = auto()
    """Not ended; the engine may read and write its memory."""
    ENDED = auto()
    """The engine is through with it; the result waits in the arena to be copied out."""
    COPYING = auto()
    """Some thread is copying the result out."""
    DONE = auto()
    BACK = auto()
    """The daemon went before it had ended: the next session asks for it again (away.py). Then it is FLYING."""


class Layout(NamedTuple):
    """Which collective an op is, and how its buffers lie in its bucket (`core/base/submission.h`). Bytes."""

    collective: int
    nbytes: int
    """Of the bucket."""
    src_from: int = 0
    """Where the source begins in it: not 0 where that is the own shard alone."""
    dst_from: int = 0
    apart: bool = False
    """Source and target may never be the same memory."""
    root: int = 0
    note: int | None = None
    """Of a barrier: any number."""
    sparse: SparseCall | None = None
    """Of a sparse allreduce, whose source is no bucket; of a quantised one `quant`, of a weighted one `weight`."""
    quant: QuantCall | None = None
    weight: int | None = None


class Op:
    """A checked request and its fate. The session that it is submitted in guards all that changes.

    `times`: the deadline that the engine has, and when the caller stops to wait for the daemon; `Connection.times`.
    """

    __slots__ = (
        "abandoned",
        "answer",
        "block",
        "copies",
        "count",
        "cut",
        "deadline_ns",
        "dst",
        "exact",
        "expires_ns",
        "failure",
        "flags",
        "kind",
        "lacking",
        "layout",
        "left",
        "lent",
        "mode",
        "nbytes",
        "owner",
        "portions",
        "receipt",
        "redop",
        "residual",
        "result",
        "seq",
        "source",
        "src",
        "state",
        "steps",
        "submitted_ns",
        "target",
        "wanted",
    )

    def __init__(
        self,
        source: AnyArray,
        target: AnyArray,
        result: object,
        kind: DType,
        redop: int,
        mode: int,
        *,
        times: tuple[int, int],
        flags: int = 0,
        layout: Layout | None = None,
        wanted: int = 0,
        steps: tuple[int, int] = (0, 0),
    ) -> None:
        self.source = source
        self.target = target
        self.result = result
        """The object that the caller gave for the result."""
        self.kind = kind
        self.layout = layout = layout or Layout(COLLECTIVES["allreduce"], source.nbytes)
        self.nbytes = layout.nbytes
        """Of the bucket: at least those of `source` and of `target`."""
        self.count = layout.nbytes // kind.itemsize if layout.note is None else 0
        self.residual = layout.quant.residual if layout.quant else None
        """Of a quantised allreduce: memory of the arena that the engine reads and writes besides."""
        self.redop = redop
        self.mode = mode
        self.deadline_ns, self.expires_ns = times
        self.flags = flags
        self.wanted = wanted
        """In a job with a policy: the first op whose result is taken."""
        self.steps = steps
        """And the oldest and newest step in what is given."""
        self.lent = False
        """The caller has no hold of its array yet, and gets none if it ends without the daemon."""
        self.exact = False
        """Of a coded job: the sum over all data or nothing."""
        self.seq = -1
        """Of the op; in a job with a policy of the submission. Of one that is split the first of several."""
        self.portions = 1
        self.answer: Completion | None = None
        """What the engine said, even if nobody waits for it any more."""
        self.submitted_ns = 0
        """When the engine was told, by time.monotonic_ns."""
        self.src = -1
        self.dst = -1
        self.left = -1
        """Where the residual of a quantised op lies, which is never copied; -1: it has none."""
        self.block: Block | None = None
        """Staging memory, for the contribution, the result or both."""
        self.copies = False
        """The result lies in it, and must be copied to `target`."""
        self.state = OpState.FLYING
        self.cut = False
        """The engine had begun it when its daemon went."""
        self.owner: Any = None
        """The session that it is submitted in."""
        self.abandoned = False
        """The caller was told that it failed: whatever still comes must not reach his array."""
        self.receipt: Receipt | None = None
        self.lacking: AnyArray | None = None
        """Of a sparse allreduce: its values, and 0 in the place of those that are in the result; None: all are."""
        self.failure: UltimaError | None = None

    def place(self, arena: Arena, allowed_in_place: bool) -> int:
        """Finds out how much staging memory the op needs, in bytes, and sets src and dst as far as they lie in the
        arena.

        `allowed_in_place` is False when the arena memory of this op is still in the hands of an abandoned one.
        """
        if not self.nbytes:
            self.src = self.dst = 0
            return 0
        if self.residual is not None:
            at = _offset(arena, self.residual, self.kind)
            if at is None or not allowed_in_place:
                raise InvalidArgument("feedback", "memory that this daemon does not share", "an array from Job.empty")
            self.left = at
        inside = allowed_in_place
        src = _offset(arena, self.source, self.kind) if inside else None
        dst = src if self.target is self.source else _offset(arena, self.target, self.kind) if inside else None
        if src is not None and dst is not None:
            self.src, self.dst = src, dst
            return 0
        layout = self.layout
        if dst is not None and self.target.nbytes == self.nbytes and not layout.apart:
            # Only the target lies in the arena: work in place there.
            self.src, self.dst = dst + layout.src_from, dst
            arena.view(self.src, self.source.nbytes)[:] = as_bytes(self.source)
            return 0
        self.src, self.dst = -1 if src is None else src, -1 if dst is None else dst
        self.copies = dst is None and layout.note is None  # a barrier's result is nothing of interest
        if src is None and dst is None:
            return self._apart_from + self.target.nbytes if layout.apart else self.nbytes
        return self.source.nbytes if src is None else self.target.nbytes

    @property
    def may_be_alone(self) -> bool:
        """Whether own values are a result. Who gives and does not wait (GIVE, NOWAIT) asks for none."""
        layout = self.layout
        sums = layout.collective == COLLECTIVES["allreduce"] or bool(layout.sparse or layout.quant)
        gives = self.flags & (GIVE | NOWAIT) == GIVE | NOWAIT
        return sums and not gives and not self.exact and self.mode != MODES["reliable"] and not self.flags & AGREE

    @property
    def is_apart(self) -> bool:
        """Whether the engine writes to staging memory alone, and reads there or what was left to it: then the caller's
        arrays are his again, whatever the engine still does."""
        return self.lent or (self._is_staged(self.dst) and (bool(self.flags & GIVE) or self._is_staged(self.src)))

    def _is_staged(self, at: int) -> bool:
        block = self.block
        return at < 0 or not self.nbytes or (block is not None and block.offset <= at < block.offset + block.nbytes)

    def touches(self, arena: Arena) -> bool:
        """Whether an array of the caller's lies in the arena."""
        pairs = [(self.source, self.source.nbytes), (self.target, self.target.nbytes)]
        pairs += [(left, left.nbytes) for left in (self.residual,) if left is not None]
        return any(arena.offset_of(address_of(array), nbytes) is not None for array, nbytes in pairs)

    def is_alone_there(self, arena: Arena, others: Iterable[Op]) -> bool:
        """Whether none of |others|, which have not ended, uses the same memory of the arena. Raises InvalidArgument if
        that one's caller still waits for it."""
        alone = True
        for other in others:
            used = [(self.source, self.target is self.source), (self.target, True)]
            used += [(left, True) for left in (self.residual,) if left is not None]
            for array, writes in used:
                low = address_of(array) - arena.address
                if other.conflicts(low, low + array.nbytes, writes):
                    if not other.abandoned:
                        raise busy(other)
                    alone = False
        return alone

    def stage(self, arena: Arena, block: Block) -> None:
        """Takes `block` as staging memory, filled with the contribution unless that lies in the arena itself."""
        self.block = block
        arena.touch(block)
        both = self.src < 0 and self.dst < 0
        if self.src < 0:
            self.src = block.offset + (self.layout.src_from if both else 0)
            arena.view(self.src, self.source.nbytes)[:] = as_bytes(self.source)
        if self.dst < 0:
            apart = self._apart_from if both and self.layout.apart else 0
            self.dst = block.offset + apart + (self.layout.dst_from if both else 0)

    @property
    def _apart_from(self) -> int:
        """Where the target begins in staging memory that holds the source before it: a multiple of 8."""
        return -(-self.source.nbytes // 8) * 8

    def take_number(self, next_seq: int) -> int:
        """Takes the first number from `next_seq` on that it may have, and returns the one that follows it.

        An op in portions has as many numbers, from a multiple of that; those before it no rank uses."""
        self.seq = -(-next_seq // self.portions) * self.portions
        return self.seq + self.portions

    def end(self, completion: Completion, hosts: tuple[Host, ...], rank: int) -> None:
        """Takes in what the engine says."""
        self.answer = completion
        if self.abandoned:
            self.block = None
            return
        if completion.error:
            self.failure = failure_of(completion, hosts, rank, self.asked())
        else:
            self.receipt = completion.receipt
            # The engine does not know the trainer's side of it; nobody else has seen this receipt yet.
            object.__setattr__(self.receipt, "submitted_ns", self.submitted_ns)
            object.__setattr__(self.receipt, "ended_ns", time.monotonic_ns())
            call = self.layout.sparse
            if completion.lacks and call is not None and self.block is not None:
                given = self.block.arena.view(self.src, call.nbytes)
                self.lacking = given[4 * call.entries :].view(np.float32).copy()
        if timeline.active is not None and completion.error not in (ERR_CLOSED, ERR_SEQUENCE):  # those fail() draws
            timeline.active.ended(self)
        copy = self.copies and self.failure is None and completion.status not in WITHOUT_RESULT
        self.state = OpState.ENDED if copy else OpState.DONE
        if not copy:
            self.block = None

    def answer_alone(self, seq: int, hosts: tuple[Host, ...], rank: int) -> None:
        """Ends it as the op `seq` that the other ranks did while this host's daemon was away: the result is this rank's
        own contribution, as for a rank that calls too late. A reliable one fails.
        """
        self.seq = seq
        self.submitted_ns = time.monotonic_ns()
        others = tuple(other for host in hosts for other in host.ranks if other != rank)
        if self.mode == MODES["reliable"]:
            self.fail(RanksGone(f"op {seq}: the other ranks did it while this host's daemon was away", others))
            return
        self._take_own_values()
        self.receipt = self._receipt_alone(hosts, rank, StageEnd.ABSENT)
        self.state = OpState.DONE
        if timeline.active is not None:
            timeline.active.ended(self)

    def go_alone(self, hosts: tuple[Host, ...], rank: int, daemons: tuple[int, ...]) -> None:
        """Ends it with own values, which `copy_out` brings into the caller's array: the daemon has not answered. It may
        still do the op, so that the others have this rank's values in their results. `daemons`: its ranks."""
        self.abandoned = True
        self.receipt = self._receipt_alone(hosts, rank, StageEnd.DEADLINE, daemons)
        self.state = OpState.ENDED
        if timeline.active is not None:
            timeline.active.ended(self)

    def _take_own_values(self) -> None:
        if self.layout.sparse:
            self.layout.sparse.scatter(self.source, self.target.reshape(-1))
        elif self.target is not self.source:
            np.copyto(as_bytes(self.target), as_bytes(self.source))

    def _receipt_alone(
        self, hosts: tuple[Host, ...], rank: int, end: StageEnd, culprit: tuple[int, ...] = ()
    ) -> Receipt:
        now = time.monotonic_ns()
        elapsed_s = (now - self.submitted_ns) / 1e9
        expected = 2 * (len(hosts) - 1) * self.nbytes // len(hosts)
        return Receipt(
            op_seq=self.seq,
            status=Status.INSUFFICIENT,
            world_size=sum(len(host.ranks) for host in hosts),
            contributors=(rank,),
            partly=(),
            weight_min=1,
            peers=(),
            culprit=culprit,
            stage_ends=(end, end),
            stage_s=(elapsed_s, 0.0),
            elapsed_s=elapsed_s,
            bytes_expected=expected,
            bytes_used=0,
            bytes_missing=expected,
            bytes_repaired=0,
            bytes_duplicate=0,
            nonfinite=0,
            drops_host=0,
            trouble=Trouble.DAEMON if culprit else Trouble.NONE,
            members=tuple(sorted(each for host in hosts for each in host.ranks)),
            submitted_ns=self.submitted_ns,
            ended_ns=now,
            portions=self.portions,
        )

    def asked(self) -> dict[str, int]:
        """The numbers that must be the same on all ranks, by the name of the field."""
        return {
            "collective": self.layout.collective,
            "root": self.layout.root,
            "dtype": self.kind.code,
            "op": self.redop,
            "count": self.count if self.layout.note is None else self.layout.note,
            "mode": self.mode,
            "agree": self.flags & AGREE,
            "divisor": self.flags & WORLD,
            "weight": int(self.layout.weight is not None),
            **{name: getattr(self.layout.sparse, name, 0) for name in ("group", "form", "hint", "down")},
            "wire": self.layout.quant.forms if self.layout.quant else 0,
        }

    def fail(self, failure: UltimaError) -> None:
        """Ends it without a result; the caller's array stays as it is. An abandoned one has ended before."""
        if self.abandoned:
            self.block = None
            return
        self.failure = failure
        if timeline.active is not None:
            timeline.active.ended(self)
        self.receipt = None
        self.block = None
        self.state = OpState.DONE

    @property
    def spoilt(self) -> bool:
        """The engine may have written over what was given, so it cannot be given again."""
        given, written = address_of(self.source), address_of(self.target)
        apart = given >= written + self.target.nbytes or written >= given + self.source.nbytes
        if self.cut and self.residual is not None and self.nbytes > 0:
            return True  # it may hold already what was to be rounded once more
        return self.cut and self.block is None and self.nbytes > 0 and not apart

    def hand_back(self) -> None:
        """The daemon went before it had ended: it is as it was before it was submitted, but for its number."""
        self.block = None
        self.cut = self.copies = False
        self.src = self.dst = 0
        self.state = OpState.BACK

    def copy_out(self) -> None:
        """Brings the result from the staging memory into the caller's array; own values, if the op ended alone."""
        if self.abandoned:
            self._take_own_values()
            return
        assert self.block is not None
        np.copyto(as_bytes(self.target), self.block.arena.view(self.dst, self.target.nbytes))

    def conflicts(self, low: int, high: int, writes: bool) -> bool:
        """Whether the engine may still write to arena bytes low..high, or read them while someone `writes`."""
        written = self.dst < high and low < self.dst + self.target.nbytes
        if self.residual is not None and self.left >= 0:
            written = written or (self.left < high and low < self.left + self.residual.nbytes)
        return written or (writes and self.src < high and low < self.src + self.source.nbytes)


def failure_of(completion: Completion, hosts: tuple[Host, ...], rank: int, asked: dict[str, int]) -> UltimaError:
    """The exception, on `rank` that `asked` so, for an op that the engine ended without a result."""
    number, error = completion.op_seq, completion.error
    if error == ERR_DESYNC:
        field = FIELD_BY_CODE.get(completion.field, "op_seq")
        host = completion.culprit
        # Ranks of one host can differ among themselves, and then the host is our own.
        there = hosts[host].ranks if host is not None and host < len(hosts) else ()
        others = [other for other in there if other != rank]
        blamed = others[0] if others and (rank not in there or len(others) == 1) else None
        here, there_value = completion.value_here, completion.value_there
        # Ranks of one host share one account; which side of the difference we are on, only we know.
        if asked.get(field) == there_value:
            here, there_value = there_value, here
        if field == "count" and asked.get("collective") == COLLECTIVES["barrier"]:
            field = "note"
        return Desync(blamed, field, field_value(field, here), field_value(field, there_value), number)
    if error == ERR_TIMEOUT:
        receipt = completion.receipt
        blame = f"; waiting for {ranks_text(receipt.culprit)}" if receipt.culprit else ""
        return DeadlineExceeded(
            f"op {number} ({_promise(asked, receipt)}): it did not finish by its deadline{blame}", receipt
        )
    if error == ERR_ABSENT:
        gone = completion.receipt.gone or completion.receipt.culprit
        who = ranks_text(gone) if gone else "some rank"
        text = f"op {number} ({_promise(asked, completion.receipt)}): {who} cannot take part any more"
        return RanksGone(text, gone, completion.receipt)
    if error == ERR_TOO_LARGE:
        return ResourceExhausted("bucket_bytes_max", f"op {number}: larger than the job's largest bucket")
    if error == ERR_FULL:
        return ResourceExhausted("engine", f"op {number}: the daemon has no room for it")
    if error in (ERR_ARGUMENT, ERR_DTYPE, ERR_REDOP, ERR_RANGE):
        what = {ERR_DTYPE: "dtype", ERR_REDOP: "op", ERR_RANGE: "array"}.get(error, "submission")
        return InvalidArgument(
            what, f"refused by the daemon (op {number}, error {error})", "what this daemon's release takes"
        )
    return ProtocolError(f"op {number}: the daemon's engine reports error {error}")


def _promise(asked: dict[str, int], receipt: Receipt) -> str:
    """Why an op fails rather than to return what there is."""
    if receipt.policy == "coded":
        return "coded" if receipt.step is None else f"coded, step {receipt.step}"
    return "reliable" if asked.get("mode") == MODES["reliable"] or not asked.get("agree") else "with agree=True"


def _offset(arena: Arena, array: AnyArray, kind: DType) -> int | None:
    """Where an array lies in the arena, if it does and its elements are aligned there."""
    offset = arena.offset_of(address_of(array), array.nbytes)
    return offset if offset is not None and offset % kind.itemsize == 0 else None


def busy(other: Op) -> UltimaError:
    """Of memory that an op is to use, and another one does."""
    return InvalidArgument(
        "array", f"memory of op {other.seq}, which has not ended", "memory that no unfinished op uses"
    )
