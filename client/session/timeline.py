# SPDX-License-Identifier: Apache-2.0
"""ULTIMA_TRACE: a timeline of a process's ops, written while they end, that ui.perfetto.dev and chrome://tracing open.

The file is a list of events of the Trace Event Format, an event a line. The format lets the list's last bracket be
missing, so a file is readable while the program runs and after it was killed. Each op is an asynchronous slice from its
submission to its end, with a slice for each stage as the engine timed them, and says what its receipt says. Times are
of the host's monotonic clock, set to its wall clock: files of several ranks can be put beside each other as far as
their clocks agree.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultima.base.errors import InvalidArgument
from ultima.base.receipt import Receipt, size_text
from ultima.base.warning import warn
from ultima.base.words import COLLECTIVE_BY_CODE

if TYPE_CHECKING:
    from ultima.session.op import Op

VARIABLE = "ULTIMA_TRACE"
FLUSH_BYTES, FLUSH_NS = 1 << 16, 500_000_000
# Perfetto's page runs in 32-bit memory, and a trace takes a few times its size there.
FILE_BYTES_MAX = 1 << 30
_WALL_NS = time.time_ns() - time.monotonic_ns()

active: Timeline | None = None
"""That of this process, if it was asked for."""


def begin(file: str, rank: int) -> None:
    """Opens the timeline of this process, that of |rank|, unless |file| is "" or it is open. Raises InvalidArgument."""
    global active
    if file and (active is None or active.pid != os.getpid()):
        active = Timeline(path_of(file, rank), rank)
        atexit.register(active.close)


def path_of(file: str, rank: int) -> Path:
    """Where a rank writes: "trace.json" becomes "trace.rank3.json", as all ranks have one variable. Raises
    InvalidArgument."""
    path = Path(file)
    if not path.name or path.is_dir():
        raise InvalidArgument(VARIABLE, file, "a file's name, such as trace.json")
    return path.parent / f"{path.stem}.rank{rank}{path.suffix or '.json'}"


class Timeline:
    """One file. Safe for several threads; silent in a forked child."""

    def __init__(self, path: Path, rank: int) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InvalidArgument(VARIABLE, str(path), f"a file that can be written ({error.strerror})") from None
        self.pid, self._path, self._rank = os.getpid(), path, rank
        self._lock = threading.Lock()
        self._waiting, self._waiting_bytes = ["["], 1
        self._flushed_ns = time.monotonic_ns()
        self._written = self._drawn = 0
        self._stopped = ""
        """Why nothing more is written."""
        self._rows: set[int] = set()
        self._put(row_name(rank, 0, "process_name", f"rank {rank}"))

    def ended(self, op: Op) -> None:
        """Draws an op that has its receipt or its failure. Raises nothing: an op does not fail for its picture."""
        with self._lock:
            if self._stopped or os.getpid() != self.pid:
                return
            row, now = op.layout.collective, time.monotonic_ns()
            name = COLLECTIVE_BY_CODE.get(row, "op")
            if row not in self._rows:
                self._rows.add(row)
                self._put(row_name(self._rank, row, "thread_name", name))
            self._drawn += 1
            what = name if name == "barrier" else f"{name} {size_text(op.nbytes)}"
            if op.failure is None and op.receipt is not None:
                events = receipt_events(op.receipt, self._rank, row, what, str(self._drawn))
            else:
                events = _failure_events(op, now, self._rank, row, what, str(self._drawn))
            for event in events:
                self._put(event)
            if self._waiting_bytes >= FLUSH_BYTES or now - self._flushed_ns >= FLUSH_NS:
                self._flush(now)

    def close(self) -> None:
        """Writes the rest and the closing bracket, and says if the file is not whole. Idempotent."""
        global active
        with self._lock:
            if self._fd < 0 or os.getpid() != self.pid:
                return
            order = {"pid": self._rank, "tid": 0, "ts": 0, "args": {"sort_index": self._rank}}
            self._waiting.append(json.dumps({**order, "name": "process_sort_index", "ph": "M"}) + "]")
            self._flush(time.monotonic_ns())
            os.close(self._fd)
            self._fd = -1
            why, self._stopped = self._stopped, "closed"
        if active is self:
            active = None
        if why:
            warn(f"{VARIABLE}: {self._path} ends early: {why}")

    def _put(self, event: dict[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":")) + ","
        self._waiting.append(line)
        self._waiting_bytes += len(line) + 1

    def _flush(self, now: int) -> None:
        data = "\n".join(self._waiting).encode() + b"\n"
        self._waiting, self._waiting_bytes, self._flushed_ns = [], 0, now
        if self._stopped:
            return
        if self._written + len(data) > FILE_BYTES_MAX:
            self._stopped = f"it has {size_text(FILE_BYTES_MAX)}, and no program shows more"
            return
        size = len(data)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            self._written += size
        except OSError as error:
            self._stopped = str(error.strerror)
            with suppress(OSError):
                os.ftruncate(self._fd, self._written)  # no half event


def receipt_events(receipt: Receipt, pid: int, row: int, name: str, number: str) -> Iterator[dict[str, Any]]:
    """An op with a receipt: a slice |name| and in it one for each stage. |number|: no other op of the trace has it."""
    place = {"pid": pid, "tid": row, "cat": "ultima", "id2": {"local": number}}
    told = {
        "op": receipt.op_seq,
        "status": str(receipt.status),
        "bytes_expected": receipt.bytes_expected,
        "bytes_missing": receipt.bytes_missing,
        "bytes_repaired": receipt.bytes_repaired,
        "contributors": list(receipt.contributors),
        "culprit": list(receipt.culprit),
        "trouble": str(receipt.trouble),
    }
    yield {**place, "name": name, "ph": "b", "ts": wall_us(receipt.submitted_ns), "args": told}
    # The engine's clock runs from when it took the op up, and it ended a wake-up before we heard of it.
    at = max(receipt.submitted_ns, receipt.ended_ns - int(receipt.elapsed_s * 1e9))
    began = at
    for stage, ended_s in enumerate(receipt.stage_s, 1):
        # A stage may end with the one before it: both shards of two hosts often come at once.
        until = max(at, min(receipt.ended_ns, began + int(ended_s * 1e9)))
        yield {**place, "name": f"stage {stage}", "ph": "b", "ts": wall_us(at)}
        yield {**place, "name": f"stage {stage}", "ph": "e", "ts": wall_us(until)}
        at = until
    yield {**place, "name": name, "ph": "e", "ts": wall_us(receipt.ended_ns)}


def _failure_events(op: Op, now: int, pid: int, row: int, what: str, number: str) -> Iterator[dict[str, Any]]:
    place = {"pid": pid, "tid": row, "cat": "ultima", "id2": {"local": number}, "name": f"{what} failed"}
    told = {"op": op.seq, "error": f"{type(op.failure).__name__}: {op.failure}"}
    yield {**place, "ph": "b", "ts": wall_us(op.submitted_ns or now), "args": told}
    yield {**place, "ph": "e", "ts": wall_us(now)}


def row_name(pid: int, row: int, kind: str, name: str) -> dict[str, Any]:
    """Names a process or a row in it; |kind| is "process_name" or "thread_name"."""
    return {"pid": pid, "tid": row, "name": kind, "ph": "M", "ts": 0, "args": {"name": name}}


def wall_us(monotonic_ns: int) -> float:
    """Microseconds of the wall clock, of a time of time.monotonic_ns."""
    return (monotonic_ns + _WALL_NS) / 1000
