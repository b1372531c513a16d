# SPDX-License-Identifier: Apache-2.0
"""What sealing costs on a network: plain and sealed daemons on one lab, in turns in one run; and sealed under a flood.

    python -m tests.bench.sealed                    4 hosts at 1 Gbit/s, 25 MB and 64 KiB (root, two minutes)
    python -m tests.bench.sealed --rate 0           unshaped: the CPU is the limit
    python -m tests.bench.sealed --hosts 2 --rounds 2 --ops 5
    python -m tests.bench.sealed --flood            64 KiB, sealed: 60,000 datagrams of garbage a second at one host

The ranks run `ultima perf`; a row is the median of the rounds' p50, or p99, in microseconds. CPU is that of all
engines together for an op and its barrier; other programs hardly move it. Asked, where a core is free: at most 1.03
of plain for 25 MB at 1 Gbit/s, and 10 us more for 64 KiB. Gloo's own TLS (its device TCP_TLS) cannot stand beside:
torch's wheels are built without it ("unsupported gloo device"). The same garbage at ports where nobody listens shows
what sending and carrying it takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from contextlib import ExitStack

from tests.daemon.trust.papers import Authority
from tests.lab.cluster import PORT, Cluster
from tests.lab.flood import Garbage
from tests.lab.lab import Lab, unavailable

SIZES = {"25M": "25000000", "64K": "65536"}
WARM = 3
SMALL_OPS = 20  # of 64 KiB for each of 25 MB
PER_SECOND = 60_000
FLOODS = {"calm": (), "flooded": (PORT + 1, PORT + 2), "flooded elsewhere": (9, 19)}

Row = tuple[float, float, float]
"""p50 and p99 in us, CPU of the engines for an op in ms."""
Rows = dict[tuple[str, str], list[Row]]


def engines_cpu_s(cluster: Cluster) -> float:
    """CPU time that all engines have taken so far."""
    status = [cluster.status(index)["engine"]["counters"] for index in range(len(cluster.daemons))]
    return float(sum(counters["cpu_ns"] for counters in status)) / 1e9


def measured(cluster: Cluster, kind: str, size: str, ops: int) -> Row:
    """One run of `ultima perf`, told at once for whoever must break off. Raises RuntimeError if a rank fails."""
    before = engines_cpu_s(cluster)
    run = cluster.perf("-b", SIZES[size], "-n", str(ops), "-w", str(WARM), "-c", "1", timeout=150)
    cpu_s = engines_cpu_s(cluster) - before
    if any(run.statuses):
        raise RuntimeError(run.explain())
    found = run.report["results"][0]["in_place"]
    row = float(found["p50_us"]), float(found["p99_us"]), 1e3 * cpu_s / (ops + WARM)
    print(f"  {size} {kind}: p50 {row[0]:.0f} us, p99 {row[1]:.0f} us, CPU {row[2]:.2f} ms", flush=True)
    return row


def sealed_and_plain(lab: Lab, authority: Authority, sizes: list[str], rounds: int, ops: int) -> Rows:
    """By kind and size, one row a round."""
    rows: Rows = {}
    for _ in range(rounds):
        for kind, known in (("plain", None), ("sealed", authority)):
            with Cluster(lab, authority=known, anew=True) as cluster:
                for size in sizes:
                    count = ops if size == "25M" else SMALL_OPS * ops
                    rows.setdefault((kind, size), []).append(measured(cluster, kind, size, count))
    return rows


def flooded(lab: Lab, authority: Authority, rounds: int, ops: int) -> Rows:
    """By kind of flood, one row a round; the last host floods the first."""
    rows: Rows = {}
    with Cluster(lab, authority=authority, anew=True) as cluster:
        for _ in range(rounds):
            for kind, ports in FLOODS.items():
                with ExitStack() as stack:
                    if ports:
                        stack.enter_context(Garbage(lab, len(lab.hosts) - 1, 0, ports, PER_SECOND))
                    rows.setdefault((kind, "64K"), []).append(measured(cluster, kind, "64K", SMALL_OPS * ops))
    return rows


def tell(rows: Rows, first: str) -> None:
    """A line for each row beside that of the kind |first|: medians, their ratio, and that of each round."""
    for (kind, size), found in rows.items():
        base = rows[first, size]
        p50, p99, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        was50, was99, was_cpu = (statistics.median(column) for column in zip(*base, strict=True))
        each = ", ".join(f"{one[0] / other[0]:.2f}" for one, other in zip(found, base, strict=True))
        print(f"{size} {kind}: p50 {p50:.0f} us, p99 {p99:.0f} us, CPU {cpu:.2f} ms; to {first}: p50 {p50 / was50:.3f}"
              f" ({each}), {p50 - was50:+.0f} us, p99 {p99 / was99:.2f}, CPU {cpu / was_cpu:.2f}")  # fmt: skip


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s of each link; 0: not shaped")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ops", type=int, default=10, help=f"of 25 MB; {SMALL_OPS} times as many of 64 KiB")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of buckets; both if not given")
    parser.add_argument("--flood", action="store_true", help="sealed daemons with and without garbage, instead")
    flags = parser.parse_args()
    if why := unavailable():
        print(f"sealed: {why}", file=sys.stderr)
        return 1
    with Lab(flags.hosts, rate_mbit=flags.rate) as lab:
        print(
            f"{flags.hosts} hosts, {flags.rate:g} Mbit/s, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        if flags.flood:
            tell(flooded(lab, Authority(), flags.rounds, flags.ops), "calm")
        else:
            tell(sealed_and_plain(lab, Authority(), flags.sizes, flags.rounds, flags.ops), "plain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
