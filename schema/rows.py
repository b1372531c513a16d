# SPDX-License-Identifier: Apache-2.0
"""What a row of the schema may say, and the checks that a row must pass before anything is written from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

SIZES = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "int32_t": 4, "uint64_t": 8, "double": 8, "ut_ns": 8}
"""Bytes of each type that a field of a shared struct may have; a struct of the schema may be one, too."""
MESSAGE_TYPES = {"uint8_t": "uint32", "uint16_t": "uint32", "uint32_t": "uint32", "int32_t": "int32"}
MESSAGE_TYPES |= {"uint64_t": "uint64", "double": "double", "ut_ns": "uint64"}
LENGTHS = {"UT_HOSTS_MAX": 64}
"""What the names stand for that an array of the schema may have as its length."""
_C = re.compile(r"(\w+) (\w+)(?:\[(\w+)\])?")


class SchemaError(Exception):
    """A row that cannot be right. The text names the row, what is wrong with it, and what is allowed."""


@dataclass(frozen=True)
class Field:
    """One fact of a struct: where it lies in C, its number in the message, and what Python makes of it.

    A fact may be missing in each of the three. The order of rows is that of Python; C goes by `at`, and the message by
    its numbers.
    """

    text: str
    """What it is, with units: the docstring of the Python field. C and the message show its first sentence."""
    c: str = ""
    """As C declares it: "uint64_t stage_ns[2]"."""
    at: int = -1
    """Its offset in the struct, in bytes."""
    proto: int = 0
    """Its number in the message; 0: the message lacks it. The message has the name that C has."""
    bits: bool = False
    """The message holds it as fixed64: all bits are used, as in masks and digests."""
    python: str = ""
    """As a dataclass declares it: "trouble: Trouble = Trouble.NONE"."""
    read: str = ""
    """Python's value, where that is not C's: an expression in which @ stands for C's field."""
    brief: str = ""
    """What C and the message say of it, where they hold it in another form than Python."""

    @property
    def c_type(self) -> str:
        return _parts(self)[0]

    @property
    def c_name(self) -> str:
        return _parts(self)[1] if self.c else ""

    @property
    def length(self) -> str:
        """Of an array, as it is written; "" for one value."""
        return _parts(self)[2]

    @property
    def count(self) -> int:
        return LENGTHS.get(self.length, 0) or int(self.length or 1)

    @property
    def python_name(self) -> str:
        return self.python.partition(":")[0].strip()

    @property
    def python_default(self) -> str:
        return self.python.partition("=")[2].strip()

    @property
    def name(self) -> str:
        """For people."""
        return self.c_name or self.python_name

    @property
    def comment(self) -> str:
        """What C and the message say."""
        return self.brief or first_sentence(self.text)


@dataclass(frozen=True)
class Counter(Field):
    """One number that is counted: how lanes are taken together, and whether it is a class of datagrams."""

    packet_class: bool = False
    """Each datagram that comes in is counted in exactly one of these."""
    least: bool = False
    """Of several lanes the least counts, and not the sum."""
    largest: bool = False
    """Of several lanes the largest counts, and not the sum."""


@dataclass(frozen=True)
class Value:
    """One value of an enum. `number` -1: only Python has it; `word` "": only C has it."""

    name: str
    number: int
    word: str = ""
    text: str = ""
    brief: str = ""

    @property
    def comment(self) -> str:
        return self.brief or first_sentence(self.text)


@dataclass(frozen=True)
class Enum:
    """An enum of C, with the names, and the words of people, that Python has for its numbers."""

    c: str
    prefix: str
    values: tuple[Value, ...]
    text: str = ""
    python: str = ""
    """Name of the StrEnum; "": Python has none."""
    end: str = ""
    """Of C, the name after the last number that may be asked for."""
    end_number: int = 0
    """Its number; 0: that after the last word."""


@dataclass(frozen=True)
class Struct:
    """A struct of C, and what stands for it in messages and in Python."""

    c: str
    fields: tuple[Field, ...]
    size: int
    """Bytes. The layout is shared between processes and releases: a new field takes reserved bytes or the end."""
    enums: tuple[Enum, ...] = ()
    """Those whose values may be defaults in Python."""

    @property
    def layout(self) -> list[Field]:
        """The fields of C in their order."""
        return sorted((row for row in self.fields if row.c), key=lambda row: row.at)

    @property
    def message(self) -> list[Field]:
        """The fields of the message in the order of their numbers."""
        return sorted((row for row in self.fields if row.proto), key=lambda row: row.proto)

    @property
    def dataclass(self) -> list[Field]:
        """The fields of Python in their order."""
        return [row for row in self.fields if row.python]


def lowered(text: str) -> str:
    """Without the capital letter that a sentence begins with, and a name keeps."""
    word = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if word[1:] == word[1:].lower() else text


def first_sentence(text: str) -> str:
    """Up to the first full stop, without it and without the capital letter, as comments are written; they are of C and
    messages, which have 0 where Python has None."""
    return lowered(re.sub(r"\bNone\b", "0", re.split(r"\.(?= |$)", text, maxsplit=1)[0]))


def check_struct(struct: Struct, known: Iterable[Struct] = ()) -> None:
    """Raises SchemaError for the first row that cannot be right; `known` are the structs that a field may be."""
    sizes = SIZES | {other.c: other.size for other in known}
    for row in struct.fields:
        where = f"{struct.c}: {row.name or repr(row.text)}"
        if not row.c and not row.python:
            raise SchemaError(f"{where}: neither C nor Python has it: give `c` or `python`")
        if not row.text:
            raise SchemaError(f"{where}: no text: say what it is, with its unit")
        if row.c and row.c_type not in sizes:
            raise SchemaError(f"{where}: type {row.c_type}: allowed: {', '.join(sizes)}")
        if row.proto and not row.c:
            raise SchemaError(f"{where}: proto = {row.proto}: a message has fields of C alone, and `c` is not given")
        if row.bits and row.c_type != "uint64_t":
            raise SchemaError(f"{where}: bits: allowed for a uint64_t, and it is a {row.c_type}")
        if row.python:
            _check_python(where, row, struct.enums)
    for what in ("c_name", "python_name", "proto"):
        _check_once(struct.c, what, [(getattr(row, what), row.name) for row in struct.fields if getattr(row, what)])
    _check_layout(struct, sizes)
    _check_defaults_last(struct)


def check_enum(enum: Enum) -> None:
    """Raises SchemaError for an enum with a name, a number or a word twice."""
    _check_once(enum.c, "name", [(value.name, value.name) for value in enum.values])
    _check_once(enum.c, "number", [(v.number + 1, v.name) for v in enum.values if v.number >= 0])
    _check_once(enum.c, "word", [(value.word, value.name) for value in enum.values if value.word])


def _parts(row: Field) -> tuple[str, str, str]:
    found = _C.fullmatch(row.c)
    if not found or (found[3] and not found[3].isdigit() and found[3] not in LENGTHS):
        lengths = ", ".join(LENGTHS)
        raise SchemaError(f"c = {row.c!r}: must read TYPE NAME or TYPE NAME[LENGTH], LENGTH a number or {lengths}")
    return found[1], found[2], found[3] or ""


def _check_once(where: str, what: str, names: list[tuple[object, str]]) -> None:
    seen: dict[object, str] = {}
    for value, row in names:
        if value in seen:
            raise SchemaError(f"{where}: {row}: {what} {value!r} is that of {seen[value]} already")
        seen[value] = row


def _check_layout(struct: Struct, sizes: dict[str, int]) -> None:
    """The offsets leave no hole and no byte twice, and each field lies where the compiler would put it."""
    end = 0
    for row in struct.layout:
        size = sizes[row.c_type]
        aligned = min(size, 8)
        if row.at < end:
            raise SchemaError(f"{struct.c}: {row.name}: at = {row.at}: that byte is taken; the next free one is {end}")
        if row.at > end or row.at % aligned:
            raise SchemaError(
                f"{struct.c}: {row.name}: at = {row.at}: must be {end}, where the field before ends, and a multiple of "
                f"{aligned}: name the bytes between as reserved"
            )
        end += size * row.count
    if end != struct.size:
        raise SchemaError(f"{struct.c}: size = {struct.size}: its fields end at {end}")


def _check_python(where: str, row: Field, enums: Iterable[Enum]) -> None:
    try:
        (declared,) = ast.parse(row.python).body
        ast.parse(row.read.replace("@", "x") or "x", mode="eval")
    except (SyntaxError, ValueError):
        raise SchemaError(f"{where}: python = {row.python!r}, read = {row.read!r}: Python cannot read that") from None
    if not isinstance(declared, ast.AnnAssign):
        raise SchemaError(f"{where}: python = {row.python!r}: must read NAME: TYPE or NAME: TYPE = DEFAULT")
    if not row.python_default and not row.c and not row.read:
        raise SchemaError(f"{where}: nothing gives it a value: give `c`, `read` or a default")
    if declared.value is not None:
        kind = ast.unparse(declared.annotation)
        if not _fits(declared.value, kind, enums):
            raise SchemaError(f"{where}: default {row.python_default}: is no {kind}")


def _fits(default: ast.expr, kind: str, enums: Iterable[Enum]) -> bool:
    """Whether a default may be one of a type: a literal or constant of it, None where the type says so, or a member
    of an enum."""
    kinds = kind.split(" | ")
    if isinstance(default, ast.Attribute):
        name, _, member = ast.unparse(default).rpartition(".")
        return name in kinds and any(e.python == name and any(v.name == member for v in e.values) for e in enums)
    if isinstance(default, ast.Name) and default.id.isupper():  # a constant of the module
        return "int" in kinds
    try:
        value = ast.literal_eval(default)
    except ValueError:
        return False
    if value is None:
        return "None" in kinds
    if isinstance(value, tuple):
        return any(each.startswith("tuple[") for each in kinds) or kind.startswith("tuple[")
    return type(value).__name__ in kinds


def _check_defaults_last(struct: Struct) -> None:
    before = ""
    for row in struct.dataclass:
        if before and not row.python_default:
            raise SchemaError(f"{struct.c}: {row.python_name}: no default, though {before} before it has one")
        before = before or (row.python_name if row.python_default else "")
