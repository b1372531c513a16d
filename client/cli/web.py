# SPDX-License-Identifier: Apache-2.0
"""`ultima web`: where the status page is, with a token that opens it once."""

from __future__ import annotations

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named


def web(as_json: AsJson = False, socket: Socket = None) -> None:
    from ultima.admin.operate import open_page

    address = open_page(socket_named(socket))
    if as_json:
        print_json({"address": address})
        return
    say(address)
    for line in hints(address):
        say(line, err=True)


def hints(address: str) -> list[str]:
    """What to do with it: to people, beside the address that a script may read."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        return [f"From your desk: ssh -L 29518:{path} HOST, and open http://localhost:29518/"]
    place = address.removeprefix("http://").partition("/")[0]
    return [
        "Opens once, within a minute; the page then stays for half a day.",
        f"From your desk: ssh -L {place.rpartition(':')[2]}:{place} HOST first.",
    ]
