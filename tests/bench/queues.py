# SPDX-License-Identifier: Apache-2.0
"""Ops of 25 MB behind switches whose ports hold little: what a short queue costs, and what it is made to drop.

    python -m tests.bench.queues                              four hosts, 100 to 1000 Mbit/s (root)
    python -m tests.bench.queues --rates 1000 --ops 40        one rate, more ops
    python -m tests.bench.queues --gloo                       Gloo over cubic beside it

The port of the switch towards each host is a token bucket with so many bytes of queue and next to no burst; offloads
are off in front of it, so it sees packets. The host's own side has the lab's queue, which is long. Lost is what the
ports dropped, grants and feedback too, to the data packets that were sent; nothing else loses here.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.bench.rig import OWN, Rig, Series, wire_bound_us
from tests.lab.lab import unavailable

RATES = (100.0, 250.0, 500.0, 1000.0)
QUEUES = (64 << 10, 128 << 10, 512 << 10, 4 << 20)
SIZE = 25_000_000
GLOO = "gloo cubic"
LEAST = 4  # ops of a case, however slow the link


def told(rate: float, queue: int, found: Series, base: Series, dropped: int) -> str:
    """A line: times to the wire's bound, and to the same with the longest queue, which is |base|."""
    bound = wire_bound_us(SIZE, 4, rate)
    sent = found.counters.get("data_sent", 0)
    lost = f", lost {100 * dropped / sent:.3f} %" if sent else ""
    wrong = f", {found.wrong} wrong" if found.wrong else ""
    times = f"p50 {found.p50 / bound:.3f} of the bound, {found.p50 / base.p50:.3f} of that at {QUEUES[-1] >> 10} KiB"
    return (
        f"{rate:4g} Mbit/s, {queue >> 10:4} KiB, {found.contender}: {found.ops} ops, {times}, "
        f"longest {max(found.us) / bound:.3f}{lost}, CPU {found.cpu_s:.3f} s{wrong}"
    )


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, metavar="MBIT")
    parser.add_argument("--queues", type=int, nargs="+", default=QUEUES, metavar="BYTES", help="of 4194304 besides")
    parser.add_argument("--ops", type=int, default=12, help="at 1000 Mbit/s; fewer on slower links, 4 at least")
    parser.add_argument("--gloo", action="store_true")
    flags = parser.parse_args()
    if why := unavailable():
        print(f"queues: {why}", file=sys.stderr)
        return 1
    names = (OWN, GLOO) if flags.gloo else (OWN,)
    with Rig(4, SIZE, max(flags.rates)) as rig:
        print(f"4 hosts, 25 MB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        for rate in flags.rates:
            ops = max(LEAST, round(flags.ops * rate / 1000))
            base: dict[str, Series] = {}
            for queue in sorted({*flags.queues, QUEUES[-1]}, reverse=True):
                for host in rig.lab.hosts:
                    host.set_rate(rate)
                    host.set_queue(rate, queue)
                for name in names:
                    drops: list[int] = []

                    def look(drops: list[int] = drops) -> None:
                        drops.append(sum(host.dropped_by_queue() for host in rig.lab.hosts))

                    found = rig.turns(SIZE, ops, 120, (name,), rounds=1, before=look)[name]  # what warms up counts not
                    look()
                    print(told(rate, queue, found, base.setdefault(name, found), drops[1] - drops[0]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
