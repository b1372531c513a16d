# SPDX-License-Identifier: Apache-2.0
"""The submission and completion rings through the extension: the one file of the client that imports `ultima._native`.

Everything above works with offsets, numbers and Receipts and runs as well on the fake of `ultima.testing`. The structs
that cross into C are allocated once. Not safe for several threads: the link that owns the rings has the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from ultima._native import ffi as _ffi
from ultima._native import lib as _lib
from ultima.base.receipt import (
    SLOTS,
    STAGE_ENDS,
    STATUSES,
    TROUBLES,
    WHYS,
    Host,
    PeerReceipt,
    Receipt,
    Status,
)
from ultima.base.words import CULPRIT_NOBODY, POLICY_BY_CODE, STATUS_FAILED
from ultima.session.attachment import Completion, SlotWords
from ultima.session.memory import SharedMap
from ultima.v1.job_options import ETA


class _Library(Protocol):
    """The part of the extension that the client uses."""

    def ut_ring_submit(self, submissions: Any, completions: Any, entry: Any, /) -> int: ...
    def ut_ring_take_completion(self, submissions: Any, completions: Any, ret: Any, /) -> int: ...


Word = TypeVar("Word")
NEVER_US = 2**32 - 1

lib = cast(_Library, _lib)
ffi: Any = _ffi

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

    def submit(
        self,
        op_seq: int,
        src: int,
        dst: int,
        count: int,
        deadline_ns: int,
        dtype: int,
        redop: int,
        mode: int,
        flags: int = 0,
        collective: int = 0,
        root: int = 0,
        wanted: int = 0,
        steps: tuple[int, int] = (0, 0),
    ) -> bool:
        """See `Rings`."""
        number, lane = divmod(op_seq, len(self._lanes))
        entry = self._entry
        entry.op_seq = number
        entry.src = src
        entry.dst = dst
        entry.count = count
        entry.deadline_ns = deadline_ns
        entry.dtype = dtype
        entry.redop = redop
        entry.mode = mode
        entry.flags = flags
        entry.collective = collective
        entry.root = root
        entry.wanted = wanted
        entry.oldest_step, entry.newest_step = steps
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
        agreed = _agreed_op(raw.op_seq, raw.agreed_seq)
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
        )

    def _receipt(self, raw: Any) -> Receipt:
        """What is asked of every receipt; the rest from a copy of it, once somebody looks."""
        copied = bytes(ffi.buffer(raw, _ROWS_AT + min(raw.hosts, len(self._hosts)) * _ROW_BYTES))
        known = {
            "op_seq": raw.op_seq,
            "status": _status(raw.status),
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


def _status(number: int) -> Status:
    return (STATUSES[number] if number < len(STATUSES) else None) or Status.FAILED


def decode_receipt(raw: Any, hosts: Sequence[Host], rank: int, world_size: int) -> Receipt:
    """The Receipt of `rank` from a `ut_receipt *`: host masks become ranks, nanoseconds become seconds."""
    status = _status(raw.status)
    rows = [raw.peer[index] for index in range(min(raw.hosts, len(hosts)))]
    full, some = raw.full_mask, raw.any_mask
    policy = POLICY_BY_CODE.get(raw.policy, "none")
    contributors: list[int] = []
    partly: list[int] = []
    if policy != "none":
        contributors, partly = _slot_ranks(hosts, rows, full, some)
        if status is Status.INSUFFICIENT and not raw.included:
            contributors = [rank]  # no op came: its own value
    elif status is Status.COMPLETE:
        contributors = [other for host in hosts if full >> host.index & 1 for other in host.ranks]
        contributors.sort()
    else:
        for host, row in zip(hosts, rows, strict=False):
            bit = 1 << host.index
            if full & bit and row.weight >= len(host.ranks):
                contributors += host.ranks
            elif (full | some) & bit:
                # A host that sums fewer ranks than it has does not say which are missing; but we know of ourselves.
                mine = [rank] if full & bit and rank in host.ranks else []
                contributors += mine
                partly += [other for other in host.ranks if other not in mine]
        contributors.sort()
        partly.sort()
    culprit = raw.culprit
    return Receipt(
        op_seq=raw.op_seq,
        status=status,
        world_size=world_size,
        contributors=tuple(contributors),
        partly=tuple(partly),
        weight_min=raw.weight_min,
        peers=tuple(_peer(host, row) for host, row in zip(hosts, rows, strict=False)),
        culprit=hosts[culprit].ranks if culprit < len(hosts) else (),
        stage_ends=(_one_of(STAGE_ENDS, raw.stage_end[0]), _one_of(STAGE_ENDS, raw.stage_end[1])),
        stage_s=(raw.stage_ns[0] * 1e-9, raw.stage_ns[1] * 1e-9),
        elapsed_s=raw.elapsed_ns * 1e-9,
        bytes_expected=raw.bytes_expected,
        bytes_used=raw.bytes_used,
        bytes_missing=raw.bytes_missing,
        bytes_repaired=raw.bytes_repaired,
        bytes_duplicate=raw.bytes_duplicate,
        nonfinite=raw.nonfinite,
        drops_host=raw.drops_host,
        trouble=_one_of(TROUBLES, raw.trouble),
        digest=raw.digest,
        agreed_op=_agreed_op(raw.op_seq, raw.agreed_seq),
        differ=tuple(sorted(other for host in hosts if raw.differ_mask >> host.index & 1 for other in host.ranks)),
        hadamard=bool(raw.hadamard),
        incast=raw.incast,
        t_b_s=raw.t_b_us * 1e-6 or None,
        deadline_s=raw.deadline_ns * 1e-9 or None,
        t_c_s=(raw.t_c_us[0] * 1e-6 or None, raw.t_c_us[1] * 1e-6 or None),
        policy=policy,
        included=raw.included,
        initiator=hosts[raw.initiator].ranks if policy != "none" and raw.initiator < len(hosts) else (),
        # A daemon's account of an op is no answer to a call.
        slot=_one_of(SLOTS, raw.slot) if policy != "none" and hasattr(raw, "slot") else None,
        kept=bool(getattr(raw, "kept", 0)),
        waited_s=raw.waited_ns * 1e-9,
        eta=(raw.eta or ETA) if policy != "none" else 0,
    )


def _slot_ranks(hosts: Sequence[Host], rows: Sequence[Any], full: int, some: int) -> tuple[list[int], list[int]]:
    """In a partial job: ranks in every element, and those in some only. A host says which of its ranks gave."""
    contributors: list[int] = []
    partly: list[int] = []
    for host, row in zip(hosts, rows, strict=False):
        gave = _places(host, row.fresh | row.stale)
        if full >> host.index & 1:
            contributors += gave
        elif some >> host.index & 1:
            partly += gave
    return sorted(contributors), sorted(partly)


def _places(host: Host, mask: int) -> tuple[int, ...]:
    """The ranks of a host that a mask names, a bit for each place among them."""
    return tuple(rank for place, rank in enumerate(host.ranks) if mask >> place & 1)


def _agreed_op(op_seq: int, low: int) -> int | None:
    """The op near |op_seq| with these low 32 bits; its own stand for none."""
    distance = (low - op_seq) % 2**32
    if distance == 0:
        return None
    return int(op_seq + (distance - 2**32 if distance >= 2**31 else distance))


def _peer(host: Host, row: Any) -> PeerReceipt:
    return PeerReceipt(
        host=host.index,
        ranks=host.ranks,
        expected_bytes=(row.expected[0], row.expected[1]),
        missing_bytes=(row.missing[0], row.missing[1]),
        weight=row.weight,
        why=_one_of(WHYS, row.why),
        last_s=row.last_us * 1e-6 if row.last_us else None,
        trouble=_one_of(TROUBLES, row.trouble),
        first_s=row.first_us * 1e-6 if row.first_us else None,
        opened_s=row.opened_us * 1e-6 if row.opened_us != NEVER_US else None,
        quiet_s=row.quiet_us * 1e-6,
        delay_s=row.delay_us * 1e-6,
        repaired_bytes=row.repaired,
        lost_packets=row.lost,
        drops=row.drops,
        fresh=_places(host, row.fresh),
        stale=_places(host, row.stale),
        oldest_step=row.oldest_step if row.fresh | row.stale else None,
    )


def _one_of(words: Sequence[Word], number: int) -> Word:
    """A number that this release does not know reads as the first word, "nothing special"."""
    return words[number] if number < len(words) else words[0]
