# SPDX-License-Identifier: Apache-2.0
"""When a rank's ops were under way, as a trace that chrome://tracing and ui.perfetto.dev show.

    with ultima.torch.trace.span("backward"):
        loss.backward()
    ...
    ultima.torch.trace.write(f"trace-{rank}.json")

Ops come from the receipts that the process group keeps, the last 1024; spans are the trainer's own, and the hooks' for
each bucket that they send. torch.profiler sees the spans as well. Times are of this host's monotonic clock, set to its
wall clock, so the traces of several ranks can be joined as far as their clocks agree.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ultima.base.receipt import Receipt
from ultima.session.timeline import receipt_events, row_name, wall_us
from ultima.torch.backend.group import UltimaProcessGroup, group_of

SPANS_KEPT = 8192
TRAINER_ROW = 1000
"""Number of the row that holds the spans; those of the lanes count from 0."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that the trainer did. Times of time.monotonic_ns."""

    name: str
    thread: int
    started_ns: int
    ended_ns: int


_spans: deque[Span] = deque(maxlen=SPANS_KEPT)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Names what happens inside, for `write` and for torch.profiler."""
    started = time.monotonic_ns()
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        _spans.append(Span(name, threading.get_native_id(), started, time.monotonic_ns()))


def write(path: str | os.PathLike[str], group: dist.ProcessGroup | None = None) -> int:
    """Writes the trace of this rank in a group (None: the default one); returns the number of ops in it.

    Each op is an asynchronous slice "op N" from its submission to its end, and in it a slice for each stage, as the
    engine measured them. Its arguments: lane, status, bytes expected and missing and repaired, contributors. Raises
    InvalidArgument for a group of another backend, OSError.
    """
    ours = group_of(group)
    receipts = sorted(ours.log.last(), key=lambda receipt: receipt.submitted_ns)
    events = events_of(ours, receipts, list(_spans))
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return len(receipts)


def events_of(group: UltimaProcessGroup, receipts: list[Receipt], spans: list[Span]) -> list[dict[str, Any]]:
    """The events of a trace, in order of time."""
    rank, lanes = group.rank(), group.job.lanes if group.job is not None else 1
    events = [event for receipt in receipts for event in _op_events(receipt, rank, lanes)]
    for each in spans:
        row = {"pid": rank, "tid": TRAINER_ROW, "name": each.name, "cat": "trainer"}
        events.append({**row, "ph": "B", "ts": wall_us(each.started_ns), "args": {"thread": each.thread}})
        events.append({**row, "ph": "E", "ts": wall_us(each.ended_ns)})
    events.sort(key=lambda event: event["ts"])
    names = [row_name(rank, 0, "process_name", f"rank {rank}"), row_name(rank, TRAINER_ROW, "thread_name", "trainer")]
    names += [row_name(rank, lane, "thread_name", f"lane {lane}") for lane in range(lanes)]
    return names + events


def _op_events(receipt: Receipt, rank: int, lanes: int) -> Iterator[dict[str, Any]]:
    lane = receipt.op_seq % lanes
    for event in receipt_events(receipt, rank, lane, f"op {receipt.op_seq}", str(receipt.op_seq)):
        yield event | {"args": event["args"] | {"lane": lane}} if "args" in event else event
