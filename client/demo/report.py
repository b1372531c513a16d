# SPDX-License-Identifier: Apache-2.0
"""What the demo shows while it trains and what it says at the end: bars and tables on a terminal, plain lines
elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

Way = float | str | None
"""Of gradients: the share of the entries that was sent, the form of their elements; None for all as they are."""
LOCAL = "every "
"""How the way of runs begins that average in rounds, and not in each step."""
PLAIN_PERIOD_S = 2.0
# A relay that is later than this has been kept from the CPU: its timers are exact to a tenth of a millisecond.
LATE_S = 0.005


@dataclass(frozen=True)
class Run:
    """One training: its seed, how it was set up, and what rank 0 reported."""

    seed: int
    start: dict[str, Any]
    result: dict[str, Any]
    network: dict[str, Any] | None = None
    """What the relay did meanwhile (`Cluster.weather_report`); None without one."""


class Watcher(Protocol):
    """Sees every event of a training as it comes."""

    def on_event(self, event: dict[str, Any]) -> None: ...


class PlainWatcher:
    """A line at the start, and one every couple of seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_said = 0.0
        self._steps = 0
        self._epochs = 0

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self._steps, self._epochs = event["steps"], event["epochs"]
            self._say(describe_start(event))
        elif event["event"] == "step":
            last = event["epoch"] == self._epochs and event["step"] == self._steps
            now = time.monotonic()
            if last or now - self._last_said >= PLAIN_PERIOD_S:
                self._last_said = now
                at = f"epoch {event['epoch']}/{self._epochs}  step {event['step']}/{self._steps}"
                self._say(f"  {at}  loss {event['loss']:.3f}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class BarWatcher:
    """A bar for the training under way, and a line over it that says what it is."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._task: TaskID | None = None
        self._steps = 0

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self._steps = event["steps"]
            self._progress.console.print(describe_start(event), markup=False, highlight=False)
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task("starting", total=event["steps"] * event["epochs"])
        elif event["event"] == "step" and self._task is not None:
            self._progress.update(
                self._task,
                completed=(event["epoch"] - 1) * self._steps + event["step"],
                description=f"epoch {event['epoch']}  loss {event['loss']:.3f}",
            )


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def _sharers(event: dict[str, Any]) -> str:
    """The ranks of which some may be late: those of a group, or all where they cannot be cut into groups."""
    size, ranks = event["coded"] + 1, event["ranks"]
    return f"all {ranks}" if ranks % size else f"each {size}"


def describe_start(event: dict[str, Any]) -> str:
    return (
        f"LeNet-5 ({event['parameters']:,} parameters) on {event['data']}: {event['train_images']:,} images, "
        f"{event['ranks']} ranks, {event['epochs']} x {event['steps']} steps of {event['batch']} images a rank, "
        f"backend {event['backend']}, seed {event['seed']}"
        + ("" if event.get("policy", "none") == "none" else f", policy {event['policy']}")
        + (f", coded: {event['coded']} of {_sharers(event)} may be late" if event.get("coded") else "")
        + ("" if event.get("sparse") is None else f", {event['sparse']:.2%} of the gradients")
        + (f", gradients in {event['wire']}" if event.get("wire") else "")
    )


def way_of(run: Run) -> Way:
    """How a run's gradients were sent."""
    wire = run.start.get("wire")
    if run.start.get("every"):
        return f"{LOCAL}{run.start['every']} steps" + (f", {wire}" if wire else "")
    way: Way = wire or run.start.get("sparse")
    return way


def ways_of(runs: list[Run]) -> dict[Way, list[Run]]:
    """The runs by how their gradients were sent."""
    found: dict[Way, list[Run]] = {}
    for run in runs:
        found.setdefault(way_of(run), []).append(run)
    return found


def accuracy_mean(runs: list[Run]) -> float:
    return mean(float(run.result["accuracy"]) for run in runs)


def receipts_of(runs: list[Run]) -> list[dict[str, Any]]:
    """The receipt summaries of every rank of every run."""
    return [summary for run in runs for summary in run.result["receipts"]]


def add_up(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of counts and bytes; of the percentiles the median rank's p50 and the worst rank's p99."""
    total = {
        name: sum(summary[name] for summary in summaries)
        for name in (
            "ops",
            "complete",
            "partial",
            "insufficient",
            "failed",
            "expected_bytes",
            "missing_bytes",
            "repaired_bytes",
        )
    }
    total["p50_us"] = median(summary["p50_us"] for summary in summaries)
    total["p99_us"] = max(summary["p99_us"] for summary in summaries)
    return total


def print_summary(console: Console, runs: list[Run], wall_s: float) -> None:
    """The end of the demo: accuracy and step time per seed, then what the receipts say."""
    table = new_table("Training")
    networks = any(run.network for run in runs)
    shares = not networks or len(ways_of(runs)) > 1
    optional = [*(["network"] if networks else []), *(["gradients"] if shares else [])]
    for name in ("seed", *optional, "accuracy", "step p50", "training", "replicas"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            str(run.seed),
            *([_network_name(run)] if networks else []),
            *([gradients_text(way_of(run))] if shares else []),
            f"{run.result['accuracy']:.2%}",
            f"{run.result['step_ms']:.1f} ms",
            f"{run.result['train_s']:.1f} s",
            "equal" if run.result["replicas_equal"] else "differ",
        )
    console.print(table)
    if networks:
        if len({_network_name(run) for run in runs}) > 1:
            console.print(_network_table(runs))
        for text in network_texts(runs):
            say(console, text)
    ways = ways_of(runs)
    if len(runs) > len(ways) and not networks:
        for share, each in ways.items():
            what = "" if len(ways) == 1 else f", {gradients_text(share)}"
            say(console, f"Mean accuracy of {len(each)} seeds{what}: {accuracy_mean(each):.2%}")
    if len(ways) > 1:
        console.print(_ways_table(ways))
        for run in runs:
            if "summary" in run.result["ranks"][0]:
                say(console, f"Seed {run.seed}, rank 0: {run.result['ranks'][0]['summary']}")
            if "last" in run.result["ranks"][0]:
                say(console, f"The last one was {run.result['ranks'][0]['last']}")
        for text in (*computed_texts(runs), *left_texts(runs)):
            say(console, text)
    for run in runs:
        if run.start.get("policy", "none") != "none":
            console.print(_rank_table(run))
            say(console, rates_text(run))
        if run.start.get("coded"):
            console.print(_late_table(run))
            say(console, exact_text(run))
    summaries = receipts_of(runs)
    if summaries:
        total = add_up(summaries)
        table = new_table("Receipts of all ranks")
        table.add_column("what")
        table.add_column("value", justify="right", no_wrap=True)
        for name in ("ops", "complete", "partial", "insufficient", "failed"):
            table.add_row(name, f"{total[name]:,}")
        missing = total["missing_bytes"] / total["expected_bytes"] if total["expected_bytes"] else 0.0
        table.add_row("bytes expected from peers", f"{total['expected_bytes']:,}")
        table.add_row("missing", f"{total['missing_bytes']:,} ({missing:.4%})")
        table.add_row("repaired", f"{total['repaired_bytes']:,}")
        table.add_row("op time p50", f"{total['p50_us'] / 1e3:.2f} ms")
        table.add_row("op time p99, slowest rank", f"{total['p99_us'] / 1e3:.2f} ms")
        console.print(table)
    else:
        say(console, "No receipts: this backend keeps no account of its ops.")
    say(console, f"Took {wall_s:.0f} s in all.")


def gradients_text(share: Way) -> str:
    """What was sent of them."""
    if isinstance(share, str) and share.startswith(LOCAL):
        return share
    if isinstance(share, str):
        return f"in {share}"
    return "dense" if share is None else f"{100 * share:g} % of them"


def _ways_table(ways: dict[Way, list[Run]]) -> Table:
    """Accuracy, bytes and time beside each other, as means over the seeds."""
    table = new_table("How gradients were sent")
    for name in ("gradients", "accuracy", "sent by a rank", "to dense", "step p50", "training"):
        table.add_column(name, justify="right", no_wrap=True)
    sent = {share: [run.result["ranks"][0]["sent_bytes"] for run in each] for share, each in ways.items()}
    told = {share: mean(map(float, each)) for share, each in sent.items() if None not in each}
    for share, each in ways.items():
        table.add_row(
            gradients_text(share),
            f"{accuracy_mean(each):.2%}",
            f"{told[share] / 1e6:.1f} MB" if share in told else "-",
            f"{told[share] / told[None]:.3f}" if share in told and told.get(None) else "-",
            f"{mean(float(run.result['step_ms']) for run in each):.1f} ms",
            f"{mean(float(run.result['train_s']) for run in each):.1f} s",
        )
    return table


def computed_texts(runs: list[Run]) -> Iterator[str]:
    """Of trainings with rounds: how much of the time all ranks computed, and plain DDP beside it with the same seed."""
    for run in runs:
        if not run.start.get("every"):
            continue
        computed = mean(float(rank["computed"]) for rank in run.result["ranks"])
        text = f"Seed {run.seed}, {gradients_text(way_of(run))}: computed {computed:.1%} of the time"
        for plain in runs:
            if plain.seed == run.seed and way_of(plain) is None:
                share = computed * run.result["train_s"] / plain.result["train_s"]
                text += f"; plain DDP {min(1.0, share):.1%}, with as many steps in {plain.result['train_s']:.1f} s"
        yield text


def left_texts(runs: list[Run]) -> Iterator[str]:
    """Of trainings that a site was to leave: what that was to the others."""
    for run in runs:
        if not run.start.get("leaves"):
            continue
        site, seconds = run.start["leaves"]
        if site in run.result["stayed"]:
            yield f"Seed {run.seed}: the training was over before site {site} was to leave, after {seconds:g} s."
            continue
        others = ", ".join(map(str, run.result["stayed"]))
        stayed = f"Sites {others} made all their" if "," in others else f"Site {others} made all its"
        yield (
            f"Seed {run.seed}: site {site} left after {seconds:g} s. {stayed} steps; the longest "
            f"took site 0 {run.result['longest_step_ms']:.0f} ms, half of them {run.result['step_ms']:.1f} ms at most."
        )


def weather_text(loss: float, rate: float, delay: float = 0.0) -> str:
    """What a network does to datagrams."""
    said = [f"round trip {2e3 * delay:g} ms"] if delay else []
    said += [f"{100 * loss:g} % lost"] if loss else []
    said += [f"{rate / 1e6:g} Mbit/s"] if rate else []
    return ", ".join(said) or "as loopback is"


def _network_name(run: Run) -> str:
    return _weather_of(run.network) if run.network else "loopback"


def _weather_of(network: dict[str, Any]) -> str:
    return weather_text(network["loss"], network["rate"], network.get("delay", 0.0))


def _network_table(runs: list[Run]) -> Table:
    """The same training on each network, as means over the seeds; of op times the worst p99 of a rank."""
    table = new_table("The same training on two networks")
    for name in ("network", "accuracy", "step p50", "op p99", "missing", "repaired"):
        table.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    found: dict[tuple[float, float], list[Run]] = {}
    for run in runs:
        if run.network:
            found.setdefault((run.network["loss"], run.network["rate"]), []).append(run)
    for weather, each in found.items():
        total = add_up(receipts_of(each))
        missing = total["missing_bytes"] / total["expected_bytes"] if total["expected_bytes"] else 0.0
        table.add_row(
            weather_text(*weather),
            f"{accuracy_mean(each):.2%}",
            f"{mean(float(run.result['step_ms']) for run in each):.1f} ms",
            f"{total['p99_us'] / 1e3:.1f} ms",
            f"{missing:.4%}",
            f"{total['repaired_bytes'] / 1e6:.2f} MB",
        )
    return table


def network_texts(runs: list[Run]) -> Iterator[str]:
    """What the relay did to the datagrams of each training, and what it could not do."""
    for run in runs:
        network = run.network
        if not network or not (network["loss"] or network["rate"]):
            continue
        lost = network["lost"] / network["came"] if network["came"] else 0.0
        yield (
            f"Seed {run.seed}: the relay lost {network['lost']:,} of {network['came']:,} datagrams ({lost:.2%}), and "
            f"{network['overflowed']:,} more at full queues."
        )
        if network["unread"] or network["late_s"] > LATE_S:
            yield (
                f"This machine was too slow for that network: datagrams left up to {network['late_s'] * 1e3:.0f} ms "
                f"late, and {network['unread']:,} were never read. Step times are too long by that."
            )
    yield "TCP is not beside it: without root nobody can lose its segments. `make lab` and `make bench` do, as root."


def _rank_table(run: Run) -> Table:
    """Who was in the rounds, by the rank that saw the most of them."""
    ranks = run.result["ranks"]
    watcher = max(ranks, key=lambda each: int(each["averaged"]))
    table = new_table(f"Ranks in the rounds (policy {run.start['policy']}, seed {run.seed})")
    for name in ("rank", "own steps", "a second", "in rounds", "fresh", "stale"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank, each in enumerate(ranks):
        # Keys became text on their way here.
        fresh, stale = (float(watcher[kind].get(str(rank), 0.0)) for kind in ("fresh", "stale"))
        rate = each["steps"] / each["seconds"] if each["seconds"] else 0.0
        table.add_row(
            str(rank), f"{each['steps']:,}", f"{rate:.1f}", f"{fresh + stale:.0%}", f"{fresh:.0%}", f"{stale:.0%}"
        )
    return table


def _late_table(run: Run) -> Table:
    """Who was waited for in the steps, by the rank that was late least often itself."""
    ranks = run.result["ranks"]
    watcher = min(ranks, key=lambda each: int(each["over"]))
    table = new_table(f"Ranks that were waited for (coded, seed {run.seed})")
    for name in ("rank", "steps", "computed to the end", "not waited for"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank, each in enumerate(ranks):
        late = int(watcher["late"].get(str(rank), 0))  # keys became text on their way here
        steps = int(each["steps"])
        table.add_row(str(rank), f"{steps:,}", f"{steps - each['over']:,}", f"{late:,} ({late / max(1, steps):.0%})")
    return table


def exact_text(run: Run) -> str:
    """Whether the gradients were exact, and how fast the steps were."""
    ranks = run.result["ranks"]
    steps, exact = (min(int(each[name]) for each in ranks) for name in ("steps", "exact"))
    seconds = max(each["seconds"] for each in ranks)
    told = "in every step" if exact == steps else f"in {exact:,} of {steps:,} steps"
    rate = steps / seconds if seconds else 0.0
    return f"The gradient was the exact one of all images {told}; {rate:.1f} steps a second."


def rates_text(run: Run) -> str:
    """Rounds a second, and what meeting cost."""
    seconds = max(each["seconds"] for each in run.result["ranks"])
    met = max(each["sync_s"] for each in run.result["ranks"])
    rate = run.result["rounds"] / seconds if seconds else 0.0
    return f"{run.result['rounds']:,} rounds, {rate:.1f} a second; {met:.1f} s in meetings that average the models."


def new_table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def to_json(backend: str, runs: list[Run], wall_s: float) -> dict[str, Any]:
    """The same for programs. Keys stay; more may come."""
    summaries = receipts_of(runs)
    return {
        "backend": backend,
        "accuracy_mean": accuracy_mean(runs),
        "step_median_ms": median(run.result["step_ms"] for run in runs),
        "wall_s": wall_s,
        "receipts": add_up(summaries) if summaries else None,
        "runs": [
            {"seed": run.seed, "network": run.network, **without_event(run.start), **without_event(run.result)}
            for run in runs
        ],
    }


def without_event(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "event"}
