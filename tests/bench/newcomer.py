# SPDX-License-Identifier: Apache-2.0
"""What it costs to take a newcomer in that needs a large state: its time beside its link's, and what the others lose.

    python -m tests.bench.newcomer --state 1000 --rate 1000       root; MB of state, Mbit/s of each host's link

Three hosts of a lab do ops. A fourth one comes twice: by `sync_state`, for which the others stand still, and by
`follow`, for which they do not. Prints the time to the state, what the newcomer's link needs for its bytes over that
time, how much of it came from each host, and of the others' steps (`share` and an op): the median before, the median
meanwhile over that, the longest meanwhile, and how many there were in a second over how many before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.e2e.elastic import enter
from tests.e2e.hosts import new_job_name
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab, unavailable
from tests.soak.elastic import LabMachine
from ultima import ElasticJob

MEMBERS, NEWCOMER = 3, 3
BEFORE_S = 5.0
WAYS = ("sync_state", "follow")
spawned = get_context("spawn")


def made(size: int) -> dict[str, Any]:
    """The state, which is the same on all members."""
    return {"weights": np.random.default_rng(1).integers(0, 256, size, np.uint8)}


def work(here: SimpleNamespace, meet: SimpleNamespace, job: str, options: dict[str, Any], size: int, elements: int,
         compute_s: float, line: Any) -> None:  # fmt: skip
    """A process of its own, as a trainer is: steps of so much time without network and an op, until it is told to end.
    It tells then when each step began."""
    state, steps, data = made(size), list[float](), np.empty(elements, np.float32)
    with enter(here, meet, job, **options) as member:  # type: ignore[arg-type]
        line.send("in")
        while not line.poll():
            steps.append(time.monotonic())
            member.share(state, revision=len(steps))
            time.sleep(compute_s)
            data[:] = 1.0
            member.allreduce(data, "sum", deadline="500ms")
    line.send(steps)


class Member:
    """A host that does ops, and gives the state to who asks."""

    def __init__(self, here: LabMachine, meet: LabMachine, *work_for: Any) -> None:
        self.steps: list[float] = []
        self._line, there = spawned.Pipe()
        plain = SimpleNamespace(socket=here.socket), SimpleNamespace(rendezvous=meet.rendezvous)
        self._process = spawned.Process(target=work, args=(*plain, *work_for, there), daemon=True)
        self._process.start()

    def wait(self) -> None:
        """Until it is in. Raises RuntimeError."""
        if not self._line.poll(60) or self._line.recv() != "in":
            raise RuntimeError("a member did not come in within 60 s")

    def end(self) -> None:
        """Its steps are known then."""
        self._line.send("end")
        if self._line.poll(60):
            self.steps = self._line.recv()
        self._process.join(10)
        self._process.kill()


def come(job: ElasticJob, way: str, state: dict[str, Any]) -> tuple[float, Any]:
    """Takes the state; the seconds that took, and the report."""
    began = time.monotonic()
    report = job.sync_state(state) if way == "sync_state" else job.follow(state)
    return time.monotonic() - began, report


def steps_ms(members: list[Member], since: float, until: float) -> list[float]:
    """The steps that began in a time."""
    found = []
    for member in members:
        pairs = zip(member.steps, member.steps[1:], strict=False)
        found += [1e3 * (after - began) for began, after in pairs if since <= began < until]
    return found


def measure(way: str, rate: float, megabytes: float, op_mb: float, compute_s: float) -> dict[str, float | str]:
    """One newcomer, in a lab of its own."""
    size = round(megabytes * 1e6)
    own = {"weights": np.ones(size, np.uint8)}  # in memory, as a model is that was just made
    with Lab(MEMBERS + 1, rate, unit="packet") as lab, Cluster(lab, anew=True) as cluster:
        hosts, name = [LabMachine(cluster, index) for index in range(MEMBERS + 1)], new_job_name()
        options: dict[str, Any] = {"most": MEMBERS + 1, "least": 2, "timeout": 60, "arena": "64M"}
        work_for = hosts[0], name, options, size, round(op_mb * 1e6 / 4), compute_s
        members = [Member(host, *work_for) for host in hosts[:MEMBERS]]
        try:
            for member in members:
                member.wait()
            time.sleep(BEFORE_S + 1)
            began = time.monotonic()
            with enter(hosts[NEWCOMER], hosts[0], name, follow=way == "follow", **options) as job:  # type: ignore[arg-type]
                seconds, report = come(job, way, own)
                ended = time.monotonic()
            if own["weights"].tobytes() != made(size)["weights"].tobytes():
                raise RuntimeError("the newcomer has another state")
        finally:
            for member in members:
                member.end()
    before, meanwhile = steps_ms(members, began - BEFORE_S, began), steps_ms(members, began, ended)
    bound = size * 8 / (rate * 1e6)
    shares = ", ".join(f"{count / size:.2f}" for _, count in sorted(report.sources.items()))
    usual = statistics.median(before)
    return {"way": way, "state, s": f"{seconds:.2f}", "of the link": f"{bound / seconds:.2f}", "from each": shares,
            "step before, ms": f"{usual:.2f}", "meanwhile": f"{statistics.median(meanwhile) / usual:.3f}",
            "longest, ms": f"{max(meanwhile):.0f}",
            "steps a second": f"{len(meanwhile) / (ended - began) * BEFORE_S / len(before):.3f}"}  # fmt: skip


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", type=float, default=1000.0, metavar="MB")
    parser.add_argument("--rate", type=float, default=1000.0, metavar="MBIT")
    parser.add_argument("--op", type=float, default=4.0, metavar="MB")
    parser.add_argument("--compute", type=float, default=0.0, metavar="MS", help="of a step, without network")
    asked = parser.parse_args()
    if (reason := unavailable()) is not None:
        parser.error(reason)
    rows = [measure(way, asked.rate, asked.state, asked.op, asked.compute / 1e3) for way in WAYS]
    title = (
        f"{asked.state:g} MB of state at {asked.rate:g} Mbit/s; ops of {asked.op:g} MB, {asked.compute:g} ms between"
    )
    table = Table(title=title)
    for heading in rows[0]:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
