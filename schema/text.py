# SPDX-License-Identifier: Apache-2.0
"""How rows read in each language: the lines of a struct, an enum, a message, a dataclass or a decoder."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable

from schema.rows import LENGTHS, MESSAGE_TYPES, Enum, Field, Struct, Value

WIDTH = 120
COMMENT_WIDTH = 100
"""Of code and comment on one line of C: a column of comments begins behind the longest code."""


def c_fields(struct: Struct) -> list[str]:
    """The fields of a struct in a header, each with its comment behind it or, if that is long, above it; of several
    that say the same the first one has it."""
    lines, before = [], ""
    for row in struct.layout:
        lines += _commented(f"{row.c};", "" if row.comment == before else row.comment)
        before = row.comment
    return lines


def cdef_fields(struct: Struct) -> list[str]:
    """The same as cffi reads them: without comments, and with numbers as lengths."""
    lines = []
    for kind, rows in itertools.groupby(struct.layout, lambda row: row.c_type):
        names = [row.c_name + (f"[{LENGTHS.get(row.length, row.length)}]" if row.length else "") for row in rows]
        lines += wrap(f"{'uint64_t' if kind == 'ut_ns' else kind} {', '.join(names)};", 4)
    return lines


def c_values(enum: Enum, values: Iterable[Value]) -> list[str]:
    """The values of an enum in a header."""
    lines = []
    for value in values:
        lines += _commented(f"{enum.prefix}{value.name} = {value.number},", value.comment)
    return lines


def cdef_values(enums: Iterable[Enum]) -> list[str]:
    """The values of enums as cffi reads them: the compiler fills in the numbers."""
    return [f"#define {enum.prefix}{value.name} ..." for enum in enums for value in in_c(enum)]


def message_fields(struct: Struct) -> list[str]:
    """The fields of a message. They have the names, units and numbers of the struct."""
    lines = []
    for row in struct.message:
        kind = "fixed64" if row.bits else MESSAGE_TYPES.get(row.c_type, "")
        if not kind:  # a struct of its own
            kind = "".join(part.title() for part in row.c_type.removeprefix("ut_").split("_"))
            kind = f"Op{kind}"
        comment = row.comment[:1].upper() + row.comment[1:] + "."
        lines += wrap(comment, 2, "// ")
        lines.append(f"  {'repeated ' if row.length else ''}{kind} {row.c_name} = {row.proto};")
    return lines


def dataclass_fields(rows: Iterable[Field]) -> list[str]:
    """The fields of a dataclass, each with its docstring; of several that say the same the first one has it."""
    lines, before = [], ""
    for row in rows:
        lines += [f"    {row.python}", *(wrap(f'"""{row.text}"""', 4) if row.text != before else ())]
        before = row.text
    return lines


def str_enum(enum: Enum) -> list[str]:
    """The members of a StrEnum, each with its docstring if it needs one."""
    lines = []
    for value in enum.values:
        if value.word:
            lines.append(f'    {value.name} = "{value.word}"')
            lines += wrap(f'"""{value.text}"""', 4) if value.text else []
    return lines


def decoded(struct: Struct, raw: str, named: bool = True) -> list[str]:
    """The arguments, with their names or in order, that make the dataclass of the struct, or of its message, which is
    called `raw`."""
    lines = []
    for row in struct.dataclass:
        if row.c or row.read:
            value = (row.read or "@").replace("@", f"{raw}.{row.c_name}")
            lines.append(f"        {f'{row.python_name}=' if named else ''}{value},")
    return lines


def in_c(enum: Enum) -> list[Value]:
    """The values that C has, by number."""
    return sorted((value for value in enum.values if value.number >= 0), key=lambda value: value.number)


def word_tuple(name: str, enum: Enum) -> list[str]:
    """The members of a StrEnum by their numbers; None for a number that has no word."""
    numbers = {value.number: value for value in in_c(enum) if value.word}
    members = [f"{enum.python}.{numbers[n].name}" if n in numbers else "None" for n in range(max(numbers) + 1)]
    annotation = f": tuple[{enum.python} | None, ...]" if "None" in members else ""
    return [f"{name}{annotation} = ({', '.join(members)})"]


def lower_tuple(name: str, enum: Enum) -> list[str]:
    """The names of an enum by their numbers, as labels."""
    return [f"{name} = ({', '.join(repr(value.name.lower()) for value in in_c(enum))})"]


def _commented(code: str, comment: str) -> list[str]:
    """A line of C and its comment; clang-format puts those behind several lines in a column."""
    if len(code) + len(comment) <= COMMENT_WIDTH:
        return [f"    {code} /* {comment} */" if comment else f"    {code}"]
    return [*c_comment(f"{comment[:1].upper()}{comment[1:]}.", 4), f"    {code}"]


def c_comment(comment: str, indent: int) -> list[str]:
    """A comment that has lines of its own; its end stands on no line alone."""
    return [line.replace("\xa0", " ") for line in wrap(f"{comment}\xa0*/", indent, "/* ", " * ")]


def wrap(text: str, indent: int, lead: str = "", next_lead: str | None = None) -> list[str]:
    """Lines of a text behind an indent and a lead, the first line's or that of all."""
    start = " " * indent
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start + lead,
        subsequent_indent=start + (lead if next_lead is None else next_lead),
        break_on_hyphens=False,
        break_long_words=False,
    )
