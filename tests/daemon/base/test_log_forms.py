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

from ultima.daemon.base.log_forms import Form, chosen, fields, fields_of, formatter

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


FORGED = "x level=critical logger=ultimad.attach uid=0 reason=root: all"


def a_record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("ultimad.jobs", logging.WARNING, "x.py", 1, message, arguments, None)


def test_fields_of__no_value_adds_a_key() -> None:
    row = a_record("job %d refused job=%s uid=%d 100%% reason=%s: %s", 7, FORGED, 65002, "no room", "a=b")
    told = {"event": "job 7 refused", "job": FORGED, "uid": "65002 100%", "reason": "no room: a=b"}
    own = {"level": "warning", "logger": "ultimad.jobs"}
    line = json.loads(formatter("json").format(row))
    assert line.pop("time").startswith("20") and line == own | told
    assert formatter("logfmt").format(row) == (
        f'<4>level=warning logger=ultimad.jobs event="job 7 refused" job="{FORGED}" uid="65002 100%" '
        'reason="no room: a=b"'
    )
    row = a_record("path changed job=%s host=%d: %s", FORGED, 1, "they go uid=0")
    assert fields_of(row) == {"event": "path changed", "job": FORGED, "host": "1", "text": "they go uid=0"}


def test_lines__a_value_that_looks_like_keys_is_quoted() -> None:
    row = a_record("path changed job=%s host=%d: %s", FORGED, 1, "in pieces")
    line = formatter("lines").format(row)
    assert line.endswith(f'WARNING ultimad.jobs path changed job="{FORGED}" host=1: in pieces')
    assert formatter("lines").format(a_record("host up job=%s", "a b")).endswith("host up job=a b")


def test_parts__level_logger_and_time_are_the_records_own() -> None:
    row = a_record("strange level=critical logger=root time=0")  # of a library, whose text is all there is
    line = json.loads(formatter("json").format(row))
    assert (line["level"], line["logger"]) == ("warning", "ultimad.jobs") and line["time"].startswith("20")
    assert formatter("logfmt").format(row).startswith("<4>level=warning logger=ultimad.jobs event=strange time=0")


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
