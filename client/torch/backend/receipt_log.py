# SPDX-License-Identifier: Apache-2.0
"""Keeps the receipts of a process group's ops, so that a training script can ask for them without touching DDP."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

from ultima.base.errors import Insufficient
from ultima.base.receipt import Receipt, Status, ranks_text
from ultima.base.warning import warn

RECEIPTS_KEPT = 1024
TIMES_KEPT = 65536


@dataclass(frozen=True, slots=True)
class ReceiptSummary:
    """What the receipts of many ops add up to. Bytes as in `Receipt`; times in microseconds, as the engine saw them.

    ops: how many receipts there are.
    complete, partial, insufficient: how many of them have that status.
    failed: how many ops ended in an exception and therefore have no receipt; they are not among `ops`.
    expected_bytes, missing_bytes, repaired_bytes: sums over all receipts.
    p50_us, p99_us: the median and the 99th percentile of `elapsed_s` of the last ops, in microseconds.
    """

    ops: int
    complete: int
    partial: int
    insufficient: int
    failed: int
    expected_bytes: int
    missing_bytes: int
    repaired_bytes: int
    p50_us: float
    p99_us: float


class ReceiptLog:
    """Counts since the start, the last receipts whole, the last times for percentiles. Safe to use from several
    threads.
    """

    def __init__(self, raises: bool = False) -> None:
        """|raises|: an op that holds nothing of any other host, or of any other rank where all share one host, fails
        instead of going on with own values.
        """
        self.raises, self._warned = raises, False
        self._mourned: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._last: deque[Receipt] = deque(maxlen=RECEIPTS_KEPT)
        self._times_us: deque[float] = deque(maxlen=TIMES_KEPT)
        self._counts = dict.fromkeys(Status, 0)
        self._failed = 0
        self._expected = self._missing = self._repaired = 0
        self._told: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """By writer: how many receipts it had been given."""

    def add(self, receipt: Receipt) -> None:
        with self._lock:
            self._last.append(receipt)
            self._times_us.append(receipt.elapsed_s * 1e6)
            self._counts[receipt.status] += 1
            self._expected += receipt.bytes_expected
            self._missing += receipt.bytes_missing
            self._repaired += receipt.bytes_repaired

    def add_failure(self, error: Exception) -> None:
        """An op ended in |error|."""
        with self._lock:
            self._failed += 1

    def on_insufficient(self, receipt: Receipt) -> Exception | None:
        """What to raise for an op that holds own values alone, None to go on; the first one is warned of."""
        who = f"; {ranks_text(receipt.culprit)} to blame: {receipt.trouble}" if receipt.culprit else ""
        other = "host" if len(receipt.peers) > 1 else "rank"
        text = f"op {receipt.op_seq} holds nothing of any other {other}{who}"
        if self.raises:
            return Insufficient(f"{text} (ULTIMA_ON_INSUFFICIENT is raise)", receipt)
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            warn(
                f"{text}; this rank goes on with its own values, and replicas drift apart. Set ULTIMA_ON_INSUFFICIENT="
                "raise to have it raise instead; `ultima doctor` finds the cause",
            )
        return None

    def on_partial(self, receipt: Receipt) -> Exception | None:
        """What to raise for an op that lacks something, None to go on. Warns of ranks that are gone for good, once for
        each: results are of the others alone from now on.
        """
        gone = frozenset(receipt.gone)
        with self._lock:
            told = gone <= self._mourned
            self._mourned |= gone
        if not told:
            warn(
                f"op {receipt.op_seq} goes without {ranks_text(sorted(gone))}, which left or died: sums are of the "
                f"other ranks alone. DDP without a hook divides them by all {receipt.world_size} ranks, so gradients "
                "are too small; ultima.torch.average_hook divides by those that are there. Restart the job to have "
                "all ranks",
            )
        return None

    def last(self, count: int | None = None) -> list[Receipt]:
        """The last |count| receipts that are still kept, oldest first; all of them for None."""
        with self._lock:
            kept = list(self._last)
        return kept if count is None else kept[max(0, len(kept) - count) :]

    def news(self, writer: Any) -> list[Receipt]:
        """The receipts that came since the last call for the same writer, as far as they are still kept."""
        with self._lock:
            total = sum(self._counts.values())
            fresh, self._told[writer] = total - self._told.get(writer, 0), total
            return list(self._last)[max(0, len(self._last) - fresh) :] if fresh else []

    def summary(self) -> ReceiptSummary:
        return summarize([self])


def summarize(logs: Iterable[ReceiptLog]) -> ReceiptSummary:
    """One summary of several logs."""
    times: list[float] = []
    counts = dict.fromkeys(Status, 0)
    failed = expected = missing = repaired = 0
    for log in logs:
        with log._lock:
            times += log._times_us
            for status, count in log._counts.items():
                counts[status] += count
            failed += log._failed
            expected += log._expected
            missing += log._missing
            repaired += log._repaired
    times.sort()
    return ReceiptSummary(
        ops=counts[Status.COMPLETE] + counts[Status.PARTIAL] + counts[Status.INSUFFICIENT],
        complete=counts[Status.COMPLETE],
        partial=counts[Status.PARTIAL],
        insufficient=counts[Status.INSUFFICIENT],
        failed=failed,
        expected_bytes=expected,
        missing_bytes=missing,
        repaired_bytes=repaired,
        p50_us=_quantile(times, 0.5),
        p99_us=_quantile(times, 0.99),
    )


def _quantile(ordered: list[float], share: float) -> float:
    """The nearest rank; 0 while there is nothing."""
    return ordered[max(0, ceil(len(ordered) * share) - 1)] if ordered else 0.0
