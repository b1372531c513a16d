# SPDX-License-Identifier: Apache-2.0
"""The tutorial: its script runs, and its commands are verbs with options that they have."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import typer.main

from ultima.cli.main import build
from ultima.testing import FakeDaemon

TUTORIAL = (Path(__file__).resolve().parents[2] / "docs/tutorial.md").read_text()


def test_script__averages_once_a_second_and_prints_receipts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = next(text for text in re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL) if "sys.argv[1]" in text)
    monkeypatch.setattr(sys, "argv", ["steps.py", "0.2"])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with FakeDaemon(2, peer=lambda rank, op_seq, mine: mine + rank) as daemon, daemon.installed():
        exec(compile(script, "steps.py", "exec"), {"__name__": "__main__"})
    first = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(r"rank 0: mean 0\.50; op 0: COMPLETE after .* ms, all 2 ranks", first), first


def test_commands__are_verbs_and_have_these_options() -> None:
    verbs = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
    lines = re.findall(r"^ +(?:n[12])?\$? ?(?:\w+=\S+ )*ultima ([a-z].*)$", TUTORIAL, re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        command, words = verbs, line.partition(" -- ")[0].split()
        while isinstance(command, dict) and words and words[0] in command:
            command = command[words.pop(0)]
            command = getattr(command, "commands", command)
        assert not isinstance(command, dict), f"no such verb: ultima {line}"
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
