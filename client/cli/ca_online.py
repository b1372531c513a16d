# SPDX-License-Identifier: Apache-2.0
"""The verbs of `ultima ca` by which hosts get certificates without copied keys, renew them, and are withdrawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ultima.base.errors import InvalidArgument, UltimaError
from ultima.cli.common import say

NODE_DAYS, DAYS_MAX = 365, 36500
PORT = 29517
TOKEN_SECONDS_MAX = 30 * 86400

Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the files.")]
Days = Annotated[int, typer.Option(min=1, max=DAYS_MAX, help="How long the certificate is valid.")]
Server = Annotated[
    str, typer.Argument(metavar="SERVER", help=f"Where `ultima ca serve` runs, with :PORT if it is not {PORT}.")
]


def token(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the host: hostname -s.")],
    valid: Annotated[str, typer.Option("--for", help="How long it may be used: 15m, 2h, up to 30 days.")] = "1h",
    folder: Dir = Path("."),
) -> None:
    from ultima.authority.authority import Authority
    from ultima.base.durations import duration_s

    seconds = duration_s(valid, "--for")
    if not 1 <= seconds <= TOKEN_SECONDS_MAX:
        raise InvalidArgument("--for", valid, "1s to 720h")
    say(Authority(folder).token(node, seconds))
    say(
        f"on the host, once, within {valid}: ultima ca enroll SERVER -    (it reads the token from its input)", err=True
    )


def serve(
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Numeric address to listen at.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port.")] = PORT,
    days: Days = NODE_DAYS,
    folder: Dir = Path("."),
) -> None:
    from ultima.authority.authority import Authority
    from ultima.authority.serve import EnrolmentServer

    with EnrolmentServer(Authority(folder), listen, port, days, _tell) as server:
        _tell(f"hosts may enrol and renew at {listen}, port {server.server_address[1]}, until this is interrupted")
        server.serve_forever()


def _tell(text: str) -> None:
    say(text)
    sys.stdout.flush()


def enroll(
    server: Server,
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="What `ultima ca token` printed; - reads it from input.")
    ],
    folder: Dir = Path("/etc/ultima"),
) -> None:
    from ultima.authority import enrol

    address, port = _place(server)
    text = sys.stdin.readline().strip() if token == "-" else token.strip()
    found = enrol.enroll(address, port, text, folder)
    files = {
        "certificate": folder / f"{found.node}.crt",
        "key": folder / f"{found.node}.key",
        "authority": folder / "ca.crt",
        "withdrawn": folder / "withdrawn.json",
    }
    say(f"node {found.node!r} of {found.cluster!r}, valid until {found.certificate.not_valid_after_utc:%Y-%m-%d}")
    say("in ultimad.toml:\n\n[tls]")
    for name, path in files.items():
        say(f'{name} = "{path.absolute()}"')


def renew(
    server: Server,
    node: Annotated[str, typer.Option(help="Which node's certificate, if the folder has several.")] = "",
    now: Annotated[bool, typer.Option("--now", help="Also if more than a third of its life is left.")] = False,
    folder: Dir = Path("/etc/ultima"),
) -> None:
    """Made for a timer: it does nothing while there is time, but fetches the list of withdrawn nodes."""
    from ultima.authority import enrol

    address, port = _place(server)
    own = [
        path.stem for path in sorted(folder.glob("*.key")) if path.with_suffix(".crt").exists() and path.stem != "ca"
    ]
    if node and node not in own:
        raise InvalidArgument("--node", node, f"one of {', '.join(own) or 'none'}, which {folder} has")
    if not node and len(own) != 1:
        raise UltimaError(
            f"{folder}: has certificates with keys of {', '.join(own) or 'no node'}: name one with --node"
        )
    found = enrol.renew(address, port, folder, node or own[0], now)
    if found is None:
        say(f"node {node or own[0]!r}: more than a third of its life is left; the list of withdrawn nodes is current")
    else:
        say(f"node {found.node!r}: valid until {found.certificate.not_valid_after_utc:%Y-%m-%d}; daemons take it over")


def withdraw(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Nodes that daemons are to refuse.")],
    undo: Annotated[bool, typer.Option("--undo", help="Take them off the list.")] = False,
    folder: Dir = Path("."),
) -> None:
    from ultima.authority.authority import WITHDRAWN, Authority

    found = Authority(folder).withdraw(nodes, undo)
    say(f"{folder / WITHDRAWN}: list {found.number}, withdrawn: {', '.join(sorted(found.nodes)) or 'none'}")
    say("daemons honour it once it is on their hosts (tls.withdrawn): copy it, or let `ultima ca renew` fetch it")


def _place(server: str) -> tuple[str, int]:
    """Host and port of "10.0.0.9", "ca.example:7", "[fd00::9]:7" or a bare IPv6 address. Raises InvalidArgument."""
    name, port = server, ""
    if server.startswith("["):
        name, _, port = server[1:].partition("]")
        port = port.removeprefix(":")
    elif server.count(":") == 1:
        name, _, port = server.partition(":")
    if not name or (port and not (port.isdecimal() and 1 <= int(port) <= 65535)):
        raise InvalidArgument("SERVER", server, "a host's name or address, and :PORT if it is another one")
    return name, int(port or PORT)


VERBS = (
    ("token", token, "Make a one-time token with which one host enrols.", "ultima ca token n1 --for 2h"),
    ("serve", serve, "Let hosts with tokens enrol, and enrolled ones renew.", "ultima ca serve --listen 10.0.0.9"),
    ("enroll", enroll, "Get this host its certificate, by a token.", "ultima ca enroll 10.0.0.9 -"),
    ("renew", renew, "Renew this host's certificate before it ends.", "ultima ca renew 10.0.0.9"),
    ("withdraw", withdraw, "Put nodes on the list of those that daemons refuse.", "ultima ca withdraw n2"),
)
