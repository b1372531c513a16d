# SPDX-License-Identifier: Apache-2.0
"""An elastic job whose hosts join, leave and are killed in random order: what it costs the others.

    python -m tests.soak.elastic --events 1000 --hosts 4            on loopback; --ranks 2 for two on each host
    python -m tests.soak.elastic --round-trip 0.2 --loss 1          in a lab of namespaces behind a switch; root

It prints, of each kind of event, how long the longest op of the hosts that stayed was until the next event, beside the
median op; how long after a kill the first op without the killed host ended; how long after its entry a host had its
first complete op; and what the daemon that was never killed holds. Times in ms. The exit status is 0 when no result
was wrong, no receipt untrue, no digest divergent, and that daemon came back to what it held.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.rig import quantile
from tests.e2e.hosts import running
from tests.lab.cluster import PORT, Cluster
from tests.lab.distance import Far
from tests.lab.lab import Lab, unavailable
from tests.soak.churn import Churn, Life, Machine, churn
from tests.soak.growth import MIB, Sample, sample
from ultima import Status

LOOK_S = 3.0  # after an event, at most: what comes later is not of it
KINDS = ("join", "leave", "kill")


class LabMachine:
    """The daemon of one host of a lab."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        self._cluster, self._index = cluster, index

    @property
    def rendezvous(self) -> str:
        return f"{self._cluster.addresses[self._index]}:{PORT}"

    @property
    def socket(self) -> Path:
        return self._cluster.socket(self._index)

    @property
    def pid(self) -> int:
        return self._cluster.daemons[self._index].pid

    def kill(self) -> None:
        self._cluster.kill(self._index)

    def launch(self) -> None:
        self._cluster.launch(self._index)

    def wait_until_ready(self) -> None:
        self._cluster.wait_until_ready(self._index)


@contextmanager
def machines(count: int, far: Far | None) -> Iterator[Sequence[Machine]]:
    """So many daemons, on loopback or so far from each other."""
    if far is None:
        with running(count) as hosts:
            yield hosts
        return
    with Lab(count, far=far) as lab, Cluster(lab) as cluster:
        yield [LabMachine(cluster, index) for index in range(count)]


def pauses(found: Churn, usual: float) -> dict[str, list[float]]:
    """Of each event the seconds by which the longest op of those that stayed was longer than the usual one. Of an op
    that the next event falls into only the time before that is of this one."""
    following = [event.at for event in found.events[1:]] + [math.inf]
    ret: dict[str, list[float]] = {kind: [] for kind in KINDS}
    starts = [[op.began for op in life.log] for life in found.past]
    for event, then in zip(found.events, following, strict=True):
        until, longest = min(then, event.at + LOOK_S), 0.0
        for life, began in zip(found.past, starts, strict=True):
            ops = life.log[max(0, bisect_left(began, event.at) - 1) : bisect_left(began, until)]
            if life.host != event.number and life.log and life.log[0].ended < event.at < life.log[-1].began:
                longest = max([longest, *(min(op.ended, then) - op.began for op in ops if op.ended > event.at)])
        ret[event.what].append(max(0.0, longest - usual))
    return ret


def gone_after(found: Churn) -> list[float]:
    """Of each kill the seconds until somebody's first op without the killed host ended."""
    ret = []
    for event in found.events:
        dead = [life for life in found.past if life.host == event.number and life.entered and life.entered < event.at]
        if event.what != "kill" or not dead:
            continue
        rank = max(dead, key=lambda life: life.entered).rank
        ends = [_first_without(life, event.at, rank) for life in found.past if life.host != event.number]
        ret += [min(ends) - event.at] if min(ends, default=float("inf")) < float("inf") else []
    return ret


def _first_without(life: Life, at: float, rank: int) -> float:
    ends = (op.ended for op in life.log if op.began > at and op.members and rank not in op.members)
    return next(ends, float("inf"))


def ready_after(found: Churn) -> list[float]:
    """Of each life but the first two the seconds from its entry to the end of its first complete op."""
    done = [(life.entered, next((op.ended for op in life.log if op.status is Status.COMPLETE), None))
            for life in found.past if life.entered > found.events[0].at]  # fmt: skip
    return [ended - entered for entered, ended in done if ended is not None]


def report(found: Churn, samples: Sequence[Sample], out: Console) -> bool:
    """Prints the tables, and says whether all is well."""
    ops = [op for life in found.past for op in life.log]
    usual = statistics.median(op.ended - op.began for op in ops if op.status is Status.COMPLETE)
    table = Table(title=f"{len(found.events)} events, {len(ops)} ops; the median op takes {usual * 1e3:.2f} ms")
    for heading in ("ms", "count", "p50", "p90", "p99", "most"):
        table.add_column(heading, justify="left" if heading == "ms" else "right", no_wrap=True)
    rows = {f"pause of others at a {kind}": each for kind, each in pauses(found, usual).items()}
    rows |= {"kill to the first op without it": gone_after(found), "entry to first complete op": ready_after(found)}
    for name, values in rows.items():
        told = [f"{quantile(values, percent) * 1e3:.1f}" for percent in (50, 90, 99, 100)] if values else ["-"] * 4
        table.add_row(name, str(len(values)), *told)
    out.print(table)
    count = {status.name: sum(op.status is status for op in ops) for status in Status}
    out.print(", ".join(f"{number} {name}" for name, number in count.items() if number), highlight=False)
    fifth = max(1, len(samples) // 5)
    first, last = samples[fifth : 2 * fifth] or samples, samples[-fifth:]
    held = {
        name: [statistics.median(getattr(one, name) for one in each) for each in (first, last)]
        for name in ("private", "descriptors", "threads")
    }
    out.print(
        f"daemon of host 0, second fifth and last: {held['private'][0] / MIB:.1f} and {held['private'][1] / MIB:.1f} "
        f"MiB, {held['descriptors'][0]:.0f} and {held['descriptors'][1]:.0f} descriptors, "
        f"{held['threads'][0]:.0f} and {held['threads'][1]:.0f} threads", highlight=False)  # fmt: skip
    for text in found.wrong[:10]:
        out.print(text, markup=False, highlight=False)
    out.print(f"{len(found.wrong)} wrong results, untrue receipts, divergent digests, or calls that failed")
    flat = all(held[name][1] <= held[name][0] + room for name, room in (("descriptors", 16), ("threads", 2)))
    return not found.wrong and flat


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--round-trip", type=float, default=0.0, metavar="MS", help="between hosts, in a lab")
    parser.add_argument("--loss", type=float, default=0.0, metavar="PERCENT", help="of frames, in a lab")
    asked = parser.parse_args()
    far = Far(asked.round_trip, asked.loss) if asked.round_trip or asked.loss else None
    if far is not None and (reason := unavailable()) is not None:
        parser.error(reason)
    out = Console(width=120)
    out.print(
        f"--events {asked.events} --hosts {asked.hosts} --ranks {asked.ranks} --seed {asked.seed}", highlight=False
    )
    samples: list[Sample] = []
    began = time.monotonic()
    with machines(asked.hosts, far) as hosts:

        def look(_: object) -> None:
            samples.append(sample(hosts[0].pid, time.monotonic() - began))

        found = churn(hosts, asked.events, asked.seed, look, asked.ranks)
    return 0 if report(found, samples, out) else 1


if __name__ == "__main__":
    sys.exit(main())
