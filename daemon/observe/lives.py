# SPDX-License-Identifier: Apache-2.0
"""Lives of jobs as messages: from memory, from disk, cut into parts for another daemon, and put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ultima.daemon.observe.record import JobRecord, op_message
from ultima.daemon.observe.ring import ops_in
from ultima.daemon.observe.store import LifeRow, MinuteRow
from ultima.v1 import records_pb2

OPS_EACH, RECEIPT_BYTES_EACH = 2000, 256 << 10
"""Of one part: well below the largest message between daemons."""


@dataclass(frozen=True, slots=True)
class Copied:
    """One life as it was in memory at one moment, to be read in another thread."""

    number: int
    head: records_pb2.JobLife
    ring: bytes
    receipts: list[bytes]


def copied(record: JobRecord, running: bool) -> Copied:
    """Of a job that has begun."""
    life = record.life
    assert life is not None
    head = records_pb2.JobLife(
        job=life.job,
        generation=life.generation,
        world_size=life.world_size,
        host_index=life.host_index,
        running=running,
        lanes=life.lanes,
    )
    head.MergeFromString(life.hosts)
    return Copied(life.number, head, record.ring.copy(), record.raw_receipts())


def whole(copy: Copied, since_ns: int, until_ns: int) -> records_pb2.JobLife:
    """With the ops that ended in that time, and their receipts."""
    life = records_pb2.JobLife()
    life.CopyFrom(copy.head)
    life.ops.extend(op_message(op) for op in ops_in(copy.ring) if since_ns <= op.ended_ns <= until_ns)
    known = {op.op_seq for op in life.ops}
    receipts = map(records_pb2.OpReceipt.FromString, copy.receipts)
    life.receipts.extend(receipt for receipt in receipts if receipt.op_seq in known)
    return life


def together(
    copies: Sequence[Copied], rows: Iterable[tuple[LifeRow, MinuteRow]], since_ns: int, until_ns: int
) -> list[records_pb2.JobLife]:
    """Lives in memory and on disk, where the slowest op of each minute is left; the newest first."""
    found = {copy.number: whole(copy, since_ns, until_ns) for copy in copies}
    older: dict[int, list[MinuteRow]] = {}
    for row, minute in rows:
        if row.life not in found:
            found[row.life] = records_pb2.JobLife(
                job=row.job, generation=row.generation, world_size=row.world_size, host_index=row.host_index
            )
            found[row.life].MergeFromString(row.hosts)
        older.setdefault(row.life, []).append(minute)
    for number, minutes in older.items():
        _add_slowest(found[number], minutes, since_ns, until_ns)
    return sorted((life for life in found.values() if life.ops), key=lambda life: -life.ops[-1].ended_ns)


def parts(life: records_pb2.JobLife) -> Iterator[records_pb2.JobLife]:
    """The same in pieces that are small enough to send; always at least one."""
    ops, receipts = list(life.ops), list(life.receipts)
    head = records_pb2.JobLife()
    head.CopyFrom(life)
    del head.ops[:], head.receipts[:]
    yield head
    for at in range(0, len(ops), OPS_EACH):
        yield records_pb2.JobLife(ops=ops[at : at + OPS_EACH])
    some, size = records_pb2.JobLife(), 0
    for receipt in receipts:
        some.receipts.append(receipt)
        size += receipt.ByteSize()
        if size >= RECEIPT_BYTES_EACH:
            yield some
            some, size = records_pb2.JobLife(), 0
    if some.receipts:
        yield some


def _add_slowest(life: records_pb2.JobLife, minutes: list[MinuteRow], since_ns: int, until_ns: int) -> None:
    """Adds what the disk has of ops that the ring has no more, and receipts that are not in memory."""
    known, told = {op.op_seq for op in life.ops}, {receipt.op_seq for receipt in life.receipts}
    ops = [records_pb2.OpRecord.FromString(minute.op) for minute in minutes if minute.op]
    new = [op for op in ops if op.op_seq not in known and since_ns <= op.ended_ns <= until_ns]
    ordered = sorted([*life.ops, *new], key=lambda op: op.ended_ns)
    del life.ops[:]
    life.ops.extend(ordered)
    known |= {op.op_seq for op in new}
    receipts = [records_pb2.OpReceipt.FromString(minute.receipt) for minute in minutes if minute.receipt]
    life.receipts.extend(receipt for receipt in receipts if receipt.op_seq in known - told)
