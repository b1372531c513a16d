# SPDX-License-Identifier: Apache-2.0
"""How options read in each language."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from schema.option import Option, message_enum
from schema.rows import Enum, Struct
from schema.text import WIDTH, c_comment, c_values, in_c, wrap

TABLE_HEAD = "    option           environment               values (the first is the default)"
_AT = TABLE_HEAD.index("values")


def c_enums(enums: Iterable[Enum]) -> list[str]:
    """The enums of a header."""
    lines = []
    for enum in enums:
        lines += c_comment(enum.text, 0)
        asked = [value for value in in_c(enum) if value.word]
        rest = [value for value in in_c(enum) if not value.word]
        end = [f"    {enum.end}{f' = {enum.end_number}' if enum.end_number else ''},"] if enum.end else []
        if not enum.end:
            asked, rest = in_c(enum), []
        lines += [f"enum {enum.c} {{", *c_values(enum, asked), *end, *c_values(enum, rest), "};"]
    return lines


def c_constants(options: Iterable[Option]) -> list[str]:
    """What stands for a default, and the upper limits that the core checks."""
    lines = []
    for row in options:
        if row.most_constant:
            lines.append(f"    {row.most_constant} = {row.most},")
        if row.constant:
            lines.append(f"    {row.constant} = {row.automatic or row.default},")
    return lines


def cdef_constants(options: Iterable[Option]) -> list[str]:
    return [f"#define {line.split()[0]} ..." for line in c_constants(options)]


def message_options(struct: Struct) -> list[str]:
    """The fields of JobOptions; what is not set means the default, or no change."""
    lines = []
    for row in struct.message:
        assert isinstance(row, Option)
        lines += wrap(row.told, 2, "// ")
        lines.append(f"  optional {row.message_kind} {row.c_name} = {row.proto};")
    return lines


def message_enums(options: Iterable[Option]) -> list[str]:
    """The enums of JobOptions."""
    lines: list[str] = []
    for row in options:
        if row.words:
            lines += [""] if lines else []
            lines += [f"enum {message_enum(row)} {{", f"  {row.c_name.upper()}_UNSPECIFIED = 0;"]
            for value in row.words.values:
                if value.word:
                    lines += wrap(value.text, 2, "// ") if value.text else []
                    lines.append(f"  {row.c_name.upper()}_{value.name} = {value.number};")
            lines.append("}")
    return lines


def python_rows(options: Iterable[Option]) -> list[str]:
    """The rows of ultima.v1.job_options."""
    options = list(options)
    lines = [f"{row.constant.removeprefix('UT_')} = {row.automatic}" for row in options if row.automatic]
    lines.append("OPTIONS = (")
    for row in options:
        said = [repr(row.c_name)]
        if row.words:
            said += [f"words={tuple(row.choices)!r}", f"most={len(row.choices)}", "default=1"]
        else:
            said += [f"least={row.least}"] if row.least != 1 else []
            said += [f"most={row.most}"]
            said += [f"default={row.default}"] if row.default else []
        for name in ("zero", "automatic", "fixed", "whole_only", "partial_only", "coded_only", "by_arrival"):
            if getattr(row, name):
                said.append(f"{name}={getattr(row, name)!r}")
        said += ["of_ranks=True"] if row.of_ranks else []
        lines.append(f"    Row({', '.join(said)}),")
    return [*lines, ")"]


def daemon_fields(struct: Struct) -> list[str]:
    """The fields of the daemon's value, in the order of the message: the id of an epoch is made of them so."""
    return [f"    {row.c_name}: int = {row.first}" for row in struct.message if isinstance(row, Option)]


def client_fields(options: Iterable[Option]) -> list[str]:
    """The fields of `ultima.Options`."""
    lines = []
    for row in options:
        lines += [f"    {row.people}: {row.kind} | None = None", *wrap(f'"""{row.documented}"""', 4)]
    return lines


def people_table(options: Iterable[Option]) -> list[str]:
    """The table in the docstring of `ultima.settings.options`."""
    lines = []
    for row in options:
        first = row.comment_for_people
        start = f"    {row.people:<17}{row.variable:<26}"
        lines += textwrap.wrap(
            f"{row.values}: {first}",
            WIDTH,
            initial_indent=start,
            subsequent_indent=" " * _AT,
            break_on_hyphens=False,
        )
    return lines


def document_table(options: Iterable[Option]) -> list[str]:
    """The table of docs/transport.md."""
    rows = [f"| `{row.people}` | `{row.variable}` | {row.values} |" for row in options]
    return ["| option | environment | values, the first is the default |", "|---|---|---|", *rows]
