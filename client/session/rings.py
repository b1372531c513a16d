# SPDX-License-Identifier: Apache-2.0
"""The submission and completion rings through the extension.

Everything above works with offsets, numbers and Receipts and runs as well on the fake of `ultima.testing`. The structs
that cross into C are allocated once. Not safe for several threads: the session that owns the rings has the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ultima.base.native import ffi, lib
from ultima.base.receipt import Host, Receipt
from ultima.base.words import CULPRIT_NOBODY, DTYPE_BY_CODE, ERR_DESYNC, STATUS_FAILED
from ultima.session.attachment import Completion, SlotWords, Submission
from ultima.session.decode import agreed_op, decode_receipt, status_of
from ultima.session.memory import SharedMap

SUBMISSION_RING_BYTES: int = ffi.sizeof("ut_submission_ring")
COMPLETION_RING_BYTES: int = ffi.sizeof("ut_completion_ring")
_ROWS_AT: int = ffi.offsetof("ut_receipt", "peer")
_ROW_BYTES: int = ffi.sizeof("ut_receipt_peer")
ALIGNED = 64
"""Elements that a portion is a multiple of, but for the last: no cache line belongs to two."""


class NativeRings:
    """Both rings of each lane of one session, over mappings that are kept alive.

    Op s of a job with n lanes goes into lane s mod n, and is number s / n there. A partial job has one lane, and its
    submissions are numbered by themselves. A call that is split has a portion in each lane: their completions
    become one here when the last has come.
    """

    def __init__(
        self,
        lanes: Sequence[tuple[SharedMap, SharedMap]],
        hosts: Sequence[Host],
        rank: int,
        world_size: int,
        partial: bool = False,
    ) -> None:
        self._maps = [mapping for lane in lanes for mapping in lane]
        self._lanes = [
            (
                ffi.cast("ut_submission_ring *", submissions.address),
                ffi.cast("ut_completion_ring *", completions.address),
            )
            for submissions, completions in lanes
        ]
        self._turn = 0
        self._partial = partial
        self._usable = True
        self._entry = ffi.new("ut_submission *")
        self._raw = ffi.new("ut_receipt *")
        # Of calls that are split, by their number: the receipts of the portions that have ended.
        self._portions: dict[int, dict[int, Any]] = {}
        self._hosts = tuple(hosts)
        self._rank = rank
        self._world_size = world_size

    def submit(self, submission: Submission) -> bool:
        """See `Rings`."""
        entry, portions = self._entry, submission.portions
        lanes = len(self._lanes)
        self._fill(submission)
        if portions == 1:
            entry.op_seq, lane = divmod(submission.op_seq, lanes)
            entry.portion = entry.skipped = 0
            return lib.ut_ring_submit(*self._lanes[lane], entry) == 0
        width = DTYPE_BY_CODE[submission.dtype].itemsize
        each = -(-submission.count // portions // ALIGNED) * ALIGNED
        for portion in range(portions):
            first = min(portion * each, submission.count)
            entry.op_seq, lane = divmod(submission.op_seq + portion, lanes)
            entry.src = submission.src + first * width
            entry.dst = submission.dst + first * width
            entry.count = min(each, submission.count - first)
            entry.portion = portions << 4 | portion
            # Numbers that are left free end just before those of the portions, so they lie in the last lanes.
            entry.skipped = int(portion >= portions - submission.skipped)
            if lib.ut_ring_submit(*self._lanes[lane], entry):
                return False
        return True

    def _fill(self, submission: Submission) -> None:
        entry = self._entry
        entry.src = submission.src
        entry.dst = submission.dst
        entry.count = submission.count
        entry.deadline_ns = submission.deadline_ns
        entry.dtype = submission.dtype
        entry.redop = submission.redop
        entry.mode = submission.mode
        entry.flags = submission.flags
        entry.collective = submission.collective
        entry.root = submission.root
        entry.wanted = submission.wanted
        entry.oldest_step, entry.newest_step = submission.steps
        if submission.group:  # as ut_submission_entries and its neighbours read them
            entry.wanted, entry.oldest_step = submission.entries, submission.hint
            entry.newest_step = submission.group | submission.form << 16

    def take(self) -> Completion | None:
        """The next completion, or None; lane by lane in turn."""
        raw = self._raw
        while self._take_next():
            if not raw.portion or self._join():
                return self._completion()
            if raw.error == ERR_DESYNC:  # the other portions may have nobody to meet, and wait for their deadline
                raw.op_seq -= raw.portion % 16
                return self._completion()._replace(early=True)
        return None

    def _take_next(self) -> bool:
        """The next receipt of a lane, with the job's numbers of ops."""
        raw, lanes = self._raw, len(self._lanes)
        for _ in range(lanes):
            lane = self._turn
            self._turn = (lane + 1) % lanes
            if lib.ut_ring_take_completion(*self._lanes[lane], raw) == 1:
                agreed = agreed_op(raw.op_seq, raw.agreed_seq)
                raw.op_seq = raw.op_seq * lanes + lane
                raw.agreed_seq = (agreed * lanes + lane) % 2**32 if agreed is not None else raw.op_seq % 2**32
                return True
        return False

    def _join(self) -> bool:
        """Puts the receipt of a portion aside; with the last of them, makes one of all."""
        raw = self._raw
        portions, at = divmod(raw.portion, 16)
        first = raw.op_seq - at
        rest = self._portions.setdefault(first, {})
        rest[at] = ffi.new("ut_receipt *", raw[0])
        if len(rest) < portions:
            return False
        del self._portions[first]
        lib.ut_receipt_join(raw, [rest[number] for number in range(portions)], portions)
        return True

    def _completion(self) -> Completion:
        raw = self._raw
        culprit = raw.culprit
        return Completion(
            raw.op_seq,
            raw.error if raw.status == STATUS_FAILED else 0,
            None if culprit == CULPRIT_NOBODY else culprit,
            raw.field,
            raw.value_here,
            raw.value_there,
            self._receipt(raw),
            raw.call_seq if self._partial else -1,
            raw.status,
            bool(raw.lacks),
        )

    def _receipt(self, raw: Any) -> Receipt:
        """What is asked of every receipt; the rest from a copy of it, once somebody looks."""
        copied = bytes(ffi.buffer(raw, _ROWS_AT + min(raw.hosts, len(self._hosts)) * _ROW_BYTES))
        known = {
            "op_seq": raw.op_seq,
            "status": status_of(raw.status),
            "elapsed_s": raw.elapsed_ns * 1e-9,
            "bytes_expected": raw.bytes_expected,
            "bytes_missing": raw.bytes_missing,
            "bytes_repaired": raw.bytes_repaired,
        }
        return Receipt.deferred(known, partial(_decode_copy, copied, self._hosts, self._rank, self._world_size))

    def words(self) -> SlotWords:
        """See `Rings`. Plain reads: what follows from them is said to the engine, or done, long after."""
        if not self._usable:
            return SlotWords()
        completions = self._lanes[0][1]
        return SlotWords(completions.taken, completions.freed, completions.results)

    def after_fork(self) -> None:
        """In a forked child: the mappings are gone."""
        self._usable = False
        for mapping in self._maps:
            mapping.reserve_after_fork()


def _decode_copy(copied: bytes, hosts: Sequence[Host], rank: int, world_size: int) -> Receipt:
    # The copy ends with the last row in use, so C may only read as far as `hosts` says.
    return decode_receipt(ffi.cast("ut_receipt *", ffi.from_buffer(copied)), hosts, rank, world_size)
