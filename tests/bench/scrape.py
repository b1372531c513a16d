# SPDX-License-Identifier: Apache-2.0
"""What a scrape costs: with 16 jobs and 64 peers beside a plain HTTP answer of as many bytes; and ops under scrapes.

    python -m tests.bench.scrape                    200 scrapes, and 20 s of ops (a quiet machine)
    python -m tests.bench.scrape --scrapes 20 --periods 2

Times are the asker's. CPU is that of this process for one answer, asker and server together, for the same asker stands
in both rows. The ops, of 1 MB, are those of two daemons on this host, in periods of about a second with and without a
scrape by another process, in turns.
Asked: p99 of a scrape below 20 ms, and no step slower by more than 1 % under a scrape a second.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import ultima
from tests.daemon.observe.facts import some_facts
from tests.e2e.hosts import everywhere, free_port, ranks, running
from ultima.cli.perf_table import quantile
from ultima.daemon.observe.metrics_text import render
from ultima.daemon.process.exposition import Exposition

JOBS, PEERS = 16, 64
ELEMENTS = 250_000


def scrape(port: int) -> int:
    """Asks once, as Prometheus does with a connection that it keeps no longer; bytes of the answer."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    link.request("GET", "/metrics")
    answer = link.getresponse()
    text = answer.read()
    link.close()
    if answer.status != 200:
        raise RuntimeError(f"a scrape ended with {answer.status}")
    return len(text)


def times_of(text: Callable[[], bytes], count: int) -> tuple[list[float], float, int]:
    """Milliseconds of each scrape, CPU milliseconds of one, and its bytes."""
    server = Exposition(f"127.0.0.1:{free_port()}", text)
    try:
        size = scrape(server.port)
        times, cpu = [], time.process_time()
        for _ in range(count):
            begin = time.perf_counter()
            scrape(server.port)
            times.append((time.perf_counter() - begin) * 1e3)
        return times, (time.process_time() - cpu) * 1e3 / count, size
    finally:
        server.close()


def ops_under_scrapes(periods: int) -> tuple[list[float], list[float]]:
    """Mean milliseconds of an op, in each period without and with a scrape."""
    port = free_port()
    without, scraped = list[float](), list[float]()
    asker = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--ask", str(port)], stdin=subprocess.PIPE, text=True
    )
    with asker, running(2) as hosts:
        hosts[0].stop()
        hosts[0].environment["ULTIMAD_METRICS"] = f"127.0.0.1:{port}"
        hosts[0].launch()
        hosts[0].wait_until_ready()
        with ranks(hosts) as jobs:

            def one(rank: int, job: ultima.Job, count: int) -> float:
                data = job.empty(ELEMENTS, np.float32)
                data.fill(1)
                begin = time.perf_counter()
                for _ in range(count):
                    job.allreduce(data, op="avg", deadline=20.0)
                return (time.perf_counter() - begin) * 1e3 / count

            def period(count: int) -> float:
                found = everywhere(jobs, lambda rank, job: one(rank, job, count))
                if failed := [each for each in found if not isinstance(each, float)]:
                    raise RuntimeError(f"{failed}")
                return max(found)

            count = max(10, int(1000 / period(20)))
            for turn in range(2 * periods):
                if turn % 2:
                    assert asker.stdin is not None
                    asker.stdin.write("now\n")
                    asker.stdin.flush()
                (scraped if turn % 2 else without).append(period(count))
            asker.stdin.close() if asker.stdin else None
    return without, scraped


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--periods", type=int, default=20, help="of a second, of each kind")
    parser.add_argument("--ask", type=int, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.ask:
        for _ in sys.stdin:
            scrape(flags.ask)
        return 0
    facts = some_facts(JOBS, PEERS)
    page = render(facts)
    print(f"{JOBS} jobs, {PEERS} peers, {len(page)} B, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    rows = {"plain": times_of(lambda: page, flags.scrapes), "scrape": times_of(lambda: render(facts), flags.scrapes)}
    for name, (times, cpu, _) in rows.items():
        middle, tail = quantile(times, 50), quantile(times, 99)
        print(f"{name}: p50 {middle:.2f} ms, p99 {tail:.2f} ms, {cpu:.2f} ms of CPU")
    plain, full = (quantile(times, 99) for times, _, _ in rows.values())
    print(f"p99 to p99 of plain: {full / plain:.1f}")
    if flags.periods:
        without, scraped = ops_under_scrapes(flags.periods)
        ratio = statistics.median(scraped) / statistics.median(without)
        print(f"an op of 1 MB: {statistics.median(without):.3f} ms, under a scrape a second {ratio:.3f} of that")
    return 0


if __name__ == "__main__":
    sys.exit(main())
