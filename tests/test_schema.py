# SPDX-License-Identifier: Apache-2.0
"""What schema/ says stands in each file that spells it, and is what the compiler made of it; a wrong row is told."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from schema import generate, text
from schema.homes import STRUCTS, WORDS
from schema.receipt import RECEIPT
from schema.rows import Enum, Field, SchemaError, Struct, Value, check_enum, check_struct, first_sentence
from ultima._native import ffi, lib

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
    "fixed bits of a byte": (replace(PAIR, fixed=True), "fixed: allowed for a uint64_t, and it is a uint8_t"),
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


def test_regions__are_filled_and_the_rest_stays() -> None:
    before = "a\n// generated: one (schema/)\nold\n// generated: end\nb\n"
    after = "a\n// generated: one (schema/)\nnew\n// generated: end\nb\n"
    assert generate.fill("x.proto", before, {"one": ["new"]}) == after


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
