# SPDX-License-Identifier: Apache-2.0
"""`ultima simulate`: how long ops would take on a cluster that is described in a few figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ultima.cli.common import AsJson, print_json, say
from ultima.cli.width import wrapped

if TYPE_CHECKING:
    from ultima.admin.simulator import Predicted

HOSTS_MAX, OPS_MAX = 64, 2800
BUCKET_MAX, QUEUE_MIN, QUEUE_MAX = 64 << 20, 2000, 64 << 20
RATES = {"mbit": 1.0, "gbit": 1000.0}
RATE_MAX_MBIT = 100_000
LOST_ALL = 1_000_000  # parts in a million
JITTERED_PPM = 200_000  # of packets, one in five: a route that often changes, or a radio link
MODES = {"bounded": 1, "best_effort": 2, "reliable": 3}
HEAD = (
    f"{'BUCKET':>10} {'OPS':>4} {'P50 ms':>9} {'P99 ms':>9} {'WIRE ms':>9} {'P50/GOAL':>8} {'TCP ms':>9} "
    f"{'WHOLE':>5} {'MISSING':>8}"
)


def simulate(
    hosts: Annotated[int, typer.Option(help="Hosts of the job, one rank each, 2 to 64.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of each host's link: 1Gbit, 250Mbit.")] = "1Gbit",
    delay: Annotated[str, typer.Option(help="Delay from host to host, one way: 20us, 25ms, up to 1s.")] = "25us",
    jitter: Annotated[
        str | None, typer.Option(help="One packet in five takes longer by up to this, and is overtaken: 10ms.")
    ] = None,
    buffer: Annotated[str, typer.Option(help="Buffer of the switch towards one host: 1M, 200K.")] = "1M",
    loss: Annotated[str, typer.Option(help="Share of packets that are lost, independently: 0.1%.")] = "0%",
    bucket: Annotated[list[str] | None, typer.Option(help="Bytes of an op: 25M. May be given again.")] = None,
    slow_host: Annotated[int, typer.Option(help="The link of one host is so many times slower, 1 to 1000.")] = 1,
    host_cap: Annotated[
        str | None, typer.Option(help="Most that each host sends in all, as engine.rate_bytes_per_s: 200Mbit.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Equal jobs at the same time, 1 or 2.")] = 1,
    mode: Annotated[str, typer.Option(help="bounded, best_effort or reliable.")] = "bounded",
    deadline: Annotated[str, typer.Option(help="Of an op.")] = "60s",
    ops: Annotated[
        int, typer.Option(help="Ops of each bucket size, rounded up to runs of 28; more show the tail better.")
    ] = 56,
    wire: Annotated[
        str | None, typer.Option(help="Buckets of float32 that travel as int16, int8 or int4: docs/quantised.md.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random losses.")] = 1,
    as_json: AsJson = False,
) -> None:
    from ultima.admin.simulator import OPS_EACH, predict
    from ultima.base.durations import duration_s
    from ultima.settings.config import size_bytes

    check("--hosts", hosts, 2, HOSTS_MAX)
    check("--slow-host", slow_host, 1, 1000)
    check("--jobs", jobs, 1, 2)
    check("--ops", ops, 1, OPS_MAX)
    check("--seed", seed, 0, 2**32)
    knobs = {
        "hosts": hosts,
        "rate_mbit": rate_mbit(rate),
        "delay_us": round(at_most(duration_s(delay, "--delay"), 1.0, "--delay", delay, "up to 1 s") * 1e6),
        "jitter_ppm": JITTERED_PPM if jitter else 0,
        "jitter_us": jitter_us(jitter),
        "queue_bytes": size_bytes(buffer, "--buffer", QUEUE_MIN, QUEUE_MAX),
        "loss_ppm": loss_ppm(loss),
        "slow_part": slow_host,
        "host_cap_mbit": rate_mbit(host_cap, "--host-cap") if host_cap is not None else 0,
        "jobs": jobs,
        "mode": mode_named(mode),
        "deadline_us": round(duration_s(deadline, "--deadline") * 1e6),
    }
    sizes = [size_bytes(text, "--bucket", 4, BUCKET_MAX) for text in bucket or ["1M", "25M"]]
    given = {size: travelling(size, wire, hosts) for size in sizes}
    rows = {size: predict(knobs | {"bytes": given[size]}, seed, -(-ops // OPS_EACH)) for size in sizes}
    if as_json:
        print_json(
            {
                "network": knobs,
                "wire": wire or "float32",
                "seed": seed,
                "rows": [facts(size, row, beside(given[size], knobs, row)) for size, row in rows.items()],
            }
        )
        return
    slow = f", one {slow_host} times slower" if slow_host > 1 else ""
    few = f"; buckets travel as {wire}, the time to code them not counted" if wire else ""
    late = f", one packet in five up to {jitter} later" if jitter else ""
    capped = f", each sends {host_cap} at most" if host_cap else ""
    network = f"{hosts} hosts, {rate}, {delay} one way{late}, {buffer} of switch buffer, {loss} lost{slow}{capped}"
    trip_ms = next(iter(rows.values())).round_trip_us / 1e3
    busiest = "link or cap" if host_cap else "link"
    goal = f"GOAL is WIRE, what the busiest {busiest} needs for the bytes, and two round trips of {trip_ms:.3f} ms"
    for text in (f"{network}; virtual time{few}", goal):
        for part in wrapped(text, "  "):
            say(part)
    say(HEAD)
    tcp = {size: beside(given[size], knobs, row) for size, row in rows.items()}
    for size, row in rows.items():
        say(line(size, row, tcp[size]))
    for part in wrapped(tcp_text(next(iter(tcp.values())).flow_mbit, knobs["loss_ppm"]), "  "):
        say(part)


def travelling(size: int, wire: str | None, hosts: int) -> int:
    """The bytes of a dense op that has as many packets as one of |size| bytes that travel as |wire|. Raises
    InvalidArgument."""
    from ultima.base.errors import InvalidArgument
    from ultima.quant import FORMS, encoded_bytes

    if wire is None:
        return size
    if wire not in FORMS:
        raise InvalidArgument("--wire", wire, ", ".join(FORMS))
    return -(-encoded_bytes(size // 4, wire, hosts=hosts) // 4) * 4


class Tcp(NamedTuple):
    """What TCP takes for the same bytes at least, and what one connection carries at most."""

    op_us: float
    flow_mbit: float


def beside(size: int, knobs: Mapping[str, int], row: Predicted) -> Tcp:
    """A ring over cubic on the same network. Jitter is left out: it can only make TCP slower."""
    from ultima.admin import tcp_model

    links = knobs["rate_mbit"] / knobs["slow_part"], knobs["host_cap_mbit"] or math.inf
    link = min(links) * 125_000 / knobs["jobs"]
    flow = tcp_model.flow_bytes_per_s(link, knobs["loss_ppm"] / LOST_ALL, row.round_trip_us / 1e6)
    return Tcp(tcp_model.ring_s(size, knobs["hosts"], flow, row.round_trip_us / 2e6) * 1e6, flow / 125_000)


def tcp_text(flow_mbit: float, loss_ppm: int) -> str:
    """How the column TCP came about."""
    why = f"{'loss' if loss_ppm else 'the link'} lets a connection carry {flow_mbit:.3g} Mbit/s at most"
    return f"TCP is the least that a ring over cubic takes (RFC 9438), without any rest: {why}"


def facts(size: int, row: Predicted, tcp: Tcp) -> dict[str, Any]:
    """One bucket for JSON."""
    return {
        "bucket_bytes": size,
        "ops": row.ops,
        "p50_us": round(row.p50_us, 1),
        "p99_us": round(row.p99_us, 1),
        "bound_us": round(row.bound_us, 1),
        "not_whole": row.not_whole,
        "missing_share": row.missing,
        "lost_share": row.lost,
        "round_trip_us": round(row.round_trip_us, 1),
        "goal_us": round(row.goal_us, 1),
        "tcp_us": round(tcp.op_us, 1),
        "tcp_flow_mbit": round(tcp.flow_mbit, 3),
    }


def line(size: int, row: Predicted, tcp: Tcp) -> str:
    """One bucket for people."""
    from ultima.base.receipt import size_text

    times = " ".join(ms(each) for each in (row.p50_us, row.p99_us, row.bound_us))
    whole = f"{100 * (row.ops - row.not_whole) / row.ops:.0f}%"
    to_goal = f"{row.p50_us / row.goal_us:8.2f}"
    missing = f"{100 * row.missing:7.3g}%"
    return f"{size_text(size):>10} {row.ops:4} {times} {to_goal} {ms(tcp.op_us)} {whole:>5} {missing}"


def ms(us: float) -> str:
    """In nine columns, however long it takes."""
    return f"{us / 1e3:9.3f}" if us < 1e8 else f"{us / 1e3:9.0f}" if us < 1e12 else f"{us / 1e3:9.2g}"


def check(flag: str, value: int, low: int, high: int) -> None:
    """Raises InvalidArgument for a number that is out of its range."""
    from ultima.base.errors import InvalidArgument

    if not low <= value <= high:
        raise InvalidArgument(flag, value, f"{low} to {high}")


def at_most(value: float, high: float, flag: str, text: str, allowed: str) -> float:
    """The value. Raises InvalidArgument if it is more."""
    from ultima.base.errors import InvalidArgument

    if value > high:
        raise InvalidArgument(flag, text, allowed)
    return value


def jitter_us(text: str | None) -> int:
    """Raises InvalidArgument."""
    from ultima.base.durations import duration_s
    from ultima.base.errors import InvalidArgument

    us = round(duration_s(text, "--jitter") * 1e6) if text is not None else 0
    if text is not None and not 1 <= us <= 1_000_000:
        raise InvalidArgument("--jitter", text, "1 us to 1 s")
    return us


def rate_mbit(text: str, flag: str = "--rate") -> int:
    """Of "10Gbit" or "250 mbit/s". Raises InvalidArgument."""
    from ultima.base.errors import InvalidArgument

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mg]bit)(?:/s)?", text.strip().lower())
    value = round(float(found[1]) * RATES[found[2]]) if found else 0
    if not 1 <= value <= RATE_MAX_MBIT:
        raise InvalidArgument(flag, text, "1Mbit to 100Gbit")
    return value


def loss_ppm(text: str) -> int:
    """Of "0.1%", in parts of a million. Raises InvalidArgument; also without the sign, for 0.1 could be ten percent."""
    from ultima.base.errors import InvalidArgument

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if found is None or float(found[1]) > 100:
        raise InvalidArgument("--loss", text, "0% to 100%, with the sign")
    return round(float(found[1]) * LOST_ALL / 100)


def mode_named(text: str) -> int:
    """Its number. Raises InvalidArgument."""
    from ultima.base.errors import InvalidArgument

    if text not in MODES:
        raise InvalidArgument("--mode", text, ", ".join(MODES))
    return MODES[text]
