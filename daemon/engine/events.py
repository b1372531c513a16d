# SPDX-License-Identifier: Apache-2.0
"""What the C engine tells the daemon without being asked: its events, and the words in them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

NOBODY = 2**32 - 1


class Status(IntEnum):
    """How an op ended: enum ut_status."""

    # generated: ut_status (schema/)
    COMPLETE = 1
    PARTIAL = 2
    INSUFFICIENT = 3
    FAILED = 4
    EMPTY = 5
    OVERTAKEN = 6
    BEHIND = 7
    # generated: end


class EventKind(IntEnum):
    """Enum ut_event_kind."""

    OP_DONE = 1
    DESYNC = 2
    BAD_SUBMISSION = 3
    VIOLATION = 4
    DIVERGED = 5
    PATH = 6
    READY = 7
    ACTIVATED = 8


FIELDS = (*"nothing dtype op count mode agree algorithm collective root divisor group form hint split".split(),)


class Event(NamedTuple):
    """Struct ut_event; `session` and `host` are NOBODY where there is none. One is made for each op."""

    kind: int
    job: int
    session: int
    host: int
    op_seq: int
    a: int
    b: int
    c: int
    d: int = 0
    e: int = 0
    at_ns: int = 0
    """When it was told; 0: now."""


def event_of(raw: Any) -> Event:
    """From a struct ut_event."""
    return Event(raw.kind, raw.job, raw.session, raw.host, raw.op_seq, raw.a, raw.b, raw.c, raw.d, raw.e, raw.at)
