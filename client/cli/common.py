# SPDX-License-Identifier: Apache-2.0
"""What all verbs share: the options --json and --socket, and the one form in which they print JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ultima.v1.words import printable

SCHEMA = 1
"""Of what `--json` prints. Keys may be added; one that is renamed, removed or changes its meaning counts this up."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys and a schema number.")]
Since = Annotated[str, typer.Option(help="A time as 03:12, 'yesterday 03:12', 2026-11-22, or 2h for two hours ago.")]
Until = Annotated[str, typer.Option(help="End of the time span, in the same form.")]
OfJob = Annotated[str, typer.Option(help="Only this job.")]
Socket = Annotated[
    str | None, typer.Option(help="The daemon's gRPC socket; ULTIMA_SOCKET, else /run/ultima/ultimad.sock.")
]


def socket_named(option: str | None) -> str:
    """The path of the daemon's socket, by the option, the environment, or the default. Raises InvalidArgument."""
    from ultima.settings.config import DEFAULT_SOCKET, socket_path

    named = option or os.environ.get("ULTIMA_SOCKET") or DEFAULT_SOCKET
    return socket_path(named, "--socket" if option else "ULTIMA_SOCKET")


def say(text: str = "", err: bool = False, nl: bool = True) -> None:
    """Prints a text for people. What it repeats of daemons, jobs and files cannot move the cursor or colour the screen:
    only line ends and tabs stay of what is not printable. All verbs print with this."""
    typer.echo(printable(text, len(text), keep="\n\t"), err=err, nl=nl)


def print_json(facts: Mapping[str, Any]) -> None:
    """Prints |facts| as one object, with the number of its form in front."""
    say(json.dumps({"schema": SCHEMA, **facts}, indent=2))
