# SPDX-License-Identifier: Apache-2.0
"""What a row of an option may say, and what follows from it: its values in words, its types, its range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schema.rows import SIZES, Enum, Field, SchemaError, check_enum, first_sentence

LIMITS = {"HOSTS_MAX": 64, "WORLD_SIZE_MAX": 1024, "SPAN_NS_MAX": 3600 * 10**9, "OFF": -1}
"""What names in `least` and `most` stand for; those of ultima.v1 have the same values."""


@dataclass(frozen=True)
class Option(Field):
    """One option of a job: a word, a whole number, or a span of time in ns (its name ends so).

    `text` says what it is; values, the default, and whether it may change are told from the rest. The order of rows is
    that in which people see them.
    """

    words: Enum | None = None
    """Of a word: those there are, of which the first is the default."""
    least: int | str = 1
    most: int | str = 0
    """Of a number or a span, which may be 0 besides if `zero` says what that means."""
    default: int = 0
    zero: str = ""
    """For people: what 0 stands for; "" where it is not allowed."""
    automatic: int = 0
    """The number that 0 stands for, where there is one."""
    fixed: bool = False
    """Cannot be changed while the job runs."""
    whole_only: bool = False
    """Has just its default in a partial job."""
    partial_only: bool = False
    """Means nothing in a job that is not partial."""
    coded_only: bool = False
    """Means nothing, and has just its default, in a job that is not coded."""
    by_arrival: str = ""
    """The word under which the bits of a sum depend on what comes when; no deterministic job has it."""
    of_ranks: bool = False
    """Counts ranks of the job: it cannot be more than there are."""
    constant: str = ""
    """Name of `automatic`, or of the default, in C."""
    most_constant: str = ""
    """Name of `most` in C."""

    @property
    def span(self) -> bool:
        return self.c_name.endswith("_ns")

    @property
    def people(self) -> str:
        """Its name for people."""
        return self.c_name.removesuffix("_ns")

    @property
    def variable(self) -> str:
        return f"ULTIMA_{self.people.upper()}"

    @property
    def first(self) -> int:
        """The number of its default."""
        return 1 if self.words else self.default

    @property
    def choices(self) -> list[str]:
        """The words that may be asked for."""
        return [value.word for value in self.words.values if value.word] if self.words else []

    @property
    def values(self) -> str:
        """As people write them, the default first."""
        if self.words:
            return ", ".join(self.choices)
        span = "a duration" if self.span else ""
        if self.span:
            auto = "auto" if self.zero == "automatic" else f"auto ({self.zero})"
            return ", ".join([auto, *(["off"] if number(self.least) < 0 else []), span])
        most = "the ranks" if self.of_ranks else str(number(self.most))
        numbers = "a whole number" if number(self.most) > 10**9 else f"{self.least} to {most}"
        if self.partial_only:
            return f"auto ({self.zero}), {numbers}"
        first = self.zero if self.coded_only else f"{self.default} ({self.zero})" if self.zero else str(self.default)
        return f"{first}, {numbers}"

    @property
    def kind(self) -> str:
        """What `ultima.Options` takes."""
        if set(self.choices) == {"yes", "no"}:
            return "str | bool"
        return "str" if self.words else "float | str | timedelta" if self.span else "int | str"

    @property
    def message_kind(self) -> str:
        if self.words:
            return message_enum(self)
        return "fixed64" if self.bits else "int64" if self.span else "int32"

    @property
    def comment(self) -> str:
        """In C: what 0 means belongs to it."""
        if self.words:
            return f"{first_sentence(self.text)}: enum {self.words.c}; 0: {self.words.values[0].name}"
        zero = self.constant or self.zero
        off = "; UT_NEVER: off" if number(self.least) < 0 else ""
        return f"{first_sentence(self.text)}; 0: {zero}{off}"

    @property
    def comment_for_people(self) -> str:
        """In a table: what it is, and whether it may change."""
        return first_sentence(self.text) + ("; fixed while the job runs" if self.fixed else "")

    @property
    def told(self) -> str:
        """In the message: all of it."""
        said = self.text
        if self.words:
            return f"{said}{self._fixed} Default: {self.choices[0].upper()}."
        most = "the number of ranks of the job" if self.of_ranks else str(number(self.most))
        span = "In ns; " if self.span else ""
        least = "" if self.span or number(self.most) > 10**9 else f"{self.least} to {most}; "
        default = "0, the default: " + self.zero if self.zero else f"default: {self.default}"
        off = "; -1: off" if number(self.least) < 0 else ""
        numbers = f"{span}{least}{default}{off}"
        return f"{said}{self._fixed} {numbers[:1].upper()}{numbers[1:]}."

    @property
    def documented(self) -> str:
        """In the docstring of the field of `ultima.Options`."""
        return f"{self.text}{self._fixed} Values: {self.values}."

    @property
    def _fixed(self) -> str:
        return " It cannot be changed while the job runs." if self.fixed else ""


def number(limit: int | str) -> int:
    """What a limit stands for: a number, or a name of `LIMITS` less a number."""
    if isinstance(limit, int):
        return limit
    name, _, less = limit.partition(" - ")
    if name not in LIMITS or (less and not less.isdigit()):
        raise SchemaError(f"limit {limit!r}: allowed: a number, or one of {', '.join(LIMITS)}, also ' - ' a number")
    return LIMITS[name] - int(less or 0)


def message_enum(option: Option) -> str:
    """Name of the enum of the message."""
    return "".join(part.title() for part in option.c_name.split("_"))


def check_option(row: Option) -> None:
    """Raises SchemaError for an option whose values do not go together."""
    where = f"option {row.people}"
    if row.words:
        check_enum(row.words)
        numbers = [value.number for value in row.words.values if value.word]
        if numbers != list(range(1, len(numbers) + 1)):
            raise SchemaError(f"{where}: its words have the numbers {numbers}: must be 1, 2 and so on")
        if row.default or row.most or row.zero or row.automatic:
            raise SchemaError(
                f"{where}: default, most, zero and automatic are of numbers; its first word is the default"
            )
        if row.by_arrival and row.by_arrival not in row.choices:
            raise SchemaError(f"{where}: by_arrival = {row.by_arrival}: allowed: {', '.join(row.choices)}")
        return
    least, most = number(row.least), number(row.most)
    if most < max(least, 1):
        raise SchemaError(f"{where}: least = {least}, most = {most}: most must be {max(least, 1)} or more")
    if most >= 2 ** (8 * SIZES[row.c_type]):
        raise SchemaError(f"{where}: most = {most}: a {row.c_type} cannot hold that")
    for name, value in (("default", row.default), ("automatic", row.automatic)):
        if not (least <= value <= most or (value == 0 and (row.zero or name == "automatic"))):
            zero = ", or 0" if row.zero else ", and 0 only where `zero` says what it means"
            raise SchemaError(f"{where}: {name} = {value}: allowed: {least} to {most}{zero}")
    if row.zero and row.default:
        raise SchemaError(f"{where}: default = {row.default}: 0 is the default where `zero` says what it means")


def check_options(rows: Iterable[Option]) -> None:
    """Of all of them: no name twice, the deterministic switch is there for `by_arrival`."""
    seen: set[str] = set()
    for row in rows:
        check_option(row)
        if row.people in seen:
            raise SchemaError(f"option {row.people}: it is there already")
        seen.add(row.people)
