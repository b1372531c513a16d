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
import threading
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.e2e.elastic import enter, enter_all
from tests.e2e.hosts import new_job_name
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab, unavailable
from tests.soak.elastic import LabMachine
from ultima import ElasticJob

MEMBERS, NEWCOMER = 3, 3
BEFORE_S = 5.0
WAYS = ("sync_state", "follow")


class Member:
    """A host that does one op after another, and gives the state to who asks."""

    def __init__(self, job: ElasticJob, state: dict[str, Any], elements: int) -> None:
        self.job, self._state, self._elements = job, state, elements
        self.steps: list[float] = []
        """When each step began, `share` before its op."""
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        data, step = np.empty(self._elements, np.float32), 0
        while not self.end.is_set():
            self.steps.append(time.monotonic())
            self.job.share(self._state, revision=step)
            data[:] = 1.0
            self.job.allreduce(data, "sum", deadline="500ms")
            step += 1


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


def measure(way: str, rate: float, megabytes: float, op_mb: float) -> dict[str, float | str]:
    """One newcomer, in a lab of its own."""
    size = round(megabytes * 1e6)
    state = {"weights": np.random.default_rng(1).integers(0, 256, size, np.uint8)}
    own = {"weights": np.zeros(size, np.uint8)}
    with Lab(MEMBERS + 1, rate, unit="packet") as lab, Cluster(lab, anew=True) as cluster:
        hosts, name = [LabMachine(cluster, index) for index in range(MEMBERS + 1)], new_job_name()
        options: dict[str, Any] = {"most": MEMBERS + 1, "least": 2, "timeout": 60, "arena": "64M"}
        members: list[Member] = []
        try:
            made = enter_all(dict(enumerate(hosts[:MEMBERS])), hosts[0], name, **options)  # type: ignore[arg-type]
            members += [Member(job, state, round(op_mb * 1e6 / 4)) for job in made.values()]
            time.sleep(BEFORE_S + 1)
            began = time.monotonic()
            with enter(hosts[NEWCOMER], hosts[0], name, follow=way == "follow", **options) as job:
                seconds, report = come(job, way, own)
                ended = time.monotonic()
            if own["weights"].tobytes() != state["weights"].tobytes():
                raise RuntimeError("the newcomer has another state")
            before, meanwhile = steps_ms(members, began - BEFORE_S, began), steps_ms(members, began, ended)
        finally:
            for member in members:
                member.end.set()
            for member in members:
                member.thread.join(60)
                member.job.close()
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
    asked = parser.parse_args()
    if (reason := unavailable()) is not None:
        parser.error(reason)
    rows = [measure(way, asked.rate, asked.state, asked.op) for way in WAYS]
    table = Table(title=f"{asked.state:g} MB of state at {asked.rate:g} Mbit/s; ops of {asked.op:g} MB")
    for heading in rows[0]:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
