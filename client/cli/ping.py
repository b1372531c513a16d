# SPDX-License-Identifier: Apache-2.0
"""`ultima ping HOST`: the way to another daemon without a job: its ports, round trip, loss, MTU, clock and version."""

from __future__ import annotations

import ipaddress
import socket as sockets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named
from ultima.cli.doctor import report, to_dict

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2

FAILURE = 3


def ping(
    host: Annotated[
        str,
        typer.Argument(
            help="ADDRESS, NAME or node of another daemon's host, with :PORT if it is another one than here."
        ),
    ],
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    """Exit status 1 if something was found that must be mended."""
    from ultima.admin.calls import get_status
    from ultima.admin.operate import ping as ask

    path = socket_named(socket)
    answer = ask(path, place_of(host, get_status(path).jobs))
    well = all(check.verdict != FAILURE for check in answer.checks)
    if as_json:
        print_json({"well": well, **facts(answer)})
    else:
        for line in lines(answer):
            say(line)
    if not well:
        raise typer.Exit(1)


def place_of(host: str, jobs: Iterable[admin_pb2.JobStatus]) -> str:
    """What a user calls a host, as "address:port" or "address": a node of a job here, else an address, else a name.
    Raises InvalidArgument."""
    from ultima.base.errors import InvalidArgument

    for job in jobs:
        for row in job.hosts:
            if row.host.node == host and row.host.address:
                return _joined(row.host.address, row.host.grpc_port)
    name, port = _split(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        try:
            found = sockets.getaddrinfo(name, None, type=sockets.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidArgument("HOST", host, f"an address, a host's name or a node of a job here ({why})") from None
        name = str(found[0][4][0])
    return _joined(name, int(port)) if port else name


def _split(host: str) -> tuple[str, str]:
    """Address or name, and the port if there is one: "10.0.0.2:29520", "[fd00::2]:29520", "n2", "fd00::2"."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    if host.count(":") == 1:
        name, _, port = host.partition(":")
        return (name, port) if port.isdecimal() else (host, "")
    return host, ""


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def facts(answer: admin_pb2.PingResponse) -> dict[str, Any]:
    """In JSON's types; null is what was not measured."""
    there, here, trips = answer.sent_there_count, answer.sent_here_count, answer.round_trips_count
    return {
        "address": answer.address,
        "port": answer.grpc_port,
        "node": answer.node,
        "version": answer.version or None,
        "round_trips": trips,
        "rtt_min_us": answer.rtt_min_us if trips else None,
        "rtt_median_us": answer.rtt_median_us if trips else None,
        "rtt_max_us": answer.rtt_max_us if trips else None,
        "clock_ahead_us": answer.clock_ahead_us if trips else None,
        "clock_error_us": answer.clock_error_us if trips else None,
        "datagrams_there": {"sent": there, "arrived": answer.came_there_count} if there else None,
        "datagrams_here": {"sent": here, "arrived": answer.came_here_count} if here else None,
        "packet_bytes": answer.packet_bytes or None,
        "checks": [to_dict(check) for check in answer.checks],
    }


def lines(answer: admin_pb2.PingResponse) -> Iterator[str]:
    """For people: the figures, a line each, and then what is wrong."""
    where = _joined(answer.address, answer.grpc_port)
    if not answer.version:
        yield f"{where}: no answer"
    else:
        yield f"{where} is {f'node {answer.node}, ' if answer.node else ''}ultimad {answer.version}"
    if answer.round_trips_count:
        trips = (answer.rtt_min_us, answer.rtt_median_us, answer.rtt_max_us)
        told = " / ".join(f"{trip / 1e3:.2f}" for trip in trips)
        yield f"  round trip  {told} ms (min / median / max of {answer.round_trips_count}, over TCP)"
    if answer.sent_there_count:
        there = _arrived(answer.sent_there_count, answer.came_there_count)
        here = _arrived(answer.sent_here_count, answer.came_here_count)
        yield f"  loss        {there} there, {here} here"
    if answer.packet_bytes:
        yield f"  MTU         IP packets of {answer.packet_bytes} B pass both ways"
    if answer.round_trips_count:
        way = "ahead" if answer.clock_ahead_us >= 0 else "behind"
        error = answer.clock_error_us / 1e3
        yield f"  clock       {abs(answer.clock_ahead_us) / 1e3:.2f} ms {way}, give or take {error:.2f} ms"
    yield from report(list(answer.checks), verbose=False)


def _arrived(sent: int, came: int) -> str:
    return f"{100 * (sent - came) / sent:.1f} % of {sent}"
