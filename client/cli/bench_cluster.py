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

SLOW = 1.5  # times the median of the others is worth a word, if it is more than they differ by themselves
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
    as_json: AsJson = False,
) -> None:
    from ultima.admin.pairs import Ask, all_pairs, common_host, worst
    from ultima.base.durations import duration_s
    from ultima.base.errors import InvalidArgument
    from ultima.cli.perf import size_of

    if not 2 <= len(hosts) <= HOSTS_MAX or len(set(hosts)) < len(hosts):
        raise InvalidArgument("HOST...", " ".join(hosts), f"2 to {HOSTS_MAX} hosts, each once")
    for host in hosts:
        if host.startswith("-") or not host or any(c.isspace() for c in host):
            raise InvalidArgument("HOST...", host, "names or addresses")
    if not 1 <= iterations <= ITERATIONS_MAX:
        raise InvalidArgument("--iters", iterations, f"1 to {ITERATIONS_MAX}")
    size_of("--size", size)
    ask = Ask(words_of(via), size, iterations, duration_s(timeout, "--timeout"), command)

    def tell(pair: Pair) -> None:
        if not as_json:
            say(f"{pair.a} - {pair.b}: {pair.error or f'{pair.p50_us / 1e3:.2f} ms'}", err=True)

    pairs = all_pairs(hosts, ask, tell)
    found = worst(pairs)
    slow_host = common_host(pairs, SLOW)
    if as_json:
        print_json({"hosts": list(hosts), "size": size, "pairs": [facts(pair) for pair in pairs],
                    "worst": facts(found[0]) if found else None, "slow_host": slow_host})  # fmt: skip
    else:
        for line in [*matrix(hosts, pairs), "", *verdict(pairs, found, slow_host)]:
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


def facts(pair: Pair) -> dict[str, Any]:
    """One pair for JSON."""
    return {
        "a": pair.a,
        "b": pair.b,
        "p50_us": pair.p50_us,
        "p99_us": pair.p99_us,
        "missing_share": pair.loss,
        "bus_gb_per_s": pair.bus_gbs,
        "error": pair.error,
    }


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
