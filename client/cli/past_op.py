# SPDX-License-Identifier: Apache-2.0
"""Picks a recorded op by time or duration, for `ultima explain --slowest` and `--at`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ultima.base.instants import Instant
    from ultima.v1 import admin_pb2, records_pb2


def pick(socket: str, job: str, slowest: bool, at: str) -> tuple[records_pb2.JobLife, records_pb2.OpRecord]:
    """The slowest op of a job's newest life, or the one of the time |at|. Raises InvalidArgument where there is none.

    A time with seconds means the op that was under way then, the slowest of several; one without means the slowest op
    that was under way within that minute.
    """
    from ultima.admin.past import get_ops
    from ultima.base.errors import InvalidArgument, UltimaError
    from ultima.base.instants import instant

    if not at:
        lives = list(get_ops(socket, job).lives)
        if not lives:
            raise UltimaError("no op is recorded here")
        return slowest_of([lives[0]])
    when = instant(at, "--at")
    lives = list(get_ops(socket, job, max(when.start_ns, 0)).lives)
    found = under_way(lives, when)
    if not found:
        before, after = _around(get_ops(socket, job).lives, when)
        raise InvalidArgument("--at", at, f"a time at which an op was under way that is still recorded{before}{after}")
    return slowest_of(found)


def slowest_of(lives: Iterable[records_pb2.JobLife]) -> tuple[records_pb2.JobLife, records_pb2.OpRecord]:
    """Of all ops of some lives, of which one has an op."""
    return max(((life, op) for life in lives for op in life.ops), key=lambda found: found[1].elapsed_ns)


def under_way(lives: Iterable[records_pb2.JobLife], when: Instant) -> list[records_pb2.JobLife]:
    """The lives with those of their ops that were under way at that time; lives without one are left out."""
    from ultima.v1 import records_pb2

    kept = []
    for life in lives:
        chosen = records_pb2.JobLife()
        chosen.CopyFrom(life)
        del chosen.ops[:]
        end = when.start_ns + when.length_ns
        chosen.ops.extend(op for op in life.ops if op.ended_ns >= when.start_ns and op.ended_ns - op.elapsed_ns < end)
        if chosen.ops:
            kept.append(chosen)
    return kept


def _around(lives: Iterable[records_pb2.JobLife], when: Instant) -> tuple[str, str]:
    """For the message: the recorded ops that ended last before that time, and first after it."""
    from ultima.base.instants import clock_text

    ends = sorted(op.ended_ns for life in lives for op in life.ops)
    before = [ns for ns in ends if ns < when.start_ns]
    after = [ns for ns in ends if ns >= when.start_ns + when.length_ns]
    return (
        f"; the last one before it ended at {clock_text(before[-1])}" if before else "",
        f"; the first one after it ended at {clock_text(after[0])}" if after else "",
    )


def receipt_or_lines(
    life: records_pb2.JobLife, op: records_pb2.OpRecord
) -> tuple[admin_pb2.GetReceiptsResponse | None, list[str]]:
    """The op's receipt if one was kept; and what is known without it, as lines of text."""
    from ultima.admin.flight import hosts_of, op_facts
    from ultima.admin.past import receipt_of
    from ultima.base.instants import clock_text
    from ultima.base.receipt import ranks_text, size_text

    facts = op_facts(life, op)
    lines = [
        f"Op {op.op_seq} ended at {clock_text(op.ended_ns)} after {op.elapsed_ns / 1e6:.3f} ms: "
        f"{str(facts['status']).lower()}, {facts['collective']} of {size_text(op.bucket_bytes)}."
    ]
    if op.bytes_missing:
        lines.append(f"Missing: {size_text(op.bytes_missing)}.")
    hosts = hosts_of(life)
    if facts["culprit"]:
        host = hosts[op.culprit]
        lines.append(f"To blame: host {host.index} at {host.address} ({ranks_text(host.ranks)}): {facts['trouble']}.")
    return receipt_of(life, op.op_seq), lines
