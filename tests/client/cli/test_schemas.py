# SPDX-License-Identifier: Apache-2.0
"""The published schemas: one of each verb that prints JSON, and none says what it must not."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.cli import schemas
from ultima.cli import ca
from ultima.cli.common import MOMENTS, in_units
from ultima.cli.main import VERBS

FILES = sorted(schemas.FOLDER.glob("*.schema.json"))
APART = {"perf"}
"""It writes a file in the form of nccl-tests, which its own tests hold."""


def test_schemas__there_is_one_for_each_verb_that_prints_json() -> None:
    verbs = [(verb.name, verb.function) for verb in VERBS] + [
        (f"ca_{name}", function) for name, function, *_ in ca.VERBS
    ]
    wanted = {name for name, function in verbs if "as_json" in inspect.signature(function).parameters}
    have = {path.name.removesuffix(".schema.json") for path in FILES}
    assert wanted - APART <= have, wanted - APART - have
    assert have - wanted <= {"status_all", "top_all"}, have - wanted


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_schemas__are_what_they_say(path: Path) -> None:
    schema = json.loads(path.read_text())
    assert (
        schema["type"] == "object"
        and schema["title"].startswith("ultima ")
        and "Keys may be added" in schema["description"]
    )
    assert schema["properties"]["schema"] == {"type": "integer"} and "schema" in schema["required"]


def test_schemas__have_one_unit_for_each_kind_of_quantity() -> None:
    """Of all names that they have, wherever they stand."""

    def names(schema: object) -> Iterator[str]:
        for each in schema if isinstance(schema, list) else schema.values() if isinstance(schema, dict) else ():
            yield from names(each)
        yield from schema.get("properties", ()) if isinstance(schema, dict) else ()

    timed = {
        name for path in FILES for name in names(json.loads(path.read_text())) if re.search("_(ns|us|ms|s)$", name)
    }
    assert {name for name in timed if name.removesuffix("_ns") in MOMENTS} == {n for n in timed if not n.endswith("_s")}
    assert {"at_ns", "not_after_ns", "op_p50_s", "uptime_s", "t_b_s"} <= timed
    assert not {name.removesuffix("_s") for name in timed} & MOMENTS


def test_in_units__keeps_what_is_no_number_and_every_place() -> None:
    found = in_units(
        {"a_us": [1, None], "b": {"up_ms": 1500}, "not_after_s": 2, "at_ns": 3, "loss_ppm": 5, "x_us": "2us"}
    )
    same = {"a_s": [1e-6, None], "b": {"up_s": 1.5}, "not_after_ns": 2 * 10**9, "at_ns": 3, "loss_share": 5e-6}
    assert found == same | {"x_us": "2us"} and list(found) == [*same, "x_us"]


def test_misfits__sees_what_is_wrong_and_leaves_what_is_new() -> None:
    schema = schemas.schema_of(
        [{"a": 1, "b": [{"c": None}, {"c": "x"}], "d": 1.5}, {"a": 2, "b": [], "d": 2, "e": True}]
    )
    assert schemas.misfits(schema, {"a": 1, "b": [{"c": "y", "new": 1}], "d": 3}, "x") == []
    for wrong, where in (
        ({"a": 1, "b": []}, ["x.d: missing"]),
        ({"a": "1", "b": [], "d": 1}, ["x.a: string"]),
        ({"a": 1, "b": [{"c": 5}], "d": 1}, ["x.b[0].c: integer"]),
        ({"a": 1, "b": [], "d": 1, "e": 1}, ["x.e: integer"]),
    ):
        assert schemas.misfits(schema, wrong, "x") == where
    table = schemas.schema_of([dict.fromkeys("abcdefgh", 1)])
    assert schemas.misfits(table, {"other": 2}, "x") == [] and schemas.misfits(table, {"other": ""}, "x")
