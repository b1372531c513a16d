# SPDX-License-Identifier: Apache-2.0
"""The daemon's log, which nobody can flood: each kind of line has a rate, and says how many of it were left out.

A kind is a place in the code that logs (a line of ours, or of a library), so there are only so many. A traceback is
one for each place that it comes from. A place may tell its lines apart by `about`, so that one job's trouble does not
hide another's; of these kinds only so many are kept, because what tells them apart comes from outside.

All lines go through the one handler that `begin` makes. A burst passes whole, as when a job of many ranks starts; then
one line every few seconds. What is left out is counted, and told by the next line of its kind that passes.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TextIO

from ultima.daemon.base.log_forms import Form, chosen, formatter

APART_MAX = 64  # kinds that `about` tells apart, at once


@dataclass(frozen=True, slots=True)
class Rate:
    """So many lines at once, and one more each `seconds`."""

    burst: int
    seconds: float


PLAIN = Rate(128, 2.0)  # the trainers of a host may all come at once, twice
RARE = Rate(8, 10.0)  # of lines with a traceback, and of those told apart


def about(*what: Hashable) -> dict[str, object]:
    """For `extra=` of a line: lines of one place that are about different things have a rate each."""
    return {"about": what}


class _Kind:
    """What is left of one kind's rate."""

    __slots__ = ("at", "left", "left_out", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate, self.left, self.at, self.left_out = rate, float(rate.burst), now, 0

    def refill(self, now: float) -> None:
        self.left = min(self.rate.burst, self.left + (now - self.at) / self.rate.seconds)
        self.at = now

    def idle(self) -> bool:
        return self.left >= self.rate.burst and not self.left_out


class Limiter(logging.Filter):
    """See the module. It is a filter of the handler, not of a logger, so that it sees the lines of all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        super().__init__()
        self._clock = clock
        self._kinds: dict[Hashable, _Kind] = {}
        self._apart: dict[Hashable, _Kind] = {}
        self._lock = threading.Lock()  # a handler's filters run before its own

    def __len__(self) -> int:
        """Kinds that are kept."""
        return len(self._kinds) + len(self._apart)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes; if so, it gets to know how many like it did not."""
        with self._lock:
            now = self._clock()
            kind = self._kind(record, now)
            kind.refill(now)
            if kind.left < 1:
                kind.left_out += 1
                return False
            kind.left -= 1
            record.left_out = f" left_out={kind.left_out}" if kind.left_out else ""
            kind.left_out = 0
            return True

    def _kind(self, record: logging.LogRecord, now: float) -> _Kind:
        raised = _raised_at(record)
        place = (record.name, record.pathname, record.lineno, raised)
        what = getattr(record, "about", None)
        if what is not None:
            kind = self._told_apart((*place, what), now)
            if kind is not None:
                return kind
        if place not in self._kinds:
            self._kinds[place] = _Kind(PLAIN if raised is None and what is None else RARE, now)
        return self._kinds[place]

    def _told_apart(self, key: Hashable, now: float) -> _Kind | None:
        """None if there are too many."""
        if key not in self._apart and len(self._apart) >= APART_MAX:
            for kind in self._apart.values():
                kind.refill(now)
            self._apart = {other: kind for other, kind in self._apart.items() if not kind.idle()}
            if len(self._apart) >= APART_MAX:
                return None
        return self._apart.setdefault(key, _Kind(RARE, now))


def _raised_at(record: logging.LogRecord) -> Hashable:
    """The kind of a line's exception and the place where it was raised; None without one."""
    if not record.exc_info or record.exc_info[0] is None:
        return None
    kind, _, trace = record.exc_info
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (kind.__qualname__, trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno))


def begin(stream: TextIO | None = None, form: Form = "auto") -> logging.Handler:
    """Sends all that is logged in this process to `stream`, standard error by itself, at its rate and in that form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter(chosen(form)))
    handler.addFilter(Limiter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.captureWarnings(True)
    return handler
