# SPDX-License-Identifier: Apache-2.0
"""`ultima` itself: its table of verbs, what its endings mean, and that it starts fast."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.client.cli import golden
from ultima.base.errors import DaemonLost, DaemonUnavailable, InvalidArgument, JoinTimeout, UltimaError
from ultima.cli import common, main
from ultima.v1 import admin_pb2, types_pb2

runner = CliRunner()


def test_help__lists_every_verb_of_the_table() -> None:
    result = runner.invoke(main.build(), ["--help"])
    assert result.exit_code == 0
    for verb in main.VERBS:
        assert f"  {verb.name} " in result.output


@pytest.mark.parametrize("verb", [verb.name for verb in main.VERBS])
def test_help__of_each_verb(verb: str) -> None:
    result = runner.invoke(main.build(), [verb, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert runner.invoke(main.build({verb, "--help"}), [verb, "--help"]).output == result.output


def test_help__does_not_read_the_options_of_verbs_that_are_not_called() -> None:
    assert runner.invoke(main.build(set()), ["--help"]).output == runner.invoke(main.build(), ["--help"]).output
    assert "--job" not in runner.invoke(main.build(set()), ["status", "--help"]).output


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["status", "--no-such-flag"], ["perf", "-n", "0"], ["perf", "-b", "12Q"], ["demo", "--ranks", "many"]],
)
def test_usage__is_exit_status_2(arguments: list[str]) -> None:
    assert runner.invoke(main.build(), arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UltimaError("it failed"), 1),
        (DaemonLost("hangup", "gone"), 1),
        (JoinTimeout("rank 3 is missing"), 1),
        (InvalidArgument("-b", "x", "bytes"), 2),
        (DaemonUnavailable("nobody there"), 3),
    ],
)
def test_ending__is_a_sentence_and_a_status(error: UltimaError, status: int) -> None:
    def verb() -> None:
        raise error

    app = typer.Typer()
    app.command()(main.ends_well(verb))
    result = runner.invoke(app, [])
    assert result.exit_code == status
    assert result.stderr == f"ultima: {error}\n"
    assert result.stdout == ""


def test_ending__interrupted() -> None:
    def verb() -> None:
        raise KeyboardInterrupt

    app = typer.Typer()
    app.command()(main.ends_well(verb))
    assert runner.invoke(app, []).exit_code == 130


def test_start__loads_neither_torch_nor_grpc() -> None:
    """`ultima version` in a shell prompt, or `ultima perf` on a hundred ranks, must not wait for what it does not
    use.
    """
    code = "import sys, ultima.cli.main; print([name for name in ('torch', 'grpc', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("verb", [[], *([verb.name] for verb in main.VERBS)])
def test_help__has_a_short_form(verb: list[str]) -> None:
    short, long = (runner.invoke(main.build(), [*verb, flag]) for flag in ("-h", "--help"))
    assert short.exit_code == 0 and short.output == long.output


def test_version__as_a_flag() -> None:
    result = runner.invoke(main.build(), ["--version"])
    assert result.exit_code == 0 and re.fullmatch(r"ultima \d\S*\n", result.output)


def test_version__says_what_is_installed() -> None:
    result = runner.invoke(main.build(), ["version"])
    assert result.exit_code == 0
    assert result.output.startswith("ultima 0.")


def test_version__json_keys_stay() -> None:
    facts = json.loads(runner.invoke(main.build(), ["version", "--json"]).output)
    assert facts["schema"] == 2
    assert set(facts) == {"schema", "version", "python", "extension", "torch", "machine", "kernel"}
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


def test_golden__sees_what_was_lost_and_leaves_what_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    (tmp_path / "x.json").write_text(json.dumps({"a": [{"b": 1, "c": 2}], "d": 3}))
    golden.check("x", {"a": [{"b": 1, "c": 2, "new": 0}], "d": 3, "new": 1})
    for wrong in ({"a": [{"b": 1}], "d": 3}, {"a": [], "d": 3}, {"a": [{"b": 1, "c": 2}], "d": "3"}):
        with pytest.raises(AssertionError, match="lost or changed x\\."):
            golden.check("x", wrong)


def test_say__is_what_all_verbs_print_with(capsys: pytest.CaptureFixture[str]) -> None:
    """So what they repeat of others cannot move the cursor; `top` clears the screen itself."""
    folder = Path(common.__file__).parent
    lines = [
        f"{file.name}: {line.strip()}"
        for file in sorted(folder.glob("*.py"))
        for line in file.read_text().splitlines()
        if re.search(r"\btyper\.(s?echo|style)\b|\bclick\.(s?echo|style)\b|(?<![.\w])print\(", line)
    ]
    assert len(lines) == 2, lines
    assert lines[0].startswith("common.py: typer.echo(printable(") and lines[1] == "top.py: typer.echo(CLEAR, nl=False)"
    common.say("a\tb\n\x1b[31mred\x9b\r")
    assert capsys.readouterr().out == "a\tb\n?[31mred??\n"


def test_web_and_set__as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    options = types_pb2.JobOptions(incast=2)
    monkeypatch.setattr("ultima.admin.operate.open_page", lambda socket: f"http://{socket}")
    monkeypatch.setattr("ultima.admin.calls.tune", lambda socket, job, said: options)
    status = admin_pb2.GetStatusResponse(jobs=[admin_pb2.JobStatus(job="j", options=types_pb2.JobOptions())])
    monkeypatch.setattr("ultima.admin.calls.get_status", lambda socket, job: status)
    asked = runner.invoke(main.build(), ["web", "--json", "--socket", "/tmp/x.sock"])
    assert json.loads(asked.output)["address"] == "http:///tmp/x.sock"
    asked = runner.invoke(main.build(), ["set", "j", "incast=2", "--json", "--socket", "/tmp/x.sock"])
    assert json.loads(asked.output)["changed"]["incast"]["after"] == "2"
