# SPDX-License-Identifier: Apache-2.0
"""`ultima drain`: ends the daemon so that a new one can take its place under a training."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named

LOOK_S = 0.05
ENDING_S = 10.0  # that a daemon has to end once its ops have


def drain(
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until the daemon has ended.")] = False,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin import operate
    from ultima.base.errors import TimedOut

    where = socket_named(socket)
    answer = operate.drain(where)
    began, most = time.monotonic(), answer.drain_ms / 1e3 + ENDING_S
    while not no_wait and _lives(answer.pid):
        if time.monotonic() - began > most:
            raise TimedOut(f"the daemon (pid {answer.pid}) has not ended within {most:g} s; see its log")
        time.sleep(LOOK_S)
    waited, window = time.monotonic() - began, answer.window_ms / 1e3
    if as_json:
        print_json({"pid": answer.pid, "ended": not no_wait, "waited_s": round(waited, 3), "window_s": window})
        return
    how = "is told to end" if no_wait else f"has ended after {waited:.1f} s"
    wait = f"; other hosts wait for it for {window:g} s" if window else ""
    say(f"the daemon (pid {answer.pid}) {how}{wait}")


def _lives(pid: int) -> bool:
    """Whether the process is there, and not a mere entry that its parent has not looked at."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
