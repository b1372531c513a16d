# SPDX-License-Identifier: Apache-2.0
"""What the engine tells the daemon (struct ut_event), and what the daemon keeps of each op (OpRecord)."""

from __future__ import annotations

from dataclasses import dataclass

from schema.rows import Enum, Field, SchemaError, Struct, Value

EVENT_KIND = Enum(
    "ut_event_kind",
    "UT_EVENT_",
    (
        Value(
            "OP_DONE",
            1,
            text="An op has ended here; host: culprit; a: status; b: ns; c: bytes missing; d: of the bucket; e: "
            "ut_event_what.",
        ),
        Value("DESYNC", 2, text="Hosts mean different ops; host; a: field; b: value here; c: value there."),
        Value("BAD_SUBMISSION", 3, text="A call was refused; session; a: error, as a positive number."),
        Value("VIOLATION", 4, text="A host acknowledged what was never sent, or broke its credit; host."),
        Value(
            "DIVERGED",
            5,
            text="Results differ; a: mask of the hosts whose result differs from ours; b: mask of those compared.",
        ),
        Value(
            "PATH",
            6,
            text="What a path carries has changed; host; a: 1 full packets do not get through to it and go in pieces, "
            "0 they do again.",
        ),
        Value(
            "READY",
            7,
            text="Partial jobs: the next op is op_seq; a: ranks here that have given for it, a bit per local one; 0 "
            "while it is held back.",
        ),
        Value(
            "ACTIVATED",
            8,
            text="Partial jobs: op_seq has started here; host: initiator; a: ranks here that are in it; b: of a coded "
            "job: the step.",
        ),
        Value(
            "QUANT",
            9,
            text="A quantised op has ended here; a: its forms; b: bytes of payload sent; c: received; d: bytes of the "
            "array due from other hosts that came.",
        ),
        Value(
            "PATH_MOVED",
            10,
            text="A port of a host has another address now; host; a: 0 data, 1 feedback; b to e: the address, as it "
            "lies in memory.",
        ),
    ),
    text="What has happened.",
)

EVENT = Struct(
    "ut_event",
    (
        Field("Enum ut_event_kind, which says what a to e are.", c="uint32_t kind", at=0, python="kind: int"),
        Field("Number of the job in the engine.", c="uint32_t job", at=4, python="job: int"),
        Field(
            "Number of the session; UINT32_MAX where there is none.", c="uint32_t session", at=8, python="session: int"
        ),
        Field(
            "Index of the host in the job; UINT32_MAX where there is none.",
            c="uint32_t host",
            at=12,
            python="host: int",
        ),
        Field("Number of the op.", c="uint64_t op_seq", at=16, python="op_seq: int"),
        Field("See the kind.", c="uint64_t a", at=24, python="a: int"),
        Field("See the kind.", c="uint64_t b", at=32, python="b: int"),
        Field("See the kind.", c="uint64_t c", at=40, python="c: int"),
        Field("See the kind.", c="uint64_t d", at=48, python="d: int = 0"),
        Field("See the kind.", c="uint64_t e", at=56, python="e: int = 0"),
        Field(
            "When it was told, by CLOCK_MONOTONIC in ns; 0: now.",
            c="ut_ns at",
            at=64,
            python="at_ns: int = 0",
            brief="when the shell heard of it, which is what fills it in",
        ),
    ),
    72,
)

FORMS = {"Q": (8, "uint64"), "q": (8, "int64"), "H": (2, "uint32"), "B": (1, "uint32")}
"""Letters of Python's struct, with bytes and the message's type."""


@dataclass(frozen=True)
class Kept:
    """One fact that is kept of every op, in 56 bytes of memory and in the message OpRecord."""

    form: str
    name: str
    proto: int
    text: str


OP_RECORD = (
    Kept("Q", "op_seq", 1, "Number of the op in the job."),
    Kept("q", "ended_ns", 2, "When the engine told of its end, in ns since 1970."),
    Kept("Q", "ended_monotonic_ns", 3, "The same by CLOCK_MONOTONIC."),
    Kept("Q", "elapsed_ns", 4, "From the first call on this host to its end, in ns."),
    Kept("Q", "bytes_missing", 8, "Bytes that never came in time."),
    Kept("Q", "bucket_bytes", 9, "Size of the bucket."),
    Kept("H", "culprit", 6, "Index of the host to blame; 65535 for nobody."),
    Kept("B", "status", 5, "Number of enum ut_status."),
    Kept("B", "trouble", 7, "Number of enum ut_trouble: what the culprit has."),
    Kept("B", "collective", 10, "Number of enum ut_collective."),
    Kept("B", "dtype", 11, "Number of enum ut_dtype."),
    Kept("B", "op", 12, "Number of enum ut_redop."),
)


def check_kept(rows: tuple[Kept, ...]) -> None:
    """Raises SchemaError for a row that cannot be right."""
    for what in ("name", "proto"):
        seen: set[object] = set()
        for row in rows:
            if row.form not in FORMS:
                raise SchemaError(f"OpRecord: {row.name}: form {row.form!r}: allowed: {', '.join(FORMS)}")
            if getattr(row, what) in seen:
                raise SchemaError(f"OpRecord: {row.name}: {what} {getattr(row, what)!r} is there already")
            seen.add(getattr(row, what))


def packed(rows: tuple[Kept, ...]) -> str:
    """How the rows lie in memory: without holes, and in a multiple of 8 bytes."""
    size = sum(FORMS[row.form][0] for row in rows)
    return "<" + "".join(row.form for row in rows) + "x" * (-size % 8)


def record_rows(rows: tuple[Kept, ...]) -> list[str]:
    """The lines of daemon/observe/ring.py."""
    lines = [f'FORM = struct.Struct("{packed(rows)}")', "", "", "class Op(NamedTuple):"]
    lines.append('    """One op as it ended on this host."""')
    lines.append("")
    for row in rows:
        lines += [f"    {row.name}: int", f'    """{row.text}"""']
    return lines


def record_message(rows: tuple[Kept, ...]) -> list[str]:
    """The fields of OpRecord."""
    lines = []
    for row in sorted(rows, key=lambda row: row.proto):
        lines += [f"  // {row.text}", f"  {FORMS[row.form][1]} {row.name} = {row.proto};"]
    return lines
