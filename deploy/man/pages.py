# SPDX-License-Identifier: Apache-2.0
"""Writes the manual pages, in mdoc(7), from what the programs say of themselves.

    python deploy/man/pages.py FOLDER      ultima.1, ultima-VERB.1 for each verb, ultimad.8 and ultimad.toml.5

The verbs' pages come from the table of the command line, ultimad's from its parser, and that of the configuration file
from the comments of deploy/ultimad.toml: there is no text of its own that could grow old. Errors of mdoc are found by
`mandoc -Tlint` in tests/test_man.py.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from ultima.cli.help import GROUPS, in_group, records
from ultima.cli.help import usage as usage_of
from ultima.cli.main import build
from ultima.daemon.process.main import parser as daemon_parser

ROOT = Path(__file__).resolve().parents[2]
EXITS = (
    ("0", "It is done."),
    ("1", "It failed; one sentence on standard error says why."),
    ("2", "It was asked wrongly: a job, path, host, time or format that cannot be."),
    ("3", "No daemon answers."),
    ("130", "It was interrupted."),
)
DAEMON_EXITS = (
    ("0", "It was told to stop, and did."),
    ("1", "It could not start on this host now: an address, a port or a folder is not to be had."),
    ("2", "Its configuration is wrong; to try again does not help."),
)
ENVIRONMENT = (("ULTIMA_SOCKET", "The daemon's gRPC socket, where --socket does not name it."),)


def date() -> str:
    """Of the last change, as mdoc wants it: SOURCE_DATE_EPOCH, else that of the last commit, else today."""
    named = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not named:
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        named = found or str(int(datetime.datetime.now().timestamp()))
    day = datetime.datetime.fromtimestamp(int(named), datetime.UTC)
    return f"{day:%B} {day.day}, {day.year}"


def text(plain: str) -> str:
    """A paragraph's text, each sentence on a line, with what roff would take for itself made harmless."""
    safe = " ".join(plain.split()).replace("\\", "\\e").replace("`", "\\(ga")
    lines = re.split(r"(?<=[.:;?]) (?=[A-Z])", safe)
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


def words(plain: str) -> str:
    """The same as arguments of a macro: no word is taken for a macro's name, and options keep their hyphens."""
    safe = " ".join(plain.split()).replace("\\", "\\e").replace("`", "\\(ga").replace("-", "\\-").replace('"', "\\(dq")
    return " ".join(f"\\&{word}" for word in safe.split(" "))


def head(name: str, section: int, summary: str) -> Iterator[str]:
    yield f".Dd {date()}\n.Dt {name.upper()} {section}\n.Os Ultima\n.Sh NAME\n.Nm {name}"
    yield f".Nd {text(summary[:1].lower() + summary[1:].rstrip('.'))}"


def listed(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A section of terms and what they mean; nothing where there are none."""
    rows = list(rows)
    if not rows:
        return
    yield f".Sh {title}\n.Bl -tag -width Ds"
    for term, meaning in rows:
        yield f".It {words(term)}\n{text(meaning)}"
    yield ".El"


def see_also(*pages: tuple[str, int]) -> str:
    ordered = sorted(pages, key=lambda page: (page[1], page[0]))
    return ".Sh SEE ALSO\n" + " ,\n".join(f".Xr {name} {section}" for name, section in ordered)


def page_of_verb(command: Any, context: Any) -> str:
    """The page of a verb, or of a group of them."""
    name = context.command_path.replace(" ", "-")
    lines = list(head(name, 1, command.help))
    lines.append(f".Sh SYNOPSIS\n.Sy {words(context.command_path)}\n.Ar {words(usage_of(command))}")
    lines.append(f".Sh DESCRIPTION\n{text(command.help)}")
    for kind, title in (("argument", "ARGUMENTS"), ("option", "OPTIONS")):
        lines.extend(listed(title, records(command, context, kind)))
    for verb, below in getattr(command, "commands", {}).items():
        inner = type(context)(below, info_name=verb, parent=context)
        told = words(usage_of(below))
        lines.append(f".Sh {inner.command_path.upper()}\n.Sy {words(inner.command_path)}\n.Ar {told}\n.Pp")
        lines.append(f"{text(below.help)}\n.Bl -tag -width Ds")
        for term, meaning in [record for kind in ("argument", "option") for record in records(below, inner, kind)]:
            lines.append(f".It {words(term)}\n{text(meaning)}")
        lines.append(f".El\n.Pp\n.Dl {words(below.epilog)}")
    lines.extend(listed("ENVIRONMENT", ENVIRONMENT if any(p.name == "socket" for p in command.params) else ()))
    lines.extend(listed("EXIT STATUS", EXITS))
    if command.epilog:
        lines.append(f".Sh EXAMPLES\n.Dl {words(command.epilog)}")
    lines.append(see_also(("ultima", 1), ("ultimad", 8)))
    return "\n".join(lines) + "\n"


def page_of_all(group: Any, context: Any) -> str:
    """ultima(1): what there is."""
    lines = list(head("ultima", 1, group.help))
    lines.append(f".Sh SYNOPSIS\n.Nm\n.Ar {words('COMMAND [OPTIONS] [ARGS]...')}\n.Sh DESCRIPTION\n{text(group.help)}")
    lines.append(text("Each command has a page of its own: ultima-COMMAND(1)."))
    lines.append(".Sh COMMANDS")
    for part in GROUPS:
        rows = [(name, verb.help) for name, verb in group.commands.items() if in_group(verb) == part]
        lines.append(f".Ss {words(part)}\n.Bl -tag -width Ds")
        lines.extend(f".It {words(name)}\n{text(told)}" for name, told in rows)
        lines.append(".El")
    lines.extend(listed("OPTIONS", (p.get_help_record(context) for p in group.get_params(context))))
    lines.extend(listed("ENVIRONMENT", ENVIRONMENT))
    lines.extend(listed("EXIT STATUS", EXITS))
    lines.append(see_also(*((f"ultima-{name}", 1) for name in group.commands), ("ultimad.toml", 5), ("ultimad", 8)))
    return "\n".join(lines) + "\n"


def page_of_daemon() -> str:
    """ultimad(8)."""
    parser = daemon_parser()
    lines = list(head("ultimad", 8, "Ultima's daemon, one on each host"))
    lines.append(f".Sh SYNOPSIS\n.Nm\n.Ar {words('[OPTIONS]')}\n.Sh DESCRIPTION")
    lines.append(text("ultimad averages the gradients of the trainers on its host with those of other hosts."))
    lines.append(
        text("It is started by systemd as ultimad.service; SIGHUP makes it read its log level and limits anew.")
    )
    rows = ((f"{', '.join(a.option_strings)} {a.metavar or ''}".strip(), str(a.help)) for a in parser._actions)
    lines.extend(listed("OPTIONS", rows))
    files = (("/etc/ultima/ultimad.toml", "Its options: ultimad.toml(5)."), ("/run/ultima", "Its sockets."))
    lines.extend(listed("FILES", (*files, ("/var/lib/ultima", "Its history."))))
    lines.extend(listed("EXIT STATUS", DAEMON_EXITS))
    lines.append(see_also(("ultima", 1), ("ultimad.toml", 5)))
    return "\n".join(lines) + "\n"


def page_of_configuration(file: Path) -> str:
    """ultimad.toml(5), from the commented file that is shipped."""
    lines = list(head("ultimad.toml", 5, "Options of ultimad"))
    lines.append(".Sh DESCRIPTION")
    for block in re.split(r"\n\s*\n", file.read_text()):
        said: list[str] = []
        keys: list[str] = []
        for line in block.splitlines():
            if line.startswith("# SPDX") or line == "#":
                continue
            if line.startswith("#:") or not line.startswith("#"):
                keys.append(line.removeprefix("#:").strip())
                continue
            if keys:  # what follows speaks of other keys
                lines.extend(_keys(said, keys))
                said, keys = [], []
            said.append(line.removeprefix("#").strip())
        lines.extend(_keys(said, keys))
    lines.append(see_also(("ultimad", 8)))
    return re.sub(r"(?m)^(\.S[hs] .*)\n\.Pp$", r"\1", "\n".join(lines) + "\n")


def _keys(said: list[str], keys: list[str]) -> Iterator[str]:
    """A paragraph on some keys, under them; a key in brackets begins a table."""
    for key in keys:
        if key.startswith("["):
            yield f".Ss {words(key)}"
    named = [key for key in keys if not key.startswith("[")]
    if named:
        yield ".Pp"
        yield from (f".Dl {words(key)}" for key in named)
    if said:
        yield f".Pp\n{text(' '.join(said))}"


def pages() -> dict[str, str]:
    """All pages, by name of file."""
    group: Any = typer.main.get_command(build())
    context = group.make_context("ultima", [], resilient_parsing=True)
    ret = {"ultima.1": page_of_all(group, context), "ultimad.8": page_of_daemon()}
    for name, command in group.commands.items():
        ret[f"ultima-{name}.1"] = page_of_verb(command, type(context)(command, info_name=name, parent=context))
    ret["ultimad.toml.5"] = page_of_configuration(ROOT / "deploy/ultimad.toml")
    return ret


def main() -> None:
    """Writes them."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page)


if __name__ == "__main__":
    main()
