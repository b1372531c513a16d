# SPDX-License-Identifier: Apache-2.0
"""Log lines taken apart for the journal and for machines, and that each event is documented."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import sys
from pathlib import Path

import pytest

from ultima.daemon.base.log_forms import Form, chosen, fields, formatter

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("stopped", {"event": "stopped"}),
        ("host up job=a host=1 address=10.0.0.2", {"event": "host up", "job": "a", "host": "1", "address": "10.0.0.2"}),
        ("job over job=a reason=all hosts are gone", {"event": "job over", "job": "a", "reason": "all hosts are gone"}),
        ("x failed reason=port = 3, k=4: taken", {"event": "x failed", "reason": "port = 3, k=4: taken"}),
        ("path changed job=a host=1: they go in pieces", {"event": "path changed", "job": "a", "host": "1",
                                                          "text": "they go in pieces"}),
        ("no peers: `bind` is not set", {"event": "no peers", "text": "`bind` is not set"}),
        ("limits limits.jobs=16 limits.x=0", {"event": "limits", "limits.jobs": "16", "limits.x": "0"}),
    ],
)  # fmt: skip
def test_fields__of_a_message(message: str, parts: dict[str, str]) -> None:
    assert fields(message) == parts


def a_line(form: Form, message: str, level: int = logging.WARNING) -> str:
    record = logging.LogRecord("ultimad.jobs", level, "x.py", 1, message, (), None)
    record.left_out = " left_out=3"
    return formatter(form).format(record)


def test_logfmt__has_a_priority_no_time_and_one_line() -> None:
    line = a_line("logfmt", 'job over job=a b reason=said "no"\nand left')
    assert line == (
        '<4>level=warning logger=ultimad.jobs event="job over" job="a b" reason="said \\"no\\"\\nand left" left_out=3'
    )
    assert a_line("logfmt", "stopped", logging.ERROR).startswith("<3>level=error ")


def test_json__has_the_time_and_each_field() -> None:
    told = json.loads(a_line("json", "host up job=a host=1"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4}", told.pop("time"))
    assert told == {"level": "warning", "logger": "ultimad.jobs", "event": "host up", "job": "a", "host": "1",
                    "left_out": "3"}  # fmt: skip


def test_traceback__stays_in_one_line() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        record = logging.LogRecord("ultimad", logging.ERROR, "x.py", 1, "task failed name=t", (), sys.exc_info())
    line = formatter("logfmt").format(record)
    assert "\n" not in line and 'trace="Traceback' in line and "ValueError: x" in line


def test_chosen__logfmt_where_the_journal_listens(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as stream:
        found = os.fstat(stream.fileno())
        journal = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert chosen("auto", journal, stream.fileno()) == "logfmt"
        assert chosen("json", journal, stream.fileno()) == "json"
    assert chosen("auto", {"JOURNAL_STREAM": "1:2"}) == chosen("auto", {}) == "lines"


def events() -> set[str]:
    """The event of each line that the daemon logs."""
    found = set()
    for path in (ROOT / "daemon").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in ("debug", "info", "warning", "error", "exception", "log"):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "log"):
                continue
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if texts:
                found.add(re.sub(r"(: | %s).*", "", fields(texts[0])["event"]))
    return found


def test_events__are_documented() -> None:
    """Whoever searches a log relies on their names: one that is added or renamed is told in docs/failures.md."""
    text = (ROOT / "docs/failures.md").read_text()
    told = set(re.findall(r"`([^`]+)`", text.partition("## The log")[2]))
    assert events() <= told, sorted(events() - told)
