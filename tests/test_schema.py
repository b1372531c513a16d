# SPDX-License-Identifier: Apache-2.0
"""What schema/ says stands in each file that spells it, and is what the compiler made of it; a wrong row is told."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from schema import counter_text, generate, option_text, text
from schema.events import Kept, check_kept, packed, record_message
from schema.homes import STRUCTS, WORDS
from schema.metrics import Metric, check_metrics, document
from schema.option import LIMITS, Option, check_options
from schema.options import OPTIONS
from schema.receipt import RECEIPT
from schema.rows import Counter, Enum, Field, SchemaError, Struct, Value, check_enum, check_struct, first_sentence
from ultima._native import ffi, lib
from ultima.daemon.base.options import NAMES
from ultima.v1 import job_options, limits, types_pb2

TROUBLE = Enum("t", "T_", (Value("NONE", 0, "nothing"), Value("GONE", 1, "gone")), python="Trouble")
FIRST = Field("Seconds since then.", c="uint32_t first_us", at=0, proto=1, python="first_s: float", read="@ * 1e-6")
WORD = Field("What ails it.", c="uint8_t trouble", at=4, proto=2, python="trouble: Trouble = Trouble.NONE")
PAIR = Field("Of both stages.", c="uint8_t pair[2]", at=5, python="pair: tuple[int, int] = (0, 0)")
LAST = Field("Nothing yet.", c="uint8_t reserved", at=7)
GOOD = Struct("ut_some", (FIRST, WORD, PAIR, LAST), 8, (TROUBLE,))


def test_files__are_what_the_schema_says() -> None:
    """A row that was changed without `make schema`, or a generated line that was changed by hand."""
    assert generate.stale() == []


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.c)
def test_layout__is_what_the_compiler_made(struct: Struct) -> None:
    """Trainers map these structs, and other releases read them: offsets and sizes stay."""
    real = {name: (field.offset, ffi.sizeof(field.type)) for name, field in ffi.typeof(struct.c).fields}
    ends = [row.at for row in struct.layout[1:]] + [struct.size]
    assert real == {row.c_name: (row.at, end - row.at) for row, end in zip(struct.layout, ends, strict=True)}
    assert ffi.sizeof(struct.c) == struct.size


@pytest.mark.parametrize("enum", WORDS, ids=lambda enum: enum.c)
def test_enums__have_the_numbers_of_the_compiler(enum: Enum) -> None:
    for value in text.in_c(enum):
        assert getattr(lib, f"{enum.prefix}{value.name}") == value.number, value.name


def test_row__reaches_every_home() -> None:
    row = Field(
        "Apples in the basket, in kg.", c="uint64_t apples", at=RECEIPT.size, proto=99, python="apples: int = 0"
    )
    grown = replace(RECEIPT, fields=(*RECEIPT.fields, row), size=RECEIPT.size + 8)
    check_struct(grown, STRUCTS)
    homes = (
        text.c_fields(grown),
        text.cdef_fields(grown),
        text.message_fields(grown),
        text.dataclass_fields(grown.dataclass),
        text.decoded(grown, "raw"),
    )
    found = [[line for line in lines if "apples" in line] for lines in homes]
    assert found == [
        ["    uint64_t apples; /* apples in the basket, in kg */"],
        ["    uint64_t apples;"],
        ["  uint64 apples = 99;"],
        ["    apples: int = 0"],
        ["        apples=raw.apples,"],
    ]


def test_rows__good_ones_pass() -> None:
    check_struct(GOOD)
    check_enum(TROUBLE)
    assert text.cdef_fields(GOOD) == ["    uint32_t first_us;", "    uint8_t trouble, pair[2], reserved;"]
    assert text.decoded(GOOD, "raw")[0] == "        first_s=raw.first_us * 1e-6,"


FAULTS = {
    "a C name twice": (replace(PAIR, c="uint8_t trouble[2]"), "trouble: c_name 'trouble' is that of trouble already"),
    "a Python name twice": (replace(PAIR, python="first_s: float = 0.0"), "python_name 'first_s' is that of first_us"),
    "a number twice": (replace(PAIR, proto=1), "pair: proto 1 is that of first_us already"),
    "a type that is none": (replace(PAIR, c="uint8 pair[2]"), "type uint8: allowed: uint8_t, uint16_t"),
    "no C": (replace(PAIR, c="uint8_t: pair"), "must read TYPE NAME"),
    "a length that is none": (replace(PAIR, c="uint8_t pair[UT_MANY]"), "LENGTH a number or UT_HOSTS_MAX"),
    "a byte twice": (replace(PAIR, at=4), "at = 4: that byte is taken; the next free one is 5"),
    "a hole": (replace(PAIR, at=6), "at = 6: must be 5"),
    "a number of another type": (replace(PAIR, python="pair: int = 'x'"), "default 'x': is no int"),
    "a default of no word": (replace(PAIR, python="pair: Trouble = Trouble.HUNGER"), "Trouble.HUNGER: is no Trouble"),
    "a None that is not allowed": (replace(PAIR, python="pair: int = None"), "default None: is no int"),
    "Python that is none": (replace(PAIR, python="pair int"), "Python cannot read that"),
    "an expression that is none": (replace(PAIR, read="@ *"), "Python cannot read that"),
    "no default after one": (replace(PAIR, python="pair: int"), "pair: no default, though trouble before it has one"),
    "fixed bits of a byte": (replace(PAIR, bits=True), "bits: allowed for a uint64_t, and it is a uint8_t"),
    "no text": (replace(PAIR, text=""), "pair: no text"),
    "nowhere": (Field("Something."), "neither C nor Python has it"),
    "no value": (Field("Something.", python="some: int"), "nothing gives it a value"),
    "a message alone": (Field("Something.", python="some: int = 0", proto=7), "a message has fields of C alone"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows__a_wrong_one_is_told(fault: str) -> None:
    row, why = FAULTS[fault]
    with pytest.raises(SchemaError, match=re.escape(why)):
        check_struct(replace(GOOD, fields=(FIRST, WORD, row, LAST)))


def test_rows__a_size_that_is_not_their_sum_is_told() -> None:
    with pytest.raises(SchemaError, match=re.escape("ut_some: size = 16: its fields end at 8")):
        check_struct(replace(GOOD, size=16))


@pytest.mark.parametrize("value", [Value("NONE", 2, "x"), Value("X", 1, "x"), Value("X", 2, "gone")])
def test_enums__what_is_there_twice_is_told(value: Value) -> None:
    with pytest.raises(SchemaError, match="already"):
        check_enum(replace(TROUBLE, values=(*TROUBLE.values, value)))


def test_options__limits_are_those_of_the_package() -> None:
    known = {"OFF": job_options.OFF, "SPAN_NS_MAX": job_options.SPAN_NS_MAX}
    known |= {"HOSTS_MAX": limits.HOSTS_MAX, "WORLD_SIZE_MAX": limits.WORLD_SIZE_MAX}
    assert known == LIMITS


COLOUR = Enum(
    "ut_colour", "UT_", (Value("RED", 1, "red"), Value("BLUE", 2, "blue")), "What it looks like.", end="UT_END"
)
SIZE = Option("Size of it, in cm.", c="uint8_t size", at=0, proto=1, most=9, zero="dynamic")
PAINT = Option("What it looks like.", c="uint8_t paint", at=1, proto=2, words=COLOUR)
GAP = replace(COLOUR, values=(Value("RED", 1, "red"), Value("BLUE", 3, "blue")))
OPTION_FAULTS = {
    "a default out of range": (replace(SIZE, default=10, zero=""), "option size: default = 10: allowed: 1 to 9"),
    "a default beside 0": (replace(SIZE, default=3), "default = 3: 0 is the default where `zero` says what it means"),
    "a 0 without a meaning": (replace(SIZE, zero=""), "default = 0: allowed: 1 to 9, and 0 only where `zero` says"),
    "what 0 stands for is out of range": (replace(SIZE, automatic=10), "automatic = 10: allowed: 1 to 9, or 0"),
    "no range": (replace(SIZE, most=0), "least = 1, most = 0: most must be 1 or more"),
    "too much for its field": (replace(SIZE, most=256), "most = 256: a uint8_t cannot hold that"),
    "a limit that is none": (
        replace(SIZE, most="MOONS_MAX"),
        "limit 'MOONS_MAX': allowed: a number, or one of",
    ),
    "the same option twice": (replace(SIZE, c="uint8_t paint"), "option paint: it is there already"),
    "a number of a word": (replace(PAINT, most=2), "default, most, zero and automatic are of numbers"),
    "a word that is none": (replace(PAINT, by_arrival="green"), "by_arrival = green: allowed: red, blue"),
    "a gap": (replace(PAINT, words=GAP), "option paint: its words have the numbers [1, 3]: must be 1, 2 and so on"),
}


@pytest.mark.parametrize("fault", OPTION_FAULTS)
def test_options__a_wrong_one_is_told(fault: str) -> None:
    check_options([SIZE, PAINT])
    row, why = OPTION_FAULTS[fault]
    with pytest.raises(SchemaError, match=re.escape(why)):
        check_options([PAINT, row] if row.c_name == "paint" and not row.words else [row])


def test_options__one_row_reaches_every_home() -> None:
    """What a new option costs: its row, and what checks what it goes with."""
    homes = (
        text.c_fields(Struct("s", (SIZE, PAINT), 2)),
        option_text.message_options(Struct("s", (SIZE, PAINT), 2)),
        option_text.python_rows([SIZE, PAINT]),
        option_text.client_fields([SIZE, PAINT]),
        option_text.document_table([SIZE, PAINT])[2:],
    )
    assert ["\n".join(lines) for lines in homes] == [
        "    uint8_t size; /* size of it, in cm; 0: dynamic */\n"
        "    uint8_t paint; /* what it looks like: enum ut_colour; 0: RED */",
        "  // Size of it, in cm. 1 to 9; 0, the default: dynamic.\n  optional int32 size = 1;\n"
        "  // What it looks like. Default: RED.\n  optional Paint paint = 2;",
        "OPTIONS = (\n    Row('size', most=9, zero='dynamic'),\n"
        "    Row('paint', words=('red', 'blue'), most=2, default=1),\n)",
        '    size: int | str | None = None\n    """Size of it, in cm. Values: 0 (dynamic), 1 to 9."""\n'
        '    paint: str | None = None\n    """What it looks like. Values: red, blue."""',
        "| `size` | `ULTIMA_SIZE` | 0 (dynamic), 1 to 9 |\n| `paint` | `ULTIMA_PAINT` | red, blue |",
    ]


def test_options__their_order_in_daemons_is_that_of_the_message() -> None:
    """The id of an epoch is made of the values in this order: releases must agree."""
    numbers = [types_pb2.JobOptions.DESCRIPTOR.fields_by_name[name].number for name in NAMES]
    assert numbers == sorted(numbers) and set(NAMES) == {row.c_name for row in OPTIONS}


def test_counters__classes_are_those_whose_sum_c_makes() -> None:
    """Each datagram that came is in one of these, whatever it was; what is kept meanwhile is counted twice."""
    rows = (
        Counter("That were used.", c="uint64_t used", at=0, packet_class=True),
        Counter("That were sent.", c="uint64_t sent", at=8),
        Counter("That were late.", c="uint64_t late", at=16, packet_class=True, largest=True),
        Counter("Since when; UT_NEVER for none.", c="uint64_t since_ns", at=24, least=True),
    )
    some = Struct("ut_some", rows, 32)
    assert counter_text.class_sum(some) == ["    return s->used + s->late;"]
    assert counter_text.together([some]) == ["LEAST = frozenset({'since_ns'})", "LARGEST = frozenset({'late'})"]
    assert counter_text.document(some)[2:] == [
        "* `late` (a class): that were late.",
        "* `since_ns`: since when; 0 for none.",
    ]


KEPT = (Kept("Q", "op_seq", 1, "Number of the op."), Kept("H", "culprit", 3, "Who."), Kept("q", "at_ns", 2, "When."))
KEPT_FAULTS = {
    "a name twice": (Kept("B", "culprit", 4, "Who."), "OpRecord: culprit: name 'culprit' is there already"),
    "a number twice": (Kept("B", "dtype", 3, "What."), "OpRecord: dtype: proto 3 is there already"),
    "a form that is none": (Kept("I", "dtype", 4, "What."), "OpRecord: dtype: form 'I': allowed: Q, q, H, B"),
}


@pytest.mark.parametrize("fault", KEPT_FAULTS)
def test_records__a_wrong_row_is_told(fault: str) -> None:
    check_kept(KEPT)
    row, why = KEPT_FAULTS[fault]
    with pytest.raises(SchemaError, match=re.escape(why)):
        check_kept((*KEPT, row))


def test_records__lie_without_holes_and_travel_by_their_numbers() -> None:
    assert packed(KEPT) == "<QHqxxxxxx", "18 bytes, and 24 with what makes the next one begin at a multiple of 8"
    lines = [line for line in record_message(KEPT) if "=" in line]
    assert lines == ["  uint64 op_seq = 1;", "  int64 at_ns = 2;", "  uint32 culprit = 3;"]


DROPS = Metric("counter", "ultima_drops", "Datagrams that were dropped.", "lane")
METRIC_FAULTS = {
    "a kind that is none": (replace(DROPS, kind="sum"), "metric ultima_drops: kind sum: allowed: counter, gauge"),
    "twice": (DROPS, "metric ultima_drops: it is there already"),
    "what its kind adds": (replace(DROPS, name="ultima_drops_total"), "not end with what its kind adds"),
    "another's name": (replace(DROPS, name="drops"), "metric drops: must begin with ultima_"),
    "too many series": (replace(DROPS, name="ultima_x", labels="peer ultima_job"), "no series is by job and peer"),
}


@pytest.mark.parametrize("fault", METRIC_FAULTS)
def test_metrics__a_wrong_one_is_told(fault: str) -> None:
    check_metrics([DROPS])
    row, why = METRIC_FAULTS[fault]
    with pytest.raises(SchemaError, match=re.escape(why)):
        check_metrics([DROPS, row])


def test_metrics__a_line_that_is_too_wide_is_told() -> None:
    assert document([DROPS], counters=True)[2] == "| `ultima_drops_total{lane}` | datagrams that were dropped |"
    with pytest.raises(SchemaError, match="more than 120 characters"):
        document([replace(DROPS, text="Drops" * 20)], counters=True)


def test_regions__are_filled_and_the_rest_stays() -> None:
    before = "a\n// generated: one (schema/)\nold\n// generated: end\nb\n"
    after = "a\n// generated: one (schema/)\nnew\n// generated: end\nb\n"
    assert generate.fill("x.proto", before, {"one": ["new"]}) == after


def test_regions__a_table_in_a_docstring_ends_with_an_empty_line() -> None:
    before = "text\n    head of the table\n    old\n    old\n\ntext\n"
    after = "text\n    head of the table\n    new\n\ntext\n"
    assert generate.fill("x.proto", before, {"    head of the table": ["    new"]}) == after


def test_regions__are_laid_out_in_the_style_of_their_language(monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"one": ["OPTIONS = ('x',  'y')"]}
    before = "# generated: one (schema/)\n# generated: end\n"
    assert 'OPTIONS = ("x", "y")' in generate.fill("x.py", before, home)
    with pytest.raises(SchemaError, match=r"x\.py: ruff: .*expression"):
        generate.fill("x.py", before, {"one": ["x ="]})
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SchemaError, match=r"x\.py: /nowhere/ruff: No such file or directory: `make setup` installs it"):
        generate.fill("x.py", before, home)


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("a\n", "x.proto: no region 'one': a line with"),
        ("generated: two (schema/)\ngenerated: end\n", "x.proto: region 'two': the schema has one for this file"),
        ("generated: one (schema/)\n", "x.proto: region 'one': no line with 'generated: end' after it"),
        ("generated: one (schema/)\ngenerated: end\n" * 2, "region 'one': the schema has one for this file, each once"),
    ],
)
def test_regions__that_do_not_fit_are_told(before: str, why: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(why)):
        generate.fill("x.proto", before, {"one": []})


def test_comments__are_the_first_sentence_as_c_means_it() -> None:
    assert first_sentence("When it came; None if none came. Since then.") == "when it came; 0 if none came"
    assert first_sentence("NaN or Inf at net.core.rmem_max.") == "NaN or Inf at net.core.rmem_max"


def test_command__says_what_is_wrong_and_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "STRUCTS", (replace(GOOD, size=9),))
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err == "schema: ut_some: size = 9: its fields end at 8\n"
    monkeypatch.setattr(generate, "generate", lambda: {"README.md": "something else"})
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err == "README.md is not what the schema says: run `make schema`\n"
    assert generate.main(["--help"]) == 2
