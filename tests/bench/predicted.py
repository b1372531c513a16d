# SPDX-License-Identifier: Apache-2.0
"""What `ultima simulate` predicts beside what a lab measures: p50 of an op on the slowest host, and their ratio.

    python -m tests.bench.predicted                              all cases (root, three minutes, a quiet machine)
    python -m tests.bench.predicted --rates 100 --losses 0 --ops 3
    python -m tests.bench.predicted --only lab                   one of the two, so that the other can wait

Asked: within 5 % where the CPU is not the limit; the share of the machine's CPU that was busy stands beside.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import ExitStack

from tests.bench.usage import Meter
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab, unavailable
from ultima.admin.simulator import predict

QUEUE_MS, BURST_MS, WARM = 20, 2, 3
FULL, UNCOUNTED = 1538, 24  # bytes of a full packet on a cable, and of those what a shaper does not see
DEADLINE_US = 60_000_000


def simulated(hosts: int, rate: int, loss: float, size: int, ops: int) -> tuple[float, float]:
    """Median in ms, and what the wire needs, of the same network and bucket in virtual time. The lab's shapers do not
    count what a cable carries besides frames: preamble, check sequence and gap, 24 bytes a packet. And they make up for
    rests: after one, data passes at once that a cable would take BURST_MS for, which is little beside an op."""
    knobs = {
        "hosts": hosts,
        "rate_mbit": round(rate * FULL / (FULL - UNCOUNTED)),
        "delay_us": 1,
        "queue_bytes": rate * 125 * (QUEUE_MS + BURST_MS),
        "loss_ppm": round(loss * 10_000),
        "deadline_us": DEADLINE_US,
        "bytes": size,
    }
    found = predict(knobs, 1, -(-ops // 28))
    return found.p50_us / 1e3, found.bound_us / 1e3


def measured(lab: Lab, cluster: Cluster, loss: float, size: int, ops: int) -> tuple[float, float]:
    """Median in ms, and the share of the machine's CPU that was busy. Raises RuntimeError if a rank fails."""
    lab.set_loss(loss)
    meter = Meter()
    run = cluster.perf("-b", str(size), "-n", str(ops), "-w", str(WARM), "-c", "0", timeout=180)
    used = meter.used()
    if any(run.statuses):
        raise RuntimeError(run.explain())
    p50_us = float(run.report["results"][0]["in_place"]["p50_us"])
    return p50_us / 1e3, used.cpu_s / (used.seconds * (os.cpu_count() or 1))


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", type=int, nargs="+", default=[1000, 100], help="Mbit/s of each link")
    parser.add_argument("--losses", type=float, nargs="+", default=[0.0, 1.0], help="percent of packets")
    parser.add_argument("--bytes", type=int, default=25_000_000, help="of a bucket")
    parser.add_argument("--ops", type=int, default=8, help="at 100 Mbit/s; above, three times as many")
    parser.add_argument("--unit", choices=("packet", "burst"), default="packet", help="burst: less CPU, and no loss")
    parser.add_argument("--only", choices=("lab", "simulator"))
    flags = parser.parse_args()
    if flags.only != "simulator" and (why := unavailable()):
        print(f"predicted: {why}", file=sys.stderr)
        return 1
    print(f"{flags.hosts} hosts, {flags.bytes} B, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'Mbit/s':>7} {'loss':>5} {'lab ms':>9} {'sim ms':>9} {'sim/lab':>8} {'wire ms':>9} {'CPU':>5}")
    for rate in flags.rates:
        ops = flags.ops if rate <= 100 else 3 * flags.ops
        with ExitStack() as stack:
            if flags.only != "simulator":
                network = Lab(flags.hosts, rate, 0, flags.unit, queue_ms=QUEUE_MS, burst_kb=rate * BURST_MS // 8)
                lab = stack.enter_context(network)
                cluster = stack.enter_context(Cluster(lab, anew=True))
            for loss in flags.losses:
                lab_ms = cpu = sim_ms = wire_ms = math.nan
                if flags.only != "simulator":
                    lab_ms, cpu = measured(lab, cluster, loss, flags.bytes, ops)
                if flags.only != "lab":
                    sim_ms, wire_ms = simulated(flags.hosts, rate, loss, flags.bytes, ops)
                row = (
                    f"{rate:7} {loss:4g}% {lab_ms:9.2f} {sim_ms:9.2f} {sim_ms / lab_ms:8.3f} {wire_ms:9.2f} {cpu:5.0%}"
                )
                print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
