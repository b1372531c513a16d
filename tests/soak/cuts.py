# SPDX-License-Identifier: Apache-2.0
"""An elastic job whose network is cut in two, again and again: what goes on where, and how soon it is one job again.

    python -m tests.soak.cuts --cuts 200 --seconds 10                  root
    python -m tests.soak.cuts --split "go on" --round-trip 50

Where each cut goes is random, and so is how many hosts each side has. It prints how long after a cut the side that goes
on had a complete op of its own hosts, how long after a healing all hosts had one view, and how long until each of them
had a complete op with all. Times in ms. The exit status is 0 when of each cut exactly one side went on (both of them,
if the job says so), all hosts came together again, no result was wrong, and no receipt untrue.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from tests.bench.rig import quantile
from tests.e2e.hosts import new_job_name
from tests.lab.cluster import Cluster
from tests.lab.distance import Far
from tests.lab.lab import Lab, unavailable
from tests.soak.churn import Life, Seen
from tests.soak.elastic import LabMachine
from ultima import Status

LOOK_S = 0.005
HEALS_S = 60.0
LEAST_S = 8.0  # of a cut: until it is noticed and a branch is made, both sides have results of the view before
REST_S = 1.0  # between two cuts: what comes of one is not of the next


@dataclass
class Cuts:
    """What was seen of all cuts. Times in seconds; infinity for what did not happen."""

    alone: list[float] = field(default_factory=list)
    one_view: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def until(holds: Callable[[], bool], seconds: float) -> float:
    """The seconds until something held; infinity if it did not within so many."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + seconds:
            return math.inf
        time.sleep(LOOK_S)
    return time.monotonic() - began


def ranks(lives: Sequence[Life]) -> tuple[int, ...]:
    return tuple(sorted(life.rank for life in lives))


def completed(lives: Sequence[Life], since: float, of: tuple[int, ...]) -> bool:
    """Whether each of these hosts has had a complete op of just these ranks that began after a moment."""
    last = [life.log[-1] for life in lives]
    return all(op.began > since and op.status is Status.COMPLETE and op.members == of for op in last)


def goes_on(lives: Sequence[Life], since: float) -> bool:
    """Whether any of these hosts had a result of an op that began after a moment."""
    ends = [op for life in lives for op in life.log[-200:] if op.began > since]
    return any(op.status is not Status.INSUFFICIENT for op in ends)


def cut(lab: Lab, lives: Sequence[Life], some: set[int], seconds: float, on_sides: int, found: Cuts) -> None:
    """One cut and its healing. `on_sides`: how many sides are to go on."""
    sides = [[life for life in lives if (life.number in some) is apart] for apart in (False, True)]
    began = time.monotonic()
    lab.set_partition(*([life.number for life in side] for side in sides))
    found.alone.append(until(lambda: any(completed(side, began, ranks(side)) for side in sides), seconds))
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    on = sum(goes_on(side, time.monotonic() - seconds / 4) for side in sides)
    what = f"cut {len(found.alone)}, hosts {sorted(some)} apart"
    if on != on_sides:
        found.wrong.append(f"{what}: {on} sides went on; {[life.view for life in lives]}")
    lab.set_partition()
    healed = time.monotonic()

    def one_view() -> bool:
        return len({life.view.number for life in lives}) == 1 and {life.view.ranks for life in lives} == {ranks(lives)}

    found.one_view.append(until(one_view, HEALS_S))
    until(lambda: completed(lives, healed, ranks(lives)), HEALS_S - (time.monotonic() - healed))
    together = completed(lives, healed, ranks(lives))
    found.whole.append(time.monotonic() - healed if together else math.inf)
    if not together:
        found.wrong.append(f"{what}: not one job {HEALS_S:g} s after the healing; {[life.view for life in lives]}")


def cuts(lab: Lab, cluster: Cluster, count: int, seconds: float, split: str, draw: random.Random) -> Cuts:
    """So many cuts of a job with a rank on each host of a lab."""
    found, seen, name = Cuts(), Seen(), new_job_name()
    hosts = [LabMachine(cluster, index) for index in range(len(lab.hosts))]
    most, everybody = len(hosts), range(len(hosts))
    lives = [Life(n, hosts[n], hosts[0], name, most, seen, split=split) for n in everybody]
    try:
        if until(lambda: all(life.log for life in lives) and completed(lives, 0.0, ranks(lives)), HEALS_S) < math.inf:
            for _ in range(count):
                some = set(draw.sample(everybody, draw.randint(1, most - 1)))
                cut(lab, lives, some, seconds, 1 if split == "wait" else 2, found)
                time.sleep(REST_S)
        else:
            found.wrong.append(f"the job did not begin within {HEALS_S:g} s")
    finally:
        lab.set_partition()
        for life in lives:
            life.end.set()
        for life in lives:
            life.thread.join(60)
    found.wrong += [text for life in lives for text in life.wrong]
    found.wrong += [f"host {life.number}: a call did not return" for life in lives if life.thread.is_alive()]
    return found


def report(found: Cuts, out: Console) -> bool:
    """Prints the table, and says whether all is well."""
    table = Table(title=f"{len(found.alone)} cuts")
    for heading in ("ms", "p50", "p90", "p99", "most"):
        table.add_column(heading, justify="left" if heading == "ms" else "right", no_wrap=True)
    rows = {"cut to a complete op of one side": found.alone, "healing to one view": found.one_view,
            "healing to a complete op of all": found.whole}  # fmt: skip
    for name, values in rows.items():
        told = [f"{quantile(values, percent) * 1e3:.0f}" for percent in (50, 90, 99, 100)] if values else ["-"] * 4
        table.add_row(name, *told)
    out.print(table)
    for text in found.wrong[:10]:
        out.print(text, markup=False, highlight=False)
    out.print(f"{len(found.wrong)} cuts that went wrong, wrong results, untrue receipts, or calls that failed")
    return not found.wrong


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each cut")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--split", choices=("wait", "go on"), default="wait", help="what the smaller side does")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--round-trip", type=float, default=0.0, metavar="MS", help="between hosts")
    parser.add_argument("--loss", type=float, default=0.0, metavar="PERCENT", help="of frames")
    asked = parser.parse_args()
    if asked.seconds < LEAST_S:
        parser.error(f"--seconds {asked.seconds:g}: allowed: {LEAST_S:g} or more")
    if (reason := unavailable()) is not None:
        parser.error(reason)
    out = Console(width=120)
    out.print(
        f"--cuts {asked.cuts} --seconds {asked.seconds} --split {asked.split!r} --seed {asked.seed}", highlight=False
    )
    far = Far(asked.round_trip, asked.loss) if asked.round_trip or asked.loss else None
    with Lab(asked.hosts, far=far) as lab, Cluster(lab) as cluster:
        found = cuts(lab, cluster, asked.cuts, asked.seconds, asked.split, random.Random(asked.seed))
    return 0 if report(found, out) else 1


if __name__ == "__main__":
    sys.exit(main())
