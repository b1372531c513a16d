# SPDX-License-Identifier: Apache-2.0
"""A whole sparse step beside a dense one over real links: `python -m tests.bench.sparse_steps` (root, two minutes).

Hosts of a lab, every link shaped; 25 MB of float32, Laplace, a memory with a sampled threshold. A step is the choice,
the exchange and the average, dense in memory. The entries go by `Job.allreduce_sparse`, which the daemons sum. Figures
are ratios of medians in one run: the slowest rank's sparse step to the slowest rank's dense one; what host 0 sent in
all of a way's steps, everything that left its interfaces counted, to what it sent in the dense ones; and CPU time of a
step, of all ranks and of all daemons, which other work on the machine moves less than times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import ultima
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab
from ultima.sparse import Feedback

ROOT = Path(__file__).resolve().parents[2]
ELEMENTS, ROUNDS, GRADIENTS, LIMIT_S = 25_000_000 // 4, 5, 5, 170.0
RATIOS = (0.001, 0.01, 0.1)
INTERFACES = Path("/proc/self/net/dev")


def sent_bytes() -> int:
    """Bytes that have left this host, a namespace, so far: of all interfaces but the loopback."""
    rows = (row.split(":") for row in INTERFACES.read_text().splitlines()[2:])
    return sum(int(counts.split()[8]) for name, counts in rows if name.strip() != "lo")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, in seconds."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Spent:
    """What a way cost a host: bytes that left it, CPU time of its rank and of its daemon."""

    def __init__(self, daemon: int) -> None:
        self._daemon, self._before = daemon, self._now(daemon)

    @staticmethod
    def _now(daemon: int) -> tuple[float, float, float]:
        return float(sent_bytes()), time.process_time(), cpu_s(daemon)

    def told(self, rounds: int) -> dict[str, float]:
        """In all, and CPU time for each of so many steps."""
        sent, mine, its = (now - then for now, then in zip(self._now(self._daemon), self._before, strict=True))
        return {"sent": sent, "rank_cpu": mine / rounds, "daemon_cpu": its / rounds}


def rank(path: Path, daemon: int, ratios: Sequence[float], rounds: int) -> None:
    """One rank: seconds of the steps by way, the first of each left out, and what it sent and spent."""
    with ultima.connect(timeout=60, arena="128M") as job:
        draw = np.random.default_rng(job.rank)
        gradients = [draw.laplace(size=ELEMENTS).astype(np.float32) for _ in range(GRADIENTS)]
        bucket = job.empty(ELEMENTS)
        found: dict[str, list[float]] = {"dense": []}
        job.barrier(deadline="60s")
        spent, told = Spent(daemon), {}
        for step in range(ROUNDS):
            bucket[:] = gradients[step % GRADIENTS]
            job.barrier(deadline="60s")
            began = time.monotonic()
            job.allreduce(bucket, mode="reliable", deadline="60s")
            found["dense"].append(time.monotonic() - began)
        job.barrier(deadline="60s")
        told["dense"] = spent.told(ROUNDS)
        for ratio in ratios:
            memory = Feedback(ELEMENTS, ratio, choose="sampled")
            name, spent = f"{ratio:g}", Spent(daemon)
            found[name], found[f"{name} choosing"] = [], []
            for step in range(rounds):
                job.barrier(deadline="60s")
                began = time.monotonic()
                chosen = memory.select(gradients[step % GRADIENTS])
                found[f"{name} choosing"].append(time.monotonic() - began)
                hint = int(ratio * ELEMENTS)
                job.allreduce_sparse(chosen.indices, chosen.values, bucket, hint=hint, mode="reliable", deadline=60)
                found[name].append(time.monotonic() - began)
            job.barrier(deadline="60s")
            told[name] = spent.told(rounds)
    path.write_text(json.dumps({"seconds": found, "spent": told}))


def measure(hosts: int, rate_mbit: float, ratios: Sequence[float], rounds: int) -> dict[str, dict[str, float]]:
    """By way: medians over the rounds of the slowest rank's seconds, what a rank sent, and CPU time of a step, of all
    ranks and of all daemons. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="ultima-steps-") as folder, Lab(hosts, rate_mbit) as lab, \
            Cluster(lab) as cluster:  # fmt: skip
        limit, ranks = time.monotonic() + LIMIT_S, []
        for number in range(hosts):
            command = [sys.executable, "-m", "tests.bench.sparse_steps", "--rank", f"{folder}/{number}.json",
                       "--daemon", str(cluster.daemons[number].pid), "--rounds", str(rounds)]  # fmt: skip
            command += [word for ratio in ratios for word in ("--ratio", f"{ratio:g}")]
            with (Path(folder) / f"{number}.out").open("wb") as out:
                ranks.append(lab.host(number).popen(command, cluster.environment(number), cwd=ROOT, stdout=out,
                                                    stderr=subprocess.STDOUT))  # fmt: skip
        for number, each in enumerate(ranks):
            if each.wait(max(0.1, limit - time.monotonic())):
                raise RuntimeError(f"rank {number}: {(Path(folder) / f'{number}.out').read_text()[-2000:]}")
        told = [json.loads((Path(folder) / f"{number}.json").read_text()) for number in range(hosts)]
    found = {}
    for name in told[0]["seconds"]:
        slowest = [max(times) for times in zip(*(one["seconds"][name] for one in told), strict=True)]
        found[name] = {"seconds": statistics.median(slowest[1:])}
        if name in told[0]["spent"]:
            found[name]["sent"] = told[0]["spent"][name]["sent"] / len(slowest)
            for who in ("rank_cpu", "daemon_cpu"):
                found[name][who] = sum(one["spent"][name][who] for one in told)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="A sparse step beside a dense one, over shaped links.")
    parser.add_argument("--rank", type=Path, help="be one rank, and write its times to this file")
    parser.add_argument("--hosts", type=int, action="append")
    parser.add_argument("--rate", type=float, action="append", help="of a link in Mbit/s")
    parser.add_argument("--ratio", type=float, action="append", help="share that is sent; 0.001, 0.01 and 0.1")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="steps of each share")
    parser.add_argument("--daemon", type=int, help="of a rank: the process whose CPU time is told")
    options = parser.parse_args()
    ratios = options.ratio or RATIOS
    if options.rank:
        rank(options.rank, options.daemon, ratios, options.rounds)
        return
    for hosts in options.hosts or (4,):
        for rate in options.rate or (100.0, 1000.0):
            found = measure(hosts, rate, ratios, options.rounds)
            dense = found["dense"]
            print(
                f"{hosts} hosts, {rate:g} Mbit/s: dense {1e3 * dense['seconds']:.0f} ms, CPU {_cpu(dense)}", flush=True
            )
            for ratio in ratios:
                one, choosing = found[f"{ratio:g}"], found[f"{ratio:g} choosing"]
                print(f"  {ratio:g}: {one['seconds'] / dense['seconds']:.3f} of it ({1e3 * one['seconds']:.0f} ms, "
                      f"{1e3 * choosing['seconds']:.0f} ms choosing), {one['sent'] / dense['sent']:.4f} of the bytes, "
                      f"CPU {_cpu(one)}", flush=True)  # fmt: skip


def _cpu(way: dict[str, float]) -> str:
    return f"{1e3 * way['rank_cpu']:.0f} ms in ranks and {1e3 * way['daemon_cpu']:.0f} ms in daemons"


if __name__ == "__main__":
    main()
