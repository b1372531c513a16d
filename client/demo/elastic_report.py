# SPDX-License-Identifier: Apache-2.0
"""What `ultima demo --elastic` says at the end: two trainings beside each other, and the views of the second one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from ultima.demo.elastic_play import Outcome
from ultima.demo.report import new_table, say

DEVIATIONS = 3.0  # of the difference of two accuracies, beyond which it is no chance


def allowed(first: Outcome, second: Outcome) -> float:
    """How far two accuracies may be apart by chance: three standard deviations of the difference of two shares of as
    many images, or one image where all are named rightly."""
    share, images = (first.accuracy + second.accuracy) / 2, first.test_images
    return max(DEVIATIONS * math.sqrt(2 * share * (1 - share) / images), 1 / images)


def faults(first: Outcome, second: Outcome) -> Iterator[str]:
    """What is not as it has to be, in sentences."""
    for run in (first, second):
        if not run.replicas_equal:
            yield f"{run.name}: the replicas differ"
        yield from (f"{run.name}: untrue receipt: {text}" for text in run.untrue)
    if abs(first.accuracy - second.accuracy) > allowed(first, second):
        yield (
            f"accuracy: {first.accuracy:.2%} and {second.accuracy:.2%}: allowed: "
            f"{allowed(first, second):.2%} apart, which chance explains"
        )
    if second.came is not None and not second.ops_of(second.came[0]):
        yield f"host {second.came[0]} came too late to take part"
    if second.killed is not None and not any(
        second.seats[second.killed[0]] not in view["ranks"] for view in second.views.values()
    ):
        yield f"host {second.killed[0]} was killed, and no view is without it"


def hosts_of(run: Outcome) -> dict[int, list[int]]:
    """The hosts of each view, by its number. A seat is another host's once the one that had it is out."""
    taken = {seat: host for host, seat in run.seats.items() if run.came is None or host != run.came[0]}
    found: dict[int, list[int]] = {}
    before: set[int] = set(taken)
    for number in sorted(run.views):
        ranks = set(run.views[number]["ranks"])
        if run.came is not None and run.came[0] in run.seats and run.seats[run.came[0]] in ranks - before:
            taken[run.seats[run.came[0]]] = run.came[0]
        found[number] = sorted(taken[rank] for rank in ranks if rank in taken)
        before = ranks
    return found


def print_summary(console: Console, first: Outcome, second: Outcome, wall_s: float) -> None:
    """Accuracy of both, the views of the second, and what its receipts say."""
    table = new_table("The same training twice")
    for name in ("hosts", "accuracy", "steps", "ops", "complete", "partial", "replicas", "untrue receipts"):
        table.add_column(name, justify="left" if name == "hosts" else "right", no_wrap=True)
    for what, run in (("stay", first), ("one is killed, one comes", second)):
        total = run.total
        table.add_row(
            what,
            f"{run.accuracy:.2%}",
            f"{max(each['steps'] for each in run.results.values()):,}",
            *(f"{total[name]:,}" for name in ("ops", "complete", "partial")),
            "equal" if run.replicas_equal else "differ",
            str(len(run.untrue)),
        )
    console.print(table)
    console.print(_views_table(second))
    for text in texts(first, second):
        say(console, text)
    say(console, f"Took {wall_s:.0f} s in all.")


def texts(first: Outcome, second: Outcome) -> Iterator[str]:
    """What happened in the second training, and how the two compare."""
    if second.killed is not None:
        host, step = second.killed
        yield f"Host {host} (rank {second.seats[host]}) was killed after step {step}; the others did not stop."
    if second.came is not None:
        host, step = second.came
        taken = second.states.get(host)
        text = f"Host {host} was told to come after step {step}"
        if taken:
            state = taken[0]
            givers = ("rank " if len(state["sources"]) == 1 else "ranks ") + ", ".join(map(str, state["sources"]))
            text += (
                f", got {state['bytes'] / 1e6:.1f} MB of state from {givers} in {state['seconds']:.2f} s, and took "
                f"part from step {second.results[host]['first_step']} on"
            )
        yield f"{text}."
    yield (
        f"Accuracy: {first.accuracy:.2%} where hosts stay, {second.accuracy:.2%} with the change. Chance alone allows "
        f"{100 * allowed(first, second):.1f} points between two trainings, as there are {first.test_images} images."
    )
    checked = first.total["ops"] + second.total["ops"]
    yield f"Each of {checked:,} receipts was compared with the marks in its sum, which show whose gradients are in it."


def _views_table(run: Outcome) -> Table:
    table = new_table("Who was in the job, and why it changed")
    for name in ("view", "from op", "ranks", "hosts", "why"):
        table.add_column(name, justify="right" if name in ("view", "from op") else "left", no_wrap=name != "why")
    hosts = hosts_of(run)
    for number, view in sorted(run.views.items()):
        table.add_row(
            str(number),
            f"{view['since']:,}",
            " ".join(map(str, sorted(view["ranks"]))),
            " ".join(map(str, hosts[number])),
            # The daemons name a host by its seat, which is its rank.
            re.sub(r"\bhost (\d+)", r"rank \1", view["why"]),
        )
    return table


def to_json(first: Outcome, second: Outcome, wall_s: float) -> dict[str, Any]:
    """The same for programs. Keys stay; more may come."""
    return {
        "wall_s": wall_s,
        "allowed": allowed(first, second),
        "faults": list(faults(first, second)),
        "trainings": [_run_json(run) for run in (first, second)],
    }


def _run_json(run: Outcome) -> dict[str, Any]:
    hosts = hosts_of(run)
    return {
        "name": run.name,
        "accuracy": run.accuracy,
        "test_images": run.test_images,
        "replicas_equal": run.replicas_equal,
        "untrue": run.untrue,
        "receipts": run.total,
        "killed": None if run.killed is None else {"host": run.killed[0], "after_step": run.killed[1]},
        "came": None if run.came is None else {"host": run.came[0], "after_step": run.came[1]},
        "views": [{**view, "hosts": hosts[number]} for number, view in sorted(run.views.items())],
        "hosts": [
            {
                "host": host,
                "rank": each["rank"],
                "first_step": each["first_step"],
                "accuracy": each["accuracy"],
                "ops": each["ops"],
                "state": run.states.get(host, []),
            }
            for host, each in sorted(run.results.items())
        ],
    }
