# SPDX-License-Identifier: Apache-2.0
"""`ultima doctor`: what is wrong with this host, its jobs, and the way to its peers, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named
from ultima.cli.width import wrapped
from ultima.v1 import installed

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2

WORDS = {1: "ok", 2: "warning", 3: "FAILURE", 4: "unknown"}


def doctor(
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS[:PORT]", help="Also try to reach this daemon; may be given several times."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the checks that passed, too.")] = False,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    """Exit status 1 if something was found that must be mended."""
    from ultima.admin.calls import examine, get_status

    path = socket_named(socket)
    checks = [*client_checks(path, get_status(path).version), *examine(path, peer or [])]
    failed = any(check.verdict == 3 for check in checks)
    if as_json:
        print_json({"well": not failed, "checks": [to_dict(check) for check in checks]})
    else:
        for line in report(checks, verbose):
            say(line)
    if failed:
        raise typer.Exit(1)


def client_checks(path: str, version: str) -> list[admin_pb2.Check]:
    """What only this side can tell: whether this user may attach, and whether the daemon is of this release."""
    from ultima.base.errors import UltimaError
    from ultima.session.caller import proof
    from ultima.v1.admin_pb2 import Check

    ok, warning, failure = Check.VERDICT_OK, Check.VERDICT_WARNING, Check.VERDICT_FAILURE
    rows = []
    try:
        proof(path, 5.0)
        rows.append(Check(name="group", verdict=ok, finding="this user may attach"))
    except UltimaError as error:
        finding = f"uid {os.geteuid()} may not attach: {error}"
        remedy = "put the user into the group that allow_group names, or its uid into allow_uids"
        rows.append(Check(name="group", verdict=failure, finding=finding, remedy=remedy))
    own = installed.version()
    if own == version:
        rows.append(Check(name="versions", verdict=ok, finding=f"daemon and client are {own}"))
    else:
        finding = f"the daemon is {version}, this client {own}"
        rows.append(Check(name="versions", verdict=warning, finding=finding, remedy="restart the daemon"))
    return rows + name_checks()


def name_checks() -> list[admin_pb2.Check]:
    """Whether programs on this host that import `ultima`, in this folder say, get another package."""
    from ultima.base.foreign import hidden_by, intruder
    from ultima.v1.admin_pb2 import Check

    warning, clashes = Check.VERDICT_WARNING, filter(None, (intruder(), hidden_by([Path.cwd()])))
    rows = [Check(name="name", verdict=warning, finding=clash.finding, remedy=clash.remedy) for clash in clashes]
    return rows or [Check(name="name", verdict=Check.VERDICT_OK, finding="nothing else here is called ultima")]


def to_dict(check: admin_pb2.Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "subject": check.subject,
        "verdict": WORDS.get(check.verdict, "unknown").lower(),
        "finding": check.finding,
        "remedy": check.remedy,
    }


def report(checks: list[admin_pb2.Check], verbose: bool) -> list[str]:
    """Lines for people: what is wrong first, each with its remedy; what is well only as a number, unless |verbose|."""
    order = {3: 0, 2: 1, 4: 2, 1: 3}
    lines: list[str] = []
    for check in sorted(checks, key=lambda each: order.get(each.verdict, 2)):
        if check.verdict == 1 and not verbose:
            continue
        subject = f" ({check.subject})" if check.subject else ""
        lines += wrapped(f"{WORDS.get(check.verdict, 'unknown')}: {check.name}{subject}: {check.finding}", "  ")
        if check.remedy:
            lines += wrapped(f"  do: {check.remedy}", "      ")
    counts = [(word, sum(check.verdict == number for check in checks)) for number, word in WORDS.items()]
    lines.append(", ".join(f"{count} {word.lower()}" for word, count in counts if count or word == "ok"))
    return lines
