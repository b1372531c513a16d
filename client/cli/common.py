# SPDX-License-Identifier: Apache-2.0
"""What all verbs share: the options --json and --socket, and the one form in which they print JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ultima.v1.words import printable

SCHEMA = 2
"""Of what `--json` prints. Keys may be added; one that is renamed, removed or changes its meaning counts this up."""

MOMENTS = {"at", "authority_not_after", "certificate_not_after", "ended", "not_after", "oldest", "oldest_deadline"}
MOMENTS |= {"oldest_open", "start", "submitted", "until"}
"""Names of moments; every other number with a unit of time is a duration."""
NANOSECONDS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
SHARES = {"percent": 1e2, "ppm": 1e6}

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
    """Prints |facts| as one object of several lines."""
    say(json.dumps(formed(facts), indent=2))


def formed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` prints: |facts| in the units of JSON, with the number of its form in front."""
    return {"schema": SCHEMA, **in_units(facts)}


def in_units(facts: Any) -> Any:
    """|facts| with one unit for each kind of quantity, which the end of a name says: durations in seconds (_s), moments
    in nanoseconds since 1970 (_ns), parts of a whole from 0 to 1 (_share)."""
    if isinstance(facts, Mapping):
        return dict(_in_unit(key, value) for key, value in facts.items())
    return [in_units(each) for each in facts] if isinstance(facts, list | tuple) else facts


def _in_unit(key: str, value: Any) -> tuple[str, Any]:
    stem, _, unit = key.rpartition("_")
    numbers = value if isinstance(value, list | tuple) else [value]
    if not stem or not all(each is None or type(each) in (int, float) for each in numbers):
        return key, in_units(value)
    if unit in SHARES:
        to, factor = "share", 1 / SHARES[unit]
    elif unit not in NANOSECONDS:
        return key, in_units(value)
    elif stem in MOMENTS:
        to, factor = "ns", NANOSECONDS[unit]
    else:
        to, factor = "s", NANOSECONDS[unit] / 1e9
    if to == unit:
        return key, value
    # Of a quotient of whole numbers nothing is left but what it is: 0.0213, not 0.021299999999999998.
    scaled = [
        None if each is None else int(each * factor) if to == "ns" else round(each * factor, 12) for each in numbers
    ]
    return f"{stem}_{to}", scaled if numbers is value else scaled[0]
