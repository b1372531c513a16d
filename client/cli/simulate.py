# SPDX-License-Identifier: Apache-2.0
"""`ultima simulate`: how long ops would take on a cluster that is described in a few figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, print_json, say

if TYPE_CHECKING:
    from ultima.admin.simulator import Predicted

HOSTS_MAX, OPS_MAX = 64, 2800
BUCKET_MAX, QUEUE_MIN, QUEUE_MAX = 64 << 20, 2000, 64 << 20
RATES = {"mbit": 1.0, "gbit": 1000.0}
RATE_MAX_MBIT = 100_000
LOST_ALL = 1_000_000  # parts in a million
MODES = {"bounded": 1, "best_effort": 2, "reliable": 3}
HEAD = (
    f"{'BUCKET':>10} {'OPS':>5} {'P50 ms':>9} {'P99 ms':>9} {'WIRE ms':>9} {'P50/WIRE':>9} {'WHOLE':>6} {'MISSING':>9}"
)


def simulate(
    hosts: Annotated[int, typer.Option(help="Hosts of the job, one rank each, 2 to 64.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of each host's link: 1Gbit, 250Mbit.")] = "1Gbit",
    delay: Annotated[str, typer.Option(help="Delay from host to host, one way.")] = "25us",
    buffer: Annotated[str, typer.Option(help="Buffer of the switch towards one host: 1M, 200K.")] = "1M",
    loss: Annotated[str, typer.Option(help="Share of packets that are lost, independently: 0.1%.")] = "0%",
    bucket: Annotated[list[str] | None, typer.Option(help="Bytes of an op: 25M. May be given again.")] = None,
    slow_host: Annotated[int, typer.Option(help="The link of one host is so many times slower, 1 to 1000.")] = 1,
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
        "queue_bytes": size_bytes(buffer, "--buffer", QUEUE_MIN, QUEUE_MAX),
        "loss_ppm": loss_ppm(loss),
        "slow_part": slow_host,
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
                "rows": [facts(size, row) for size, row in rows.items()],
            }
        )
        return
    slow = f", one {slow_host} times slower" if slow_host > 1 else ""
    few = f"; buckets travel as {wire}, the time to code them not counted" if wire else ""
    say(f"{hosts} hosts, {rate}, {delay} one way, {buffer} of switch buffer, {loss} lost{slow}; virtual time{few}")
    say(HEAD)
    for size, row in rows.items():
        say(line(size, row))


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


def facts(size: int, row: Predicted) -> dict[str, Any]:
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
    }


def line(size: int, row: Predicted) -> str:
    """One bucket for people."""
    from ultima.base.receipt import size_text

    times = (
        f"{row.p50_us / 1e3:9.3f} {row.p99_us / 1e3:9.3f} {row.bound_us / 1e3:9.3f} {row.p50_us / row.bound_us:9.2f}"
    )
    whole = f"{100 * (row.ops - row.not_whole) / row.ops:.0f}%"
    return f"{size_text(size):>10} {row.ops:5} {times} {whole:>6} {100 * row.missing:8.3g}%"


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


def rate_mbit(text: str) -> int:
    """Of "10Gbit" or "250 mbit/s". Raises InvalidArgument."""
    from ultima.base.errors import InvalidArgument

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mg]bit)(?:/s)?", text.strip().lower())
    value = round(float(found[1]) * RATES[found[2]]) if found else 0
    if not 1 <= value <= RATE_MAX_MBIT:
        raise InvalidArgument("--rate", text, "1Mbit to 100Gbit")
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
