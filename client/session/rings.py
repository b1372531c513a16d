# SPDX-License-Identifier: Apache-2.0
"""The submission and completion rings through the extension.

Everything above works with offsets, numbers and Receipts. The fake of `ultima.testing` has these rings, too. The
structs that cross into C are allocated once. Not safe for several threads: the session that owns the rings has the
lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from ultima.base.native import ffi, lib
from ultima.base.receipt import Host, Receipt
from ultima.base.words import CULPRIT_NOBODY, GIFT_RESIDUAL, RESIDUAL_BITS, STATUS_FAILED
from ultima.session.attachment import Completion, GiftWords
from ultima.session.decode import decode_receipt, status_of
from ultima.session.memory import SharedMap
from ultima.session.op import Layout, Op

SUBMISSION_RING_BYTES: int = ffi.sizeof("ut_submission_ring")
COMPLETION_RING_BYTES: int = ffi.sizeof("ut_completion_ring")
_ROWS_AT: int = ffi.offsetof("ut_receipt", "peer")
_ROW_BYTES: int = ffi.sizeof("ut_receipt_peer")


def _say_words(entry: Any, alike: Any, layout: Layout) -> None:
    """What a collective says for itself; |alike| is that part of |entry| (`ut_alike`)."""
    sparse, quant = layout.sparse, layout.quant
    entry.entries = alike.all = entry.rounding = 0
    if sparse is not None:
        entry.entries = sparse.entries
        alike.sparse.hint, alike.sparse.group = sparse.hint, sparse.group
        alike.sparse.form, alike.sparse.down = sparse.form, sparse.down
    elif quant is not None:
        alike.quant.forms, entry.rounding = quant.forms, quant.nearest
    elif layout.note is not None:
        alike.note = layout.note
    else:
        alike.root = layout.root


class NativeRings:
    """Both rings of each lane of one session, over mappings that are kept alive: one engine to everybody else.

    The extension numbers ops in each lane, splits the large ones and joins their receipts (core/face/lanes.h).
    """

    def __init__(
        self,
        lanes: Sequence[tuple[SharedMap, SharedMap]],
        hosts: Sequence[Host],
        rank: int,
        world_size: int,
        *,
        next_op_seq: int = 0,
        portions: int = 1,
        bells: Sequence[int] = (),
        partial: bool = False,
    ) -> None:
        """`portions`: into how many a large op is split, 1 or one for each lane. `bells`: of each lane the eventfd that
        wakes its engine; they are closed here. A partial job has one lane, and its submissions have their own numbers.
        """
        self._maps = [mapping for lane in lanes for mapping in lane]
        self.lanes = len(lanes)
        self._memory = ffi.new("uint64_t[]", -(-lib.ut_lanes_bytes(portions, len(hosts)) // 8))
        self._lanes = lib.ut_lanes_init(self._memory, self.lanes, portions, len(hosts), next_op_seq)
        for lane, (submissions, completions) in enumerate(lanes):
            rings = ffi.cast("ut_submission_ring *", submissions.address), _completions(completions)
            lib.ut_lanes_ring(self._lanes, lane, *rings)
        self._told = _completions(lanes[0][1])
        self._bells = list(bells)
        self._partial = partial
        self._usable = True
        self._entry = ffi.new("ut_submission *")
        self._alike = self._entry.alike
        self._raw = ffi.new("ut_receipt *")
        self._hosts = tuple(hosts)
        self._rank = rank
        self._world_size = world_size

    def portions_of(self, op: Op) -> int:
        """See `Rings`."""
        return int(lib.ut_lanes_portions(self._lanes, op.layout.collective, op.nbytes))

    def have_room(self, op: Op) -> bool:
        """See `Rings`."""
        return bool(lib.ut_lanes_room(self._lanes, op.seq, op.portions))

    def submit(self, op: Op) -> bool:
        """See `Rings`."""
        entry, layout, portions = self._entry, op.layout, op.portions
        entry.op_seq = op.seq
        entry.src = op.src
        entry.dst = op.dst
        entry.count = op.count
        entry.deadline_ns = op.deadline_ns
        entry.dtype = op.kind.code
        entry.redop = op.redop
        entry.mode = op.mode
        entry.flags = op.flags
        entry.collective = layout.collective
        entry.portion = portions << 4 if portions > 1 else 0
        if self._partial:
            entry.wanted = op.wanted
            entry.oldest_step, entry.newest_step = op.steps
            entry.gift_forms = entry.rounding = 0
            if layout.quant is not None:
                entry.gift_forms, entry.rounding = layout.quant.forms, layout.quant.nearest
                entry.gift_residual = 0 if op.left < 0 else op.left // GIFT_RESIDUAL + 1
        else:
            _say_words(entry, self._alike, layout)
            if layout.sparse is None:
                entry.residual = op.left + 1 | (layout.weight or 0) << RESIDUAL_BITS
        woken = lib.ut_lanes_submit(self._lanes, entry)
        for lane, bell in enumerate(self._bells):
            if woken >> lane & 1:
                os.eventfd_write(bell, 1)
        return bool(woken)

    def take(self) -> Completion | None:
        """See `Rings`."""
        found = lib.ut_lanes_take(self._lanes, self._raw)
        return self._completion(found == lib.UT_LANES_EARLY) if found else None

    def _completion(self, early: bool) -> Completion:
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
            early,
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

    def words(self) -> GiftWords:
        """See `Rings`. Plain reads: what follows from them is said to the engine, or done, long after."""
        if not self._usable:
            return GiftWords()
        return GiftWords(self._told.taken, self._told.freed, self._told.results)

    def after_fork(self) -> None:
        """In a forked child: the mappings are gone."""
        self._usable = False
        for mapping in self._maps:
            mapping.reserve_after_fork()

    def close(self) -> None:
        """See `Rings`."""
        while self._bells:
            os.close(self._bells.pop())


def _completions(mapping: SharedMap) -> Any:
    return ffi.cast("ut_completion_ring *", mapping.address)


def _decode_copy(copied: bytes, hosts: Sequence[Host], rank: int, world_size: int) -> Receipt:
    # The copy ends with the last row in use, so C may only read as far as `hosts` says.
    return decode_receipt(ffi.cast("ut_receipt *", ffi.from_buffer(copied)), hosts, rank, world_size)
