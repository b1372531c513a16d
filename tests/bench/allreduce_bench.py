# SPDX-License-Identifier: Apache-2.0
"""Ultima beside Gloo, in one lab and in turn, so that whatever the machine does it does to both.

For each number of hosts a lab is built and a daemon started on each host (it sleeps while Gloo runs). Then each round
runs Gloo, once per TCP congestion control, and Ultima, every size. Both time an iteration from a barrier until the
slowest rank has its result. A row shows the median over the rounds of p50 and of p99, with the number of operations
behind them, and the ratios to the better Gloo. See docs/performance.md for how to read it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.lab.cluster import Cluster
from tests.lab.lab import Lab, unavailable

GLOO_PORT = 29400
RUN_S = 600.0


@dataclass
class Series:
    """One contender at one size: p50 and p99 of each round in microseconds, and operations in all."""

    contender: str
    hosts: int
    size: int
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    operations: int = 0
    wrong: int = 0
    loss_percent: float = 0.0
    cpu_ns_per_byte: float | None = None
    """CPU time of the engine threads of all hosts per byte of bucket and host; send, receive and fold together."""

    @property
    def p50(self) -> float:
        return statistics.median(self.p50_us)

    @property
    def p99(self) -> float:
        return statistics.median(self.p99_us)


def quantile(values: list[float], percent: float) -> float:
    """The nearest rank, as `ultima perf` takes it. |values| must not be empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def run_gloo(lab: Lab, size: int, iterations: int) -> list[float]:
    """Microseconds of each iteration. Raises RuntimeError with what a failed rank said."""
    command = [sys.executable, str(Path(__file__).with_name("gloo_allreduce.py")), "--bytes", str(size)]
    command += ["--iterations", str(iterations)]
    ranks = []
    for host in lab.hosts:
        environment = {
            "RANK": str(host.index),
            "WORLD_SIZE": str(len(lab.hosts)),
            "MASTER_ADDR": lab.host(0).address,
            "MASTER_PORT": str(GLOO_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks.append(host.popen(command, environment, stdin=subprocess.DEVNULL, **pipes))
    said = [rank.communicate(timeout=RUN_S) for rank in ranks]
    for rank, (_, errors) in zip(ranks, said, strict=True):
        if rank.returncode != 0:
            raise RuntimeError(f"Gloo ended with status {rank.returncode}:\n{errors}")
    times: list[float] = json.loads(said[0][0].splitlines()[-1])["us"]
    return times


def engine_cpu_ns(cluster: Cluster) -> int:
    """CPU time of all engine threads since their daemons started."""
    return sum(cluster.status(host.index)["engine"]["counters"]["cpu_ns"] for host in cluster.lab.hosts)


def run_ultima(cluster: Cluster, size: int, iterations: int, series: Series) -> None:
    before = engine_cpu_ns(cluster)
    flags = ["-b", str(size), "-e", str(size), "-n", str(iterations), "-w", "3", "-c", "1"]
    run = cluster.perf(*flags, timeout=RUN_S)
    if any(run.statuses) or not run.report:
        raise RuntimeError(run.explain())
    (row,) = run.report["results"]
    series.p50_us.append(row["p50_us"])
    series.p99_us.append(row["p99_us"])
    series.operations += row["actual_iterations"]
    series.wrong += int(row["in_place"]["nwrong"] or 0) + int(row["out_of_place"]["nwrong"] or 0)
    series.loss_percent = max(series.loss_percent, row["loss_percent"])
    # Out of place and in place; timed, warm-up and checked ones.
    moved = size * len(cluster.lab.hosts) * 2 * (iterations + 3 + 1)
    series.cpu_ns_per_byte = (engine_cpu_ns(cluster) - before) / moved


def measure(options: argparse.Namespace, hosts: int, progress: Progress) -> list[Series]:
    found: dict[tuple[str, int], Series] = {}

    def series(contender: str, size: int) -> Series:
        return found.setdefault((contender, size), Series(contender, hosts, size))

    steps = options.rounds * len(options.sizes) * (len(options.congestion) + 1)
    task = progress.add_task(f"{hosts} hosts", total=steps)
    lab = Lab(hosts, options.rate, options.loss, options.unit)
    with lab, Cluster(lab) as cluster:
        for turn in range(options.rounds):
            for size in options.sizes:
                iterations = options.iterations or max(20, min(400, int(2e8 / size)))
                contenders = [f"gloo {name}" for name in options.congestion] + ["ultima"]
                # Each goes first in some round: what runs before must not always be the same.
                for contender in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                    progress.update(task, description=f"{hosts} hosts, {size} B, {contender}")
                    one = series(contender, size)
                    if contender == "ultima":
                        run_ultima(cluster, size, iterations, one)
                    else:
                        lab.set_congestion(contender.removeprefix("gloo "))
                        times = run_gloo(lab, size, iterations)
                        one.p50_us.append(quantile(times, 50))
                        one.p99_us.append(quantile(times, 99))
                        one.operations += len(times)
                    progress.advance(task)
        if options.loss and lab.dropped()[0] == 0:
            raise RuntimeError("the lab was asked for loss and dropped nothing")
    progress.remove_task(task)
    return list(found.values())


def show(console: Console, measured: list[Series]) -> None:
    title = "Time of an allreduce in ms, median over the rounds"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    names = ["hosts", "bytes", "contender", "ops", "p50", "p99", "p50 ratio", "p99 ratio", "#wrong", "loss%", "ns/B"]
    for name in names:
        table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    groups: dict[tuple[int, int], list[Series]] = defaultdict(list)
    for one in measured:
        groups[one.hosts, one.size].append(one)
    for group in groups.values():
        best = min((one for one in group if one.contender != "ultima"), key=lambda one: one.p50)
        for one in group:
            ours = one.contender == "ultima"
            table.add_row(
                str(one.hosts), str(one.size), one.contender, str(one.operations),
                f"{one.p50 / 1e3:.3f}", f"{one.p99 / 1e3:.3f}",
                f"{one.p50 / best.p50:.2f}" if ours else "", f"{one.p99 / best.p99:.2f}" if ours else "",
                str(one.wrong) if ours else "", f"{one.loss_percent:.4f}" if ours else "",
                f"{one.cpu_ns_per_byte:.2f}" if one.cpu_ns_per_byte is not None else "",
            )  # fmt: skip
    console.print(table)
    console.print("Ratios: to the Gloo with the better median. ns/B: CPU time of the engine threads per byte and host.")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4], metavar="N")
    parser.add_argument("--sizes", type=int, nargs="+", default=[65536, 25_000_000], metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=0, help="per round; 0: by size")
    parser.add_argument("--rate", type=float, default=0, metavar="MBIT", help="of every link; 0: unshaped")
    parser.add_argument("--loss", type=float, default=0, metavar="PCT", help="of what the switch forwards")
    parser.add_argument("--unit", choices=("packet", "burst"), default="burst", help="what one loss event takes")
    parser.add_argument("--congestion", nargs="+", default=["cubic"], metavar="NAME", help="of Gloo's TCP")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures")
    return parser.parse_args()


def main() -> int:
    options = _parse()
    reason = unavailable()
    if reason is not None:
        print(f"bench: {reason}", file=sys.stderr)
        return 1
    # A table that is cut off is of no use in a log.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    measured: list[Series] = []
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        for hosts in options.hosts:
            measured += measure(options, hosts, progress)
    network = f"{options.rate:g} Mbit/s" if options.rate else "unshaped"
    machine = f"{os.cpu_count()} cores, Linux {os.uname().release}"
    console.print(f"{machine}; {network}, {options.loss:g} % loss per {options.unit}")
    show(console, measured)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in measured], indent=2) + "\n")
    return 1 if any(one.wrong for one in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
