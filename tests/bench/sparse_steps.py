# SPDX-License-Identifier: Apache-2.0
"""A whole sparse step beside a dense one over real links: `python -m tests.bench.sparse_steps` (root, two minutes).

Hosts of a lab, every link shaped; 25 MB of float32, Laplace, a memory with a carried threshold. A step is the choice,
the exchange and the average, dense in memory. The entries go by `Job.allreduce_sparse`, which the daemons sum. Figures
are ratios of medians in one run: the slowest rank's sparse step to the slowest rank's dense one; and what host 0 sent
in all of a way's steps, everything that left its interfaces counted, to what it sent in the dense ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ultima
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab
from ultima.sparse import Feedback

ROOT = Path(__file__).resolve().parents[2]
ELEMENTS, ROUNDS, LIMIT_S = 25_000_000 // 4, 5, 170.0
RATIOS = (0.001, 0.01, 0.1)
INTERFACES = Path("/proc/self/net/dev")


def sent_bytes() -> int:
    """Bytes that have left this host, a namespace, so far: of all interfaces but the loopback."""
    rows = (row.split(":") for row in INTERFACES.read_text().splitlines()[2:])
    return sum(int(counts.split()[8]) for name, counts in rows if name.strip() != "lo")


def rank(path: Path) -> None:
    """One rank: seconds of the steps by way, the first of each left out, and what it sent."""
    with ultima.connect(timeout=60, arena="128M") as job:
        draw = np.random.default_rng(job.rank)
        gradients = [draw.laplace(size=ELEMENTS).astype(np.float32) for _ in range(ROUNDS)]
        bucket = job.empty(ELEMENTS)
        found: dict[str, list[float]] = {"dense": []}
        job.barrier(deadline="60s")
        before, sent = sent_bytes(), {}
        for gradient in gradients:
            bucket[:] = gradient
            job.barrier(deadline="60s")
            began = time.monotonic()
            job.allreduce(bucket, mode="reliable", deadline="60s")
            found["dense"].append(time.monotonic() - began)
        job.barrier(deadline="60s")
        sent["dense"] = sent_bytes() - before
        for ratio in RATIOS:
            before = sent_bytes()
            memory = Feedback(ELEMENTS, ratio, choose="carried")
            name = f"{ratio:g}"
            found[name], found[f"{name} choosing"] = [], []
            for gradient in gradients:
                job.barrier(deadline="60s")
                began = time.monotonic()
                chosen = memory.select(gradient)
                found[f"{name} choosing"].append(time.monotonic() - began)
                hint = int(ratio * ELEMENTS)
                job.allreduce_sparse(chosen.indices, chosen.values, bucket, hint=hint, mode="reliable", deadline=60)
                found[name].append(time.monotonic() - began)
            job.barrier(deadline="60s")
            sent[name] = sent_bytes() - before
    path.write_text(json.dumps({"seconds": found, "sent": sent}))


def measure(hosts: int, rate_mbit: float) -> dict[str, dict[str, float]]:
    """Medians over the rounds of the slowest rank's seconds by way, and what a rank sent. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="ultima-steps-") as folder, Lab(hosts, rate_mbit) as lab, \
            Cluster(lab) as cluster:  # fmt: skip
        limit, ranks = time.monotonic() + LIMIT_S, []
        for number in range(hosts):
            command = [sys.executable, "-m", "tests.bench.sparse_steps", "--rank", f"{folder}/{number}.json"]
            with (Path(folder) / f"{number}.out").open("wb") as out:
                ranks.append(lab.host(number).popen(command, cluster.environment(number), cwd=ROOT, stdout=out,
                                                    stderr=subprocess.STDOUT))  # fmt: skip
        for number, each in enumerate(ranks):
            if each.wait(max(0.1, limit - time.monotonic())):
                raise RuntimeError(f"rank {number}: {(Path(folder) / f'{number}.out').read_text()[-2000:]}")
        told = [json.loads((Path(folder) / f"{number}.json").read_text()) for number in range(hosts)]
    found = {}
    for name in told[0]["seconds"]:
        slowest = [max(one["seconds"][name][at] for one in told) for at in range(1, ROUNDS)]
        found[name] = {"seconds": statistics.median(slowest), "sent": told[0]["sent"].get(name, 0.0)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="A sparse step beside a dense one, over shaped links.")
    parser.add_argument("--rank", type=Path, help="be one rank, and write its times to this file")
    parser.add_argument("--hosts", type=int, action="append")
    parser.add_argument("--rate", type=float, action="append", help="of a link in Mbit/s")
    options = parser.parse_args()
    if options.rank:
        rank(options.rank)
        return
    for hosts in options.hosts or (4,):
        for rate in options.rate or (100.0, 1000.0):
            found = measure(hosts, rate)
            dense = found["dense"]
            print(f"{hosts} hosts, {rate:g} Mbit/s: dense {1e3 * dense['seconds']:.0f} ms", flush=True)
            for ratio in RATIOS:
                one, choosing = found[f"{ratio:g}"], found[f"{ratio:g} choosing"]
                print(f"  {ratio:g}: {one['seconds'] / dense['seconds']:.3f} of it ({1e3 * one['seconds']:.0f} ms, "
                      f"{1e3 * choosing['seconds']:.0f} ms choosing), {one['sent'] / dense['sent']:.4f} of the bytes",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
