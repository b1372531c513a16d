# SPDX-License-Identifier: Apache-2.0
"""What the C engine tells the daemon without being asked: its events, and the words in them."""

from __future__ import annotations

import ipaddress
import socket
import struct
from enum import IntEnum
from typing import Any, NamedTuple

NOBODY = 2**32 - 1
_SOCKADDR = struct.Struct("=HH4s16sI")  # family, port, IPv4 address or flow, IPv6 address, scope


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

    # generated: ut_event_kind (schema/)
    OP_DONE = 1
    DESYNC = 2
    BAD_SUBMISSION = 3
    VIOLATION = 4
    DIVERGED = 5
    PATH = 6
    READY = 7
    ACTIVATED = 8
    QUANT = 9
    PATH_MOVED = 10
    # generated: end


# generated: ut_field (schema/)
FIELDS = (
    "nothing",
    "dtype",
    "op",
    "count",
    "mode",
    "agree",
    "algorithm",
    "collective",
    "root",
    "divisor",
    "group",
    "form",
    "hint",
    "split",
    "view",
    "wire",
    "weight",
    "down",
)
VALUES = {
    "dtype": {1: "float32", 2: "float64", 3: "float16", 4: "bfloat16", 5: "int32", 6: "int64"},
    "op": {1: "sum", 2: "avg", 3: "min", 4: "max", 5: "prod"},
    "mode": {1: "bounded", 2: "best_effort", 3: "reliable"},
    "collective": {
        0: "allreduce",
        1: "reduce_scatter",
        2: "all_gather",
        3: "broadcast",
        4: "all_to_all",
        5: "barrier",
        6: "allreduce_sparse",
        7: "allreduce_quant",
    },
}
# generated: end


WIRES = {4: "int16", 5: "int8", 6: "int4"}


def wire_words(forms: int) -> str:
    """The form in which contributions of a quantised op travel, and after a "/" that of results, if it differs; "none"
    for 0."""
    given, answered = (WIRES.get(form, str(form)) for form in (forms & 15, forms >> 4))
    return "none" if not forms else given if given == answered else f"{given}/{answered}"


def value_word(field: str, number: int) -> str:
    """What a number means as a value of a field in which calls differ: a word, or the number itself."""
    if field == "wire":
        return wire_words(number)
    return VALUES.get(field, {}).get(number, str(number))


def address_of(words: tuple[int, int, int, int]) -> str:
    """Address and port, as in "10.0.0.1:29521" or "[fd00::1]:29521": |words| hold a sockaddr as it lies in memory, 8
    bytes each. "?" if it is of no family of IP."""
    family, port, v4, v6, scope = _SOCKADDR.unpack(struct.pack("=4Q", *words)[: _SOCKADDR.size])
    port = socket.ntohs(port)
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(v4)}:{port}"
    text = f"{ipaddress.IPv6Address(v6)}%{scope}" if scope else str(ipaddress.IPv6Address(v6))
    return f"[{text}]:{port}" if family == socket.AF_INET6 else "?"


class Event(NamedTuple):
    """Struct ut_event; `session` and `host` are NOBODY where there is none. One is made for each op."""

    # generated: ut_event (schema/)
    kind: int
    """Enum ut_event_kind, which says what a to e are."""
    job: int
    """Number of the job in the engine."""
    session: int
    """Number of the session; UINT32_MAX where there is none."""
    host: int
    """Index of the host in the job; UINT32_MAX where there is none."""
    op_seq: int
    """Number of the op."""
    a: int
    """See the kind."""
    b: int
    c: int
    d: int = 0
    e: int = 0
    at_ns: int = 0
    """When it was told, by CLOCK_MONOTONIC in ns; 0: now."""
    # generated: end


def event_of(raw: Any) -> Event:
    """From a struct ut_event."""
    return Event(
        # generated: ut_event as it is read (schema/)
        raw.kind,
        raw.job,
        raw.session,
        raw.host,
        raw.op_seq,
        raw.a,
        raw.b,
        raw.c,
        raw.d,
        raw.e,
        raw.at,
        # generated: end
    )
