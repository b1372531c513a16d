# SPDX-License-Identifier: Apache-2.0
"""`ultima bench-cluster`: all-reduce between every two hosts, as a matrix, with the worst link named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, print_json, say
from ultima.cli.rows import clip
from ultima.cli.width import columns, wrapped

if TYPE_CHECKING:
    from ultima.admin.pairs import Pair
    from ultima.admin.paths import Buffer

SLOW = 1.5  # times the median of the others is worth a word, if it is more than they differ by themselves
BEYOND_MOST = 5  # pairs that are told one by one
NAME, CELL = 16, 9
HOSTS_MAX, ITERATIONS_MAX = 64, 10_000


def bench_cluster(
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST...", help="Its address, as its daemon and ssh or Slurm know it.")
    ],
    via: Annotated[str, typer.Option(help="How to run on a host: ssh, slurm, or a command with {host} in it.")] = "ssh",
    size: Annotated[str, typer.Option("--size", "-b", help="Bytes of an op: 25M.")] = "25M",
    iterations: Annotated[int, typer.Option("--iters", "-n", help="Timed ops of each pair.")] = 20,
    timeout: Annotated[str, typer.Option(help="For one pair.")] = "60s",
    command: Annotated[str, typer.Option(help="Command that runs `ultima` there.")] = "ultima",
    rate: Annotated[
        str | None, typer.Option(help="Rate of the links, if it is known: 1Gbit. Otherwise as data are seen to arrive.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    from ultima.admin.pairs import Ask, all_pairs, common_host, worst
    from ultima.base.durations import duration_s
    from ultima.base.errors import InvalidArgument
    from ultima.cli.perf import size_of
    from ultima.cli.simulate import rate_mbit

    if not 2 <= len(hosts) <= HOSTS_MAX or len(set(hosts)) < len(hosts):
        raise InvalidArgument("HOST...", " ".join(hosts), f"2 to {HOSTS_MAX} hosts, each once")
    for host in hosts:
        if host.startswith("-") or not host or any(c.isspace() for c in host):
            raise InvalidArgument("HOST...", host, "names or addresses")
    if not 1 <= iterations <= ITERATIONS_MAX:
        raise InvalidArgument("--iters", iterations, f"1 to {ITERATIONS_MAX}")
    op_bytes = size_of("--size", size)
    known = rate_mbit(rate) * 125_000.0 if rate else None
    ask = Ask(words_of(via), size, iterations, duration_s(timeout, "--timeout"), command, known)

    def tell(pair: Pair) -> None:
        if not as_json:
            say(f"{pair.a} - {pair.b}: {pair.error or f'{pair.p50_us / 1e3:.2f} ms'}", err=True)

    pairs = all_pairs(hosts, ask, tell)
    found = worst(pairs)
    slow_host = common_host(pairs, SLOW)
    if as_json:
        print_json({"hosts": list(hosts), "size": size, "pairs": [facts(pair, op_bytes) for pair in pairs],
                    "worst": facts(found[0], op_bytes) if found else None, "slow_host": slow_host,
                    "small_buffers": [buffer_facts(pair, each) for pair, each in small_buffers(pairs)]})  # fmt: skip
    else:
        for line in [*matrix(hosts, pairs), "", *verdict(pairs, found, slow_host), *distance(pairs, op_bytes)]:
            say(line)
    if any(pair.error for pair in pairs):
        raise typer.Exit(1)


def words_of(via: str) -> tuple[str, ...]:
    """The command that runs a line on a host. Raises InvalidArgument."""
    import shlex

    from ultima.admin.pairs import SLURM, SSH
    from ultima.base.errors import InvalidArgument

    if via in ("ssh", "slurm"):
        return SSH if via == "ssh" else SLURM
    try:
        words = tuple(shlex.split(via))
    except ValueError:
        words = ()
    if not any("{host}" in word for word in words):
        raise InvalidArgument("--via", via, "ssh, slurm, or a command with {host} in it")
    return words


def facts(pair: Pair, op_bytes: int) -> dict[str, Any]:
    """One pair for JSON; null is what was not measured."""
    path, goal_us = pair.path, pair.path.goal_us(op_bytes)
    return {
        "a": pair.a,
        "b": pair.b,
        "p50_us": pair.p50_us,
        "p99_us": pair.p99_us,
        "missing_share": pair.loss,
        "bus_gb_per_s": pair.bus_gbs,
        "error": pair.error,
        "round_trip_us": path.round_trip_us,
        "lost_share": path.lost,
        "path_mbit": None if path.rate is None else path.rate / 125_000,
        "goal_us": goal_us,
        "to_goal": pair.p50_us / goal_us if goal_us and not pair.error else None,
    }


def buffer_facts(pair: Pair, buffer: Buffer) -> dict[str, Any]:
    """A receive buffer that is too small, for JSON."""
    return {
        "host": buffer.host,
        "granted_bytes": buffer.granted,
        "wanted_bytes": buffer.wanted,
        "shorter_share": pair.path.shorter(buffer),
    }


def small_buffers(pairs: Sequence[Pair]) -> list[tuple[Pair, Buffer]]:
    """Each host whose buffer is too small for one of its paths, with the pair that needs most."""
    most: dict[str, tuple[Pair, Buffer]] = {}
    for pair in pairs:
        for each in pair.path.buffers:
            if each.host not in most or each.wanted > most[each.host][1].wanted:
                most[each.host] = (pair, each)
    return list(most.values())


def distance(pairs: Sequence[Pair], op_bytes: int) -> list[str]:
    """What the paths allow, in sentences: the pairs that are not near it, or how near all are; and what is in the way.
    Nothing if nobody has measured it."""
    from ultima.admin.paths import NEAR
    from ultima.base.receipt import size_text

    known = [(pair, goal) for pair in pairs if not pair.error and (goal := pair.path.goal_us(op_bytes))]
    lines = []
    beyond = sorted(
        (each for each in known if each[0].p50_us > NEAR * each[1]), key=lambda each: each[1] / each[0].p50_us
    )
    for pair, goal in beyond[:BEYOND_MOST]:
        lines.append(
            f"{pair.a} - {pair.b}: {pair.p50_us / 1e3:.2f} ms, {pair.p50_us / goal:.2f} of {allowed(pair, goal)}"
        )
    if len(beyond) > BEYOND_MOST:
        lines.append(f"{len(beyond) - BEYOND_MOST} more pairs take above {NEAR} of what their paths allow")
    if known and not beyond:
        pair, goal = min(known, key=lambda each: each[1] / each[0].p50_us)
        least = f"all pairs are near what their paths allow; the farthest from it: {pair.a} - {pair.b}, "
        lines.append(f"{least}{pair.p50_us / goal:.2f} of {allowed(pair, goal)}")
    for pair, _ in known:
        if pair.path.flying_full():
            most = f"{pair.path.flying_most() / 1e6:.1f} MB, which no sysctl changes"
            lines.append(f"{pair.a} - {pair.b}: a host may have no more under way to another than {most}")
    for pair, each in small_buffers(pairs):
        saved = f"ops between {pair.a} and {pair.b} would take up to {100 * pair.path.shorter(each):.0f} % less"
        need = f"grants {size_text(each.granted)} to receive, and {size_text(each.wanted)} are needed"
        lines.append(f"{each.host}: its kernel {need}; {saved}: sysctl -w net.core.rmem_max={each.enough}, for good in")
        lines[-1] += " /etc/sysctl.d, and start its daemon again"
    return [text for line in lines for text in wrapped(line, rest="  ")]


def allowed(pair: Pair, goal_us: float) -> str:
    """The goal of a pair, and what it consists of."""
    path = pair.path
    assert path.rate is not None and path.round_trip_us is not None
    lost = f"; {100 * path.lost:.2g} % of the packets were lost" if path.lost else ""
    trip = f"two round trips of {path.round_trip_us / 1e3:.2f} ms"
    return f"{goal_us / 1e3:.2f} ms, which {path.rate * 8e-6:.0f} Mbit/s and {trip} allow{lost}"


def matrix(hosts: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Medians in ms; hosts by number above, in as many blocks of columns as the terminal needs."""
    by_hosts = {(pair.a, pair.b): pair for pair in pairs} | {(pair.b, pair.a): pair for pair in pairs}
    each = max(1, (columns() - NAME - 4) // CELL)
    lines = ["median time of an op in ms"]
    for first in range(0, len(hosts), each):
        shown = list(enumerate(hosts))[first : first + each]
        lines.append(f"{'':>{NAME + 4}}" + "".join(f"{number:{CELL}}" for number, _ in shown))
        for row, host in enumerate(hosts):
            cells = "".join(_cell(by_hosts.get((host, other))) for _, other in shown)
            lines.append(f"{row:3} {clip(host, NAME):<{NAME}}{cells}")
    return lines


def _cell(pair: Pair | None) -> str:
    text = "-" if pair is None else "failed" if pair.error else f"{pair.p50_us / 1e3:.2f}"
    return f"{text:>{CELL}}"


def verdict(pairs: Sequence[Pair], found: tuple[Pair, float] | None, slow_host: str) -> list[str]:
    """The worst link in a sentence, and the host, if it is a host. Links that differ by chance are not called slow."""
    from ultima.admin.pairs import stands_out

    if found is None:
        return []
    pair, times = found
    figures = f"{pair.a} - {pair.b}, {pair.p50_us / 1e3:.2f} ms, {times:.1f} times the median of the others"
    lost = f", {100 * pair.loss:.2g} % of the bytes missing" if pair.loss else ""
    if pair.error:
        lines = [f"worst link: {pair.a} - {pair.b} failed: {pair.error}"]
    elif slow_host or stands_out(pair, [other for other in pairs if other is not pair], SLOW) or pair.loss:
        lines = [f"worst link: {figures}{lost}"]
    else:
        lines = ["all links look alike" + (f"; the slowest: {figures}" if len(pairs) > 1 else "")]
    if slow_host:
        lines.append(f"all pairs of {slow_host} are slow or fail: look at that host and its link")
    return [text for line in lines for text in wrapped(line, rest="  ")]
