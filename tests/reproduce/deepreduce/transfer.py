# SPDX-License-Identifier: Apache-2.0
"""D8: what containers save on a slow link: four hosts of a lab at 100 Mbit/s, a tensor of 16 MiB, the largest 10 %."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cluster import Cluster
from tests.lab.lab import Lab, unavailable
from tests.reproduce.deepreduce.rank import ELEMENTS, ROUNDS, SUMMED, WAYS
from tests.reproduce.study import ROOT, Grid, Row, Study

HOSTS, RATE_MBIT, LIMIT_S = 4, 100, 150.0
SMALL, OURS = "BF-P0 and QSGD", "delta and QSGD"


@dataclass(frozen=True)
class Way:
    """Medians over the rounds of the slowest rank's seconds, and bytes that a rank sends."""

    step: float
    gather: float
    encode: float
    cpu: float
    """CPU seconds of a rank in a step: what a busy machine changes least."""
    bytes: float


def measure() -> dict[str, Way]:
    """Raises RuntimeError if a rank fails, LabError if there is no lab."""
    with tempfile.TemporaryDirectory(prefix="ultima-deepreduce-") as folder, Lab(HOSTS, RATE_MBIT) as lab, \
            Cluster(lab) as cluster:  # fmt: skip
        ranks, limit = [], time.monotonic() + LIMIT_S
        for rank in range(HOSTS):
            with (Path(folder) / f"{rank}.out").open("wb") as out:
                command = [sys.executable, "-m", "tests.reproduce.deepreduce.rank", f"{folder}/{rank}.json"]
                ranks.append(lab.host(rank).popen(command, cluster.environment(rank), cwd=ROOT, stdout=out,
                                                  stderr=subprocess.STDOUT))  # fmt: skip
        for number, rank in enumerate(ranks):
            try:
                status = rank.wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = None
            if status != 0:
                raise RuntimeError(f"rank {number}: {status}: {(Path(folder) / f'{number}.out').read_text()[-2000:]}")
        told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(HOSTS)]
    return {name: _way([one[name] for one in told]) for name in told[0]}


def _way(ranks: list[list[dict[str, float]]]) -> Way:
    def slowest(field: str) -> float:
        return statistics.median(max(rank[at].get(field, 0.0) for rank in ranks) for at in range(len(ranks[0])))

    return Way(slowest("step"), slowest("gather"), slowest("encode"), slowest("cpu"), slowest("bytes"))


def judge(found: dict[str, Way]) -> list[Row]:
    top, dense, small = found["Top-r"], found["dense"], found[SMALL]
    apart = {name: (way.gather / top.gather) / (way.bytes / top.bytes) for name, way in found.items() if name in WAYS}
    told = ", ".join(f"{name} {value:.2f}" for name, value in apart.items() if name != "Top-r")
    gain, ours = dense.step / small.step, dense.step / found[OURS].step
    return [
        Row("D8: time on the wire follows the volume", "communication 15 % less (WAN)",
            f"time to volume, Top-r 1: {told}", "within 15 %", all(abs(value - 1) <= 0.15 for value in apart.values())),
        Row(f"D8: a whole step with {SMALL} to a dense one",
            "1.8 to 4.0 times at 100 Mbit/s; 7.8 times the baseline", f"{gain:.2f} times as fast", "at least 2 times",
            gain >= 2),
        Row(f"D8: a whole step with {OURS} to a dense one", "not in the paper", f"{ours:.2f} times as fast",
            "at least 2 times", ours >= 2),
        Row(f"D8: a whole step with {SMALL} to Top-r", "1.5 to 3.4 times the encoding time",
            f"{top.step / small.step:.2f} times as fast; encoding takes {1e3 * small.encode:.0f} ms, "
            f"{1e3 * top.encode:.0f} ms of Top-r", "reported", None),
    ]  # fmt: skip


def summed(found: dict[str, Way]) -> Row:
    ours, holds = "not measured: the engine of this run did not sum entries", None
    if SUMMED in found:
        gain = found["dense"].step / found[SUMMED].step
        ours, holds = f"{gain:.2f} times as fast", gain >= 2
    return Row("D8: the same by a sum in the network", "-", ours, "at least 2 times dense at 100 Mbit/s", holds)


def run() -> Study:
    study = Study(
        "transfer",
        "D8: containers over a slow link",
        f"{HOSTS} hosts in namespaces, every link shaped to {RATE_MBIT} Mbit/s, {4 * ELEMENTS >> 20} MiB of float32, "
        f"the largest 10 % with error feedback; {ROUNDS} rounds in turn, medians of the slowest rank. Dense is this "
        "project's reliable allreduce. Containers are gathered: each rank sends its own to the three others. A barrier "
        "before the gathering keeps waiting for slower encoders out of the time on the wire; it is part of the step. "
        "The hosts share this machine's cores, so that computing weighs more than on hosts of their own; the load of "
        f"the machine before the run was {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.",
    )
    reason = unavailable()
    if reason:
        study.rows = [Row("D8: containers at 100 Mbit/s", "1.8 to 4.0 times", reason, "at least 2 times", None)]
        return study
    found = measure()
    grid = Grid("Seconds, and MB that a rank sends", ("way", "step", "on the wire", "encoding", "CPU of a rank", "MB"))
    for name, way in found.items():
        grid.rows.append(
            (name, f"{way.step:.3f}", f"{way.gather:.3f}", f"{way.encode:.3f}", f"{way.cpu:.3f}",
             f"{way.bytes / 1e6:.2f}")
        )  # fmt: skip
    study.grids.append(grid)
    study.rows = [*judge(found), summed(found)]
    return study
