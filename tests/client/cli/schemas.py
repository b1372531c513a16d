# SPDX-License-Identifier: Apache-2.0
"""The schemas in deploy/json, which tell users what `--json` prints: one of each verb, held to what tests see it print.

While a test runs, each object that a verb prints with `print_json` must fit the schema of that verb. With
ULTIMA_TEST_SCHEMAS=write the schemas are made anew of all that the run has seen: run all tests that call verbs.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ultima.cli import common

try:  # typer brings its own parser in newer versions
    from typer._click.globals import get_current_context
except ModuleNotFoundError:
    from click import get_current_context

FOLDER = Path(__file__).resolve().parents[3] / "deploy/json"
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", dict: "object",
         list: "array"}  # fmt: skip
MAP_KEYS = 8  # an object of so many numbers and nothing else is a table: its keys are no part of the form
UNITS = (
    "The end of a name is the unit: _s a duration in seconds, _ns a moment in nanoseconds since 1970, _bytes; a _share "
    "is from 0 to 1."
)
# May be null, whether or not a test has seen that: what is not known, or not measured.
NULLABLE = {
    *("rounds", "straggler_rank", "took_s", "torch", "version", "rtt_min_s", "rtt_median_s", "rtt_max_s"),
    *("clock_ahead_s", "clock_error_s", "datagrams_there", "datagrams_here", "packet_bytes", "receipt", "rank"),
    *("for_s", "written"),
    *("receipts", "network", "t_b_s", "deadline_s", "first_s", "last_s", "opened_s", "accuracy_mean"),
}
_seen: dict[str, list[Any]] = defaultdict(list)


@contextmanager
def holding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks what verbs print in this process."""
    usual = common.say

    def say(text: str = "", err: bool = False, nl: bool = True) -> None:
        context = get_current_context(silent=True)
        if context is not None and text.startswith("{"):
            verb = " ".join(str(context.command_path).split()[1:])
            check(verb, json.loads(text), bool(context.params.get("everywhere")))
        usual(text, err, nl)

    monkeypatch.setattr(common, "say", say)
    yield


def check(verb: str, facts: Any, everywhere: bool = False) -> None:
    """Holds what a verb printed against its schema."""
    name = f"{verb}_all" if everywhere else verb.replace(" ", "_")
    file = FOLDER / f"{name}.schema.json"
    if os.environ.get("ULTIMA_TEST_SCHEMAS") == "write":
        _seen[name].append(facts)
        head = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"ultima {verb}{' --all' if everywhere else ''} --json",
            "description": f"Keys may be added. {UNITS}",
        }
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(head | schema_of(_seen[name]), indent=1) + "\n")
    assert file.exists(), f"{file} is missing: run the tests of the verb with ULTIMA_TEST_SCHEMAS=write"
    wrong = misfits(json.loads(file.read_text()), facts, verb)
    assert not wrong, f"{file.name} does not allow {', '.join(wrong)}"


def schema_of(examples: list[Any]) -> dict[str, Any]:
    """What all of them fit: their types, the keys that all objects have, and what their parts fit."""
    kinds = {TYPES[type(each)] for each in examples}
    if "number" in kinds:  # a number may come out whole
        kinds.discard("integer")
    if kinds <= {"null"}:
        return {}  # nothing is known of what it is otherwise
    found: dict[str, Any] = {"type": sorted(kinds) if len(kinds) > 1 else next(iter(kinds))}
    objects = [each for each in examples if isinstance(each, dict)]
    if any(_is_map(each) for each in objects):
        found["additionalProperties"] = schema_of([value for each in objects for value in each.values()])
    elif objects:
        keys = list(dict.fromkeys(key for each in objects for key in each))
        found["properties"] = {key: _part(key, [each[key] for each in objects if key in each]) for key in keys}
        found["required"] = [key for key in keys if all(key in each for each in objects)]
    items = [item for each in examples if isinstance(each, list) for item in each]
    if items:
        found["items"] = schema_of(items)
    return found


def _part(key: str, examples: list[Any]) -> dict[str, Any]:
    return schema_of([*examples, None] if key in NULLABLE and any(each is not None for each in examples) else examples)


def _is_map(value: dict[str, Any]) -> bool:
    return len(value) >= MAP_KEYS and all(type(each) in (int, float) for each in value.values())


def misfits(schema: dict[str, Any], value: Any, at: str) -> list[str]:
    """Where a value does not fit a schema of the kind that `schema_of` makes."""
    if "type" not in schema:
        return []
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = TYPES[type(value)]
    if kind not in allowed and not (kind == "integer" and "number" in allowed):
        return [f"{at}: {kind}"]
    bad: list[str] = []
    if isinstance(value, dict):
        bad = [f"{at}.{key}: missing" for key in schema.get("required", ()) if key not in value]
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        bad += [row for key in value for row in misfits(known.get(key, others), value[key], f"{at}.{key}")]
    if isinstance(value, list):
        bad += [row for i, item in enumerate(value) for row in misfits(schema.get("items", {}), item, f"{at}[{i}]")]
    return bad
