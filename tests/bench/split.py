# SPDX-License-Identifier: Apache-2.0
"""What it brings or costs to split large ops over the lanes: jobs with `split` never and always, and Gloo, in turns.

    python -m tests.bench.split                     2 hosts, unshaped, 25 MB (root, half a minute)
    python -m tests.bench.split --hosts 4 --rate 1000 --ops 40
    python -m tests.bench.split --sizes 2097152 25000000

One daemon a host serves both jobs, with its two lanes. Before each op the ranks meet in a small one, so each op that
is split leaves a number free. CPU is that of the whole machine for an op with its barrier. Where the hosts share two
cores, this can only show what splitting costs where there are no CPUs for it.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.bench.rig import Rig, Series
from tests.lab.lab import unavailable

NEVER, ALWAYS = "ultima never", "ultima always"
CONTENDERS = ("gloo cubic", NEVER, ALWAYS)


def told(size: int, found: dict[str, Series]) -> str:
    """A line for each contender, with what it takes to that of NEVER."""
    base = found[NEVER]
    lines = []
    for name, each in found.items():
        wrong = f", {each.wrong} wrong" if each.wrong else ""
        p50, p99, cpu = each.p50 / base.p50, each.p99 / base.p99, each.cpu_s / base.cpu_s
        lines.append(
            f"{size} B {name}: {each.ops} ops, p50 {each.p50 / 1e3:.2f} ms ({p50:.3f}), p99 {each.p99 / 1e3:.2f} ms "
            f"({p99:.2f}), CPU {1e3 * each.cpu_s:.1f} ms ({cpu:.3f}){wrong}"
        )
    return "\n".join(lines)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=float, default=0, help="Mbit/s of each link; 0: not shaped")
    parser.add_argument("--sizes", type=int, nargs="+", default=[25_000_000], help="bytes")
    parser.add_argument("--ops", type=int, default=200, help="of each size and contender")
    parser.add_argument("--seconds", type=float, default=60, help="of each size and contender, at most")
    parser.add_argument("--rounds", type=int, default=8)
    flags = parser.parse_args()
    if why := unavailable():
        print(f"split: {why}", file=sys.stderr)
        return 1
    environments = {name: {"ULTIMA_SPLIT": name.split()[1]} for name in (NEVER, ALWAYS)}
    with Rig(flags.hosts, max(flags.sizes), flags.rate, environments=environments) as rig:
        load = os.getloadavg()[0]
        print(f"{flags.hosts} hosts, {flags.rate:g} Mbit/s, {os.cpu_count()} cores, load {load:.1f}", flush=True)
        for size in flags.sizes:
            print(told(size, rig.turns(size, flags.ops, flags.seconds, CONTENDERS, flags.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
