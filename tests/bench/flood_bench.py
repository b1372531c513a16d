# SPDX-License-Identifier: Apache-2.0
"""What a flood of garbage costs an op: `python -m tests.bench.flood_bench` (root; under a minute).

Three hosts at 1 Gbit/s reduce 25 MB, in turn without and with garbage at both ports of host 0, sent from host 2. The
ratio of the medians must stay below 1.10. Garbage takes its share of the link as everything else does (84 bytes of wire
for the smallest frame), so a rate that fills the link cannot pass, whoever receives it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from tests.lab.cluster import PORT, Cluster
from tests.lab.lab import Lab, unavailable

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.10


def _p50_us(cluster: Cluster, size: str, ops: int) -> float:
    run = cluster.perf("-b", size, "-e", size, "-n", str(ops), "-w", "1", "-c", "0")
    if any(run.statuses):
        raise RuntimeError(run.explain())
    row = run.report["results"][0]["out_of_place"]
    return float(row["p50_us"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.flood_bench")
    parser.add_argument("--per-second", type=int, default=50_000, help="datagrams of garbage")
    parser.add_argument("--rate", type=float, default=1000, metavar="MBIT", help="of every link; 0: unshaped")
    parser.add_argument("--size", default="25M")
    parser.add_argument("--ops", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if reason := unavailable():
        print(f"flood_bench: {reason}", file=sys.stderr)
        return 1
    calm, flooded, sent = [], [], 0
    with Lab(3, options.rate) as lab, Cluster(lab) as cluster:
        for _ in range(options.rounds):
            calm.append(_p50_us(cluster, options.size, options.ops))
            command = [sys.executable, "-m", "tests.lab.flood", cluster.addresses[0], str(options.per_second), "600"]
            ports = [str(PORT + 1), str(PORT + 2)]
            flood = lab.host(2).popen([*command, *ports], stdout=subprocess.DEVNULL, cwd=ROOT)
            flooded.append(_p50_us(cluster, options.size, options.ops))
            flood.kill()
            flood.wait()
        counters = cluster.status(0)["engine"]["counters"]
        sent = counters["malformed"] + counters["unknown"]
    ratio = statistics.median(flooded) / statistics.median(calm)
    print(f"{options.size} at {options.rate:g} Mbit/s: p50 {statistics.median(calm) / 1e3:.1f} ms calm, "
          f"{statistics.median(flooded) / 1e3:.1f} ms under {options.per_second} datagrams/s ({sent} refused in all): "
          f"ratio {ratio:.3f}, {'pass' if ratio <= LIMIT else 'FAIL'} (at most {LIMIT})")  # fmt: skip
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
