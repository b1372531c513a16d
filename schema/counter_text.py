# SPDX-License-Identifier: Apache-2.0
"""How counters read in C, in the daemon and in documents."""

from __future__ import annotations

from collections.abc import Iterable

from schema.rows import Counter, Struct, lowered
from schema.text import wrap


def class_sum(struct: Struct) -> list[str]:
    """The body of the function that adds up the classes of datagrams."""
    return [f"    return {' + '.join(f's->{row.c_name}' for row in classes(struct))};"]


def classes(struct: Struct) -> list[Counter]:
    """Each datagram that comes in is counted in exactly one of these."""
    return [row for row in counters([struct]) if row.packet_class]


def counters(structs: Iterable[Struct]) -> list[Counter]:
    """Those of several structs that are numbers."""
    fields = (row for struct in structs for row in struct.layout)
    return [row for row in fields if isinstance(row, Counter) and row.c_type in ("uint64_t", "ut_ns")]


def together(structs: Iterable[Struct]) -> list[str]:
    """How the daemon takes the counters of several lanes together; what is in neither is added up."""
    every = counters(structs)
    least = ", ".join(repr(row.c_name) for row in every if row.least)
    largest = ", ".join(repr(row.c_name) for row in every if row.largest)
    return [f"LEAST = frozenset({{{least}}})", f"LARGEST = frozenset({{{largest}}})"]


def path_status(struct: Struct) -> list[str]:
    """What JobHostStatus shows of a path as it is counted; an int64 has no NEVER, and is 0 there."""
    lines = []
    for row in struct.message:
        comment = row.comment.replace("NEVER, the largest number,", "0")
        lines += wrap(f"{comment[:1].upper()}{comment[1:]}.", 2, "// ")
        lines.append(f"  int64 {row.c_name} = {row.proto};")
    return lines


def path_counts(struct: Struct) -> list[str]:
    """Their names in the daemon."""
    return [f"COUNTS = {tuple(row.c_name for row in struct.message)!r}"]


def document(struct: Struct) -> list[str]:
    """A list of docs/operations.md, where a table would be too wide. The status shows 0 for UT_NEVER."""
    lines = []
    for row in counters([struct]):
        star = " (a class)" if row.packet_class else ""
        lines += wrap(f"`{row.c_name}`{star}: {lowered(row.text)}".replace("UT_NEVER", "0"), 0, "* ", "  ")
    return lines
