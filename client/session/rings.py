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
from ultima.base.words import CULPRIT_NOBODY, STATUS_FAILED
from ultima.session.attachment import Completion, SlotWords, Submission
from ultima.session.decode import agreed_op, decode_receipt, status_of
from ultima.session.memory import SharedMap

SUBMISSION_RING_BYTES: int = ffi.sizeof("ut_submission_ring")
COMPLETION_RING_BYTES: int = ffi.sizeof("ut_completion_ring")
_ROWS_AT: int = ffi.offsetof("ut_receipt", "peer")
_ROW_BYTES: int = ffi.sizeof("ut_receipt_peer")


class NativeRings:
    """Both rings of each lane of one session, over mappings that are kept alive.

    Op s of a job with n lanes goes into lane s mod n, and is number s / n there. A partial job has one lane, and its
    submissions are numbered by themselves.
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
        self._hosts = tuple(hosts)
        self._rank = rank
        self._world_size = world_size

    def submit(self, submission: Submission) -> bool:
        """See `Rings`."""
        number, lane = divmod(submission.op_seq, len(self._lanes))
        entry = self._entry
        entry.op_seq = number
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
        return lib.ut_ring_submit(*self._lanes[lane], entry) == 0

    def take(self) -> Completion | None:
        """The next completion, or None; lane by lane in turn."""
        raw, lanes = self._raw, len(self._lanes)
        for _ in range(lanes):
            lane = self._turn
            self._turn = (lane + 1) % lanes
            if lib.ut_ring_take_completion(*self._lanes[lane], raw) == 1:
                break
        else:
            return None
        agreed = agreed_op(raw.op_seq, raw.agreed_seq)
        raw.op_seq = raw.op_seq * lanes + lane
        raw.agreed_seq = (agreed * lanes + lane) % 2**32 if agreed is not None else raw.op_seq % 2**32
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
