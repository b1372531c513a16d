# SPDX-License-Identifier: Apache-2.0
"""What `--help` says: verbs in groups, whole sentences, values by our own names, and an example that can be typed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ultima.cli import width
from ultima.cli.help import GROUPS, argument_name, option_term, records
from ultima.cli.main import VERBS, build

runner = CliRunner()


def everything() -> Iterator[tuple[str, Any]]:
    """All commands by the words that call them, those below groups too."""
    for name, command in typer.main.get_command(build()).commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", {})
        yield from [(f"{name} {each}", found) for each, found in below.items()] or [(name, command)]


ALL = dict(everything())


def helped(*words: str) -> str:
    """The page, with lines that were broken made whole."""
    result = runner.invoke(build(), [*words, "--help"])
    assert result.exit_code == 0, result.output
    return re.sub(r"\s+", " ", result.output)


def test_root__has_every_verb_in_a_group_with_its_whole_sentence() -> None:
    page = helped()
    titles = [page.index(f"{group}:") for group in GROUPS]
    assert titles == sorted(titles)
    for verb in VERBS:
        assert f" {verb.name} {verb.help}" in page
        assert verb.help.endswith("."), verb.name
    assert {verb.group for verb in VERBS} == set(GROUPS)


@pytest.mark.parametrize("name", ALL)
def test_verb__speaks_in_our_words_and_its_example_can_be_typed(name: str) -> None:
    page = helped(*name.split())
    assert not re.search(
        r"[<{}]|\[\[|INTEGER|range", page.replace("{host}", "").replace("1<=x<=", "").replace("x>=", "")
    )
    context = ALL[name].make_context(name, [], resilient_parsing=True)
    assert all(told and "required" not in told for _, told in records(ALL[name], context, "argument"))
    example = ALL[name].epilog
    assert example and page.endswith(f"Example: {example} ")
    words = shlex.split(example.split(" > ")[0])
    while words[0] == "ultima":  # one that starts another one: both are read
        called = next(found for found in ALL if words[1:][: len(found.split())] == found.split())
        words = words[1 + len(called.split()) :]
        context = ALL[called].make_context(called, list(words))
        command = context.params.get("command")
        words = list(command) if called == "run" else [""]
        assert called == name or name == "perf"
    assert called == name


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--ranks <int range>", "--ranks N"), ("--ranks INTEGER RANGE", "--ranks N"), ("--job <str>", "--job TEXT"),
        ("--mode <on|off>", "--mode on|off"), ("--mode [on|off]", "--mode on|off"), ("--share <float>", "--share X"),
        ("--master HOST[:PORT]", "--master HOST[:PORT]"), ("-b, --bucket <list[str]>", "-b, --bucket TEXT"),
        ("--prefix / --no-prefix", "--prefix / --no-prefix"), ("-J, --file <path>", "-J, --file PATH"),
    ],
)  # fmt: skip
def test_option__of_any_parser(theirs: str, ours: str) -> None:
    assert option_term(theirs) == ours


def test_argument__optional_ones_stand_in_brackets() -> None:
    names = {name: [argument_name(each) for each in command.params if each.param_type_name == "argument"]
             for name, command in ALL.items()}  # fmt: skip
    assert names["metrics"] == ["[write]", "[PATH]"] and names["dump"] == ["DIR"] and names["explain"] == ["[OP]"]
    assert names["bench-cluster"] == ["HOST..."] and names["set"][-1] == "KEY=VALUE..."


def test_width__a_pipe_is_never_wrapped_and_a_terminal_as_it_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(["word"] * 1000)
    assert width.wrapped(text) == [text] and width.cut(text) == text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    lines = width.wrapped(text, rest="  ", first="- ")
    assert all(len(line) <= 100 for line in lines) and len(lines) > 50
    assert " ".join(line[2:] for line in lines) == text and lines[0][:2] == "- " and lines[1][:2] == "  "
    assert width.cut(text) == f"{text[:98]}.."
    assert width.wrapped("x" * 300) == ["x" * 300], "no address or path is broken"
    monkeypatch.setenv("COLUMNS", "5")
    assert width.columns() == width.NARROWEST


@pytest.mark.parametrize(
    ("typed", "fits"), [("ultima st", ["status"]), ("ultima status --s", ["--socket"]), ("ultima ca is", ["issue"])]
)
def test_tab__finds_words_without_the_library_that_checks_values(typed: str, fits: list[str]) -> None:
    """It takes as long to load as all the rest. Breaks where a command's class is not one of help.py."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('loaded', 'pydantic' in sys.modules))\n"
        "sys.argv = ['ultima']\n"
        "from ultima.cli.entry import main\n"
        "main()\n"
    )
    asked = {"_ULTIMA_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [*fits, "loaded", "False"], done
