# SPDX-License-Identifier: Apache-2.0
"""`ultima dump`: the flight record of a job as files for other tools."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, Since, Socket, Until, formed, print_json, say, socket_named
from ultima.cli.events import between
from ultima.cli.files import write_all

if TYPE_CHECKING:
    from ultima.v1 import records_pb2

FORMATS = ("fr", "chrome", "json")


def dump(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; it is created if needed.")],
    formats: Annotated[
        str, typer.Option("--format", help="Any of fr (torchfrtrace), chrome (Perfetto), json, with commas.")
    ] = ",".join(FORMATS),
    job: Annotated[str, typer.Option(help="Name of the job; by default the one with the newest op.")] = "",
    since: Since = "",
    until: Until = "",
    all_hosts: Annotated[
        bool, typer.Option("--all-hosts", help="Include what the job's other hosts recorded.")
    ] = False,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.past import get_ops
    from ultima.admin.sound import leave_out
    from ultima.base.errors import InvalidArgument, UltimaError

    wanted = [each.strip() for each in formats.split(",")]
    if not set(wanted) <= set(FORMATS):
        raise InvalidArgument("--format", formats, f"one or more of {', '.join(FORMATS)}, with commas between them")
    since_ns, until_ns = between(since, until)
    answer = get_ops(socket_named(socket), job, since_ns, until_ns, all_hosts)
    for sentence in leave_out(answer):
        say(sentence, err=True)
    if not answer.lives:
        raise UltimaError("no op is recorded in that time")
    newest = answer.lives[0]
    lives = [life for life in answer.lives if (life.job, life.generation) == (newest.job, newest.generation)]
    written = write(folder, wanted, _one_per_host(lives))
    ops = sum(len(life.ops) for life in lives)
    if as_json:
        print_json({"job": newest.job, "ops": ops, "files": written, "unreached": list(answer.unreached)})
        return
    say(f"{ops} ops of job {newest.job} from {len(_one_per_host(lives))} of {len(newest.hosts)} hosts in {folder}:")
    for name in written:
        say(f"  {name}")
    for host in answer.unreached:
        say(f"not reached: {host}", err=True)
    if "fr" in wanted:
        rest = "" if len(_one_per_host(lives)) == len(newest.hosts) else " --allow-incomplete-ranks"
        say(f"read them with: torchfrtrace {folder} --prefix {_prefix()}{rest}")


def write(folder: Path, formats: list[str], lives: list[records_pb2.JobLife]) -> list[str]:
    """Writes the files of these formats and returns their names. Raises InvalidArgument for a folder that cannot be
    written, or where others may write."""
    from ultima.admin.flight import chrome_trace, flight_records, life_facts

    files: dict[str, Callable[[], bytes]] = {}
    if "fr" in formats:
        files |= {name: lambda content=content: pickle.dumps(content) for name, content in flight_records(lives)}  # type: ignore[misc]  # fmt: skip
    if "chrome" in formats:
        files["ultima.trace.json"] = lambda: _json(chrome_trace(lives))
    if "json" in formats:
        files["ultima.json"] = lambda: _json(formed({"lives": [life_facts(life) for life in lives]}))
    write_all(folder, files)
    return list(files)


def _one_per_host(lives: list[records_pb2.JobLife]) -> list[records_pb2.JobLife]:
    """Of a host that has come back to its job the newest life."""
    found: dict[int, Any] = {}
    for life in lives:
        found.setdefault(life.host_index, life)
    return [found[index] for index in sorted(found)]


def _prefix() -> str:
    from ultima.admin.flight import FR_PREFIX

    return FR_PREFIX


def _json(facts: Any) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()
