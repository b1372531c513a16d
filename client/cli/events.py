# SPDX-License-Identifier: Apache-2.0
"""`ultima events`: what has happened on this host, and with -f what happens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, OfJob, Since, Socket, Until, formed, print_json, say, socket_named
from ultima.cli.width import wrapped

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events.")] = False,
    since: Since = "",
    until: Until = "",
    job: OfJob = "",
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.past import get_events
    from ultima.base.errors import InvalidArgument

    if follow and until:
        raise InvalidArgument("--until", until, "not together with --follow")
    since_ns, until_ns = between(since, until)
    found = get_events(socket_named(socket), job, since_ns, until_ns, follow)
    if follow:
        for event in found:
            say(json.dumps(formed(facts(event))) if as_json else line(event))
        return
    rows = list(found)
    if as_json:
        print_json({"events": [facts(event) for event in rows]})
        return
    for event in rows:
        say(line(event))
    if not rows:
        say("no events" + (f" of job {job}" if job else "") + (" in that time" if since or until else ""))


def between(since: str, until: str) -> tuple[int, int]:
    """Both ends in nanoseconds since 1970, 0 where nothing was said. Raises InvalidArgument."""
    from ultima.base.errors import InvalidArgument
    from ultima.base.instants import instant

    since_ns = instant(since, "--since").start_ns if since else 0
    until_ns = 0
    if until:
        last = instant(until, "--until")
        until_ns = last.start_ns + last.length_ns - 1
        if until_ns < since_ns:
            raise InvalidArgument("--until", until, f"a time after --since, which is {since}")
    return since_ns, until_ns


def facts(event: admin_pb2.HostEvent) -> dict[str, Any]:
    """For JSON."""
    rank = event.rank if event.HasField("rank") else None
    about = {"job": event.job, "rank": rank, "host": event.host}
    return {"at_ns": event.at_ns, "kind": event.kind, **about, "level": event.level, "text": event.text}


def line(event: admin_pb2.HostEvent) -> str:
    """For people: time, kind, and what happened, with a mark where somebody should look."""
    from ultima.base.instants import clock_text

    mark = {"warning": "! ", "error": "!! "}.get(event.level, "")
    text = f"{clock_text(event.at_ns)} {mark}{event.text} [{event.kind}]"
    return "\n".join(wrapped(text, rest=" " * 9))
