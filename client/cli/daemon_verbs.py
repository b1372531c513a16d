# SPDX-License-Identifier: Apache-2.0
"""`ultima log-level`, `ultima config show` and `ultima wait --healthy`: short verbs about the daemon itself."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named

WAIT_S = 0.25  # between two questions


def log_level(
    level: Annotated[str, typer.Argument(help="debug, info, warning or error.")],
    for_: Annotated[
        str, typer.Option("--for", help="For this long, such as 10m; then the configured level returns.")
    ] = "",
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.operate import set_log_level
    from ultima.base.durations import duration_s
    from ultima.base.errors import InvalidArgument

    allowed = ("debug", "info", "warning", "error")
    if level.lower() not in allowed:
        raise InvalidArgument("LEVEL", level, ", ".join(allowed))
    seconds = duration_s(for_, "--for") if for_ else 0.0
    before = set_log_level(socket_named(socket), level.lower(), seconds)
    if as_json:
        print_json({"level": level.lower(), "before": before, "for_s": seconds or None})
    else:
        say(f"log level is {level.lower()}{f' for {for_}' if for_ else ''}; it was {before}")


def config(
    action: Annotated[str, typer.Argument(metavar="show", help="What to do: show.")] = "show",
    origin: Annotated[bool, typer.Option("--origin", help="Also where each value comes from.")] = False,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.operate import get_config
    from ultima.base.errors import InvalidArgument

    if action != "show":
        raise InvalidArgument("ACTION", action, "show")
    rows = get_config(socket_named(socket))
    if as_json:
        values = {row.key: {"value": json.loads(row.value), "origin": row.origin} for row in rows}
        print_json({"config": values})
        return
    for row in rows:
        say(f"{row.key} = {row.value}" + (f"  # {row.origin}" if origin else ""))


def wait(
    healthy: Annotated[
        bool, typer.Option("--healthy", help="Wait until the daemon answers and its ops make progress; the default.")
    ] = True,
    timeout: Annotated[
        str, typer.Option(help="Longest wait; after it the exit status is 1, or 3 if no daemon answers.")
    ] = "60s",
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin import operate
    from ultima.base.durations import duration_s
    from ultima.base.errors import DaemonUnavailable, TimedOut

    where, seconds = socket_named(socket), duration_s(timeout, "--timeout")
    began = time.monotonic()
    while True:
        try:
            if operate.healthy(where):
                break
            trouble: DaemonUnavailable | TimedOut = TimedOut(f"the daemon is not healthy within {timeout}")
        except DaemonUnavailable as error:
            trouble = error
        if time.monotonic() - began + WAIT_S > seconds:
            raise trouble
        time.sleep(WAIT_S)
    waited = time.monotonic() - began
    if as_json:
        print_json({"healthy": True, "waited_s": round(waited, 3)})
    else:
        say(f"healthy after {waited:.1f} s")
