# SPDX-License-Identifier: Apache-2.0
"""`ultima demo`: the main job on one machine, from daemons to accuracy."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from itertools import product
from types import FrameType
from typing import Annotated, Any

import typer

from ultima.base.errors import InvalidArgument, UltimaError
from ultima.cli.common import print_json
from ultima.cli.width import NO_LIMIT
from ultima.v1 import installed

ELASTIC_RANKS_LEAST, ELASTIC_RANKS_MOST = 3, 15  # of two, none that goes leaves a majority
LOSS_MAX = 0.3  # beyond, paths count as broken, and there is nothing to show


class Backend(StrEnum):
    ULTIMA = "ultima"
    GLOO = "gloo"


class Data(StrEnum):
    AUTO = "auto"
    FASHION_MNIST = "fashion-mnist"
    DIGITS = "digits"


class Policy(StrEnum):
    NONE = "none"
    FULL = "full"
    SOLO = "solo"
    MAJORITY = "majority"
    QUORUM = "quorum"
    PROBE = "probe"
    SEEDED = "seeded"


class DemoFailed(UltimaError):
    """A process of the demo ended that should not have."""


def demo(
    backend: Annotated[Backend, typer.Option(help="The library that averages the gradients.")] = Backend.ULTIMA,
    ranks: Annotated[
        int, typer.Option("--ranks", "--sites", min=1, max=16, help="Ranks, each with a daemon of its own.")
    ] = 4,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the images; the default suits the images.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Trainings, with seeds 1, 2, ...")] = 1,
    data: Annotated[Data, typer.Option(help="Images: auto takes Fashion-MNIST if installed, else digits.")] = Data.AUTO,
    policy: Annotated[
        Policy,
        typer.Option(help="Which ranks a step waits for; none: all. docs/slow_trainers.md says which to use when."),
    ] = Policy.NONE,
    coded: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="S",
            help="Coded gradients: exact although S of the ranks that share data are late. docs/coded.md.",
        ),
    ] = None,
    slow_rank: Annotated[
        str | None, typer.Option(metavar="RANK:TIME", help="A rank that sleeps in each step, as in 1:200ms.")
    ] = None,
    sparse: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Train once more with this share of the gradients sent, as in 1%."),
    ] = None,
    wire: Annotated[
        str | None,
        typer.Option(metavar="FORM", help="Train once more with gradients in few bits: int16, int8 or int4."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Train once more on a network that loses this share of datagrams, as in 1%."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Train once more on a network whose links pass this much, as in 200Mbit."),
    ] = None,
    wan: Annotated[
        str | None,
        typer.Option(
            metavar="TRIP,LOSS,RATE",
            help="Plain DDP and DiLoCo on a long path, as in 50ms,1%,50Mbit. docs/local_sgd.md.",
        ),
    ] = None,
    every: Annotated[int, typer.Option(min=1, max=1000, help="Steps between two rounds of DiLoCo, with --wan.")] = 20,
    leave: Annotated[
        str | None,
        typer.Option(metavar="SITE:TIME", help="A site that leaves DiLoCo so long after its first step, as in 2:10s."),
    ] = None,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Train twice: with hosts that stay, and with one that dies and one that comes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON with stable keys.")] = False,
) -> None:
    if why := installed.lacks("demo", "`ultima demo`"):
        raise DemoFailed(why)
    from rich.console import Console

    from ultima.demo import report
    from ultima.demo.cluster import ChildFailed, Cluster
    from ultima.demo.data import load

    if elastic:
        others = {"--policy": None if policy is Policy.NONE else policy.value, "--coded": coded, "--wan": wan}
        others |= {"--slow-rank": slow_rank, "--sparse": sparse, "--wire": wire, "--loss": loss, "--rate": rate}
        others |= {"--leave": leave}
        others |= {"--backend": None if backend is Backend.ULTIMA else backend.value, "--seeds": seeds > 1 or None}
        _demo_elastic(ranks, epochs, data.value, as_json, others)
        return
    extra = _who_is_waited_for(backend, ranks, policy, coded, slow_rank)
    ways = [extra]
    if leave is not None and wan is None:
        raise InvalidArgument("--leave", leave, "none without --wan")
    if wan is not None and (sparse is not None or loss is not None or rate is not None):
        raise InvalidArgument("--wan", wan, "none with --sparse, --loss or --rate")
    if sparse is not None:
        ways.append([*extra, "--sparse", _share(sparse, backend, policy, coded)])
    form = [] if wire is None else ["--wire", _form(wire, backend, policy, coded)]
    if wan is not None:
        weathers = [_far(wan, backend, policy, coded)]
        ways.append([*extra, *form, "--every", str(every), *_leaver(leave, ranks)])
    else:
        weathers = _weathers(loss, rate, backend)
        ways += [[*extra, *form]] if form else []
    relayed = weathers != [None]
    try:
        load(data.value)
    except (OSError, ValueError) as error:
        raise DemoFailed(str(error)) from None
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=NO_LIMIT)
    started = time.monotonic()
    runs: list[report.Run] = []
    signal.signal(signal.SIGTERM, _end_in_order)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster())
        watcher: report.Watcher
        if console.is_terminal:
            watcher = report.BarWatcher(console, stack.enter_context(report.progress_bar(console)))
        else:
            watcher = report.PlainWatcher(console)
        try:
            if backend is Backend.ULTIMA:
                # Of this process alone: gRPC's fork handlers can abort the child that is about to become a rank.
                os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
                cluster.start_daemons(ranks, relayed=relayed)
                between = " and a relay between them" if relayed else ""
                report.say(
                    console,
                    f"{ranks} daemons on loopback{between}, each with a socket of its own under {cluster.folder}",
                )
                if policy is not Policy.NONE or coded:
                    report.say(
                        console,
                        f"See which ranks are in the rounds, live:  ultima status --socket {cluster.sockets[0]}",
                    )
            for seed, way, weather in product(range(1, seeds + 1), ways, weathers):
                options = ["--seed", str(seed), "--data", data.value, *way]
                options += [] if epochs is None else ["--epochs", str(epochs)]
                if weather is not None:
                    cluster.change_weather(weather)
                    report.say(console, f"Network: {report.weather_text(weather.loss, weather.rate, weather.delay)}")
                run = _run(cluster, watcher, backend, ranks, seed, options)
                runs.append(run if weather is None else replace(run, network=cluster.weather_report()))
        except ChildFailed as error:
            raise DemoFailed(str(error)) from None
    wall_s = time.monotonic() - started
    if as_json:
        print_json(report.to_json(backend.value, runs, wall_s))
    else:
        report.print_summary(console, runs, wall_s)
    if not all(run.result["replicas_equal"] for run in runs) and not _has_gaps(runs):
        raise DemoFailed("the replicas differ although every op was complete: please report this")


def _demo_elastic(ranks: int, epochs: int | None, images: str, as_json: bool, others: Mapping[str, object]) -> None:
    """`--elastic`. Raises InvalidArgument or DemoFailed."""
    from rich.console import Console

    from ultima.demo import elastic_play, elastic_report
    from ultima.demo.cluster import ChildFailed, Cluster
    from ultima.demo.data import load
    from ultima.demo.report import say

    for option, value in others.items():
        if value is not None:
            raise InvalidArgument(option, value, "none with --elastic, which has --ranks, --epochs and --data")
    if not ELASTIC_RANKS_LEAST <= ranks <= ELASTIC_RANKS_MOST:
        allowed = f"{ELASTIC_RANKS_LEAST} to {ELASTIC_RANKS_MOST} with --elastic, which starts one host more"
        raise InvalidArgument("--ranks", ranks, allowed)
    try:
        load(images)  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise DemoFailed(str(error)) from None
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=NO_LIMIT)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _end_in_order)
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    with Cluster() as cluster:
        try:
            cluster.start_daemons(ranks + 1)
            say(console, f"{ranks + 1} daemons on loopback, each with a socket of its own under {cluster.folder}")
            arguments = ["--data", images, *([] if epochs is None else ["--epochs", str(epochs)])]
            first, second = elastic_play.play(cluster, ranks, arguments, lambda text: say(console, text))
        except ChildFailed as error:
            raise DemoFailed(str(error)) from None
    wall_s = time.monotonic() - started
    if as_json:
        print_json(elastic_report.to_json(first, second, wall_s))
    else:
        elastic_report.print_summary(console, first, second, wall_s)
    if found := list(elastic_report.faults(first, second)):
        raise DemoFailed("; ".join(found))


def _who_is_waited_for(
    backend: Backend, ranks: int, policy: Policy, coded: int | None, slow_rank: str | None
) -> list[str]:
    """Arguments for the training. Raises InvalidArgument."""
    from ultima.coded import Plan
    from ultima.demo.slow import SlowRank

    if coded:
        if backend is not Backend.ULTIMA or policy is not Policy.NONE:
            raise InvalidArgument("--coded", coded, "not with --backend gloo, nor with --policy: it is a policy itself")
        Plan(ranks, stragglers=coded)
    if policy is not Policy.NONE and backend is not Backend.ULTIMA:
        raise InvalidArgument("--policy", policy.value, "none with --backend gloo, which waits for everybody")
    said = ["--policy", policy.value, "--coded", str(coded or 0)]
    if slow_rank is None:
        return said
    if SlowRank.parse(slow_rank).rank >= ranks:
        raise InvalidArgument("--slow-rank", slow_rank, f"a rank from 0 to {ranks - 1}, and a time")
    return [*said, "--slow-rank", slow_rank]


def _share(text: str, backend: Backend, policy: Policy, coded: int | None) -> str:
    """As the ranks take it. Raises InvalidArgument."""
    from ultima.demo.share import share_of

    if backend is not Backend.ULTIMA or policy is not Policy.NONE or coded:
        raise InvalidArgument("--sparse", text, "none with --backend gloo, with a --policy or with --coded")
    return str(share_of(text))


def _form(text: str, backend: Backend, policy: Policy, coded: int | None) -> str:
    """Raises InvalidArgument."""
    from ultima.quant import FORMS

    if text not in FORMS:
        raise InvalidArgument("--wire", text, ", ".join(FORMS))
    if backend is not Backend.ULTIMA or policy is not Policy.NONE or coded:
        raise InvalidArgument("--wire", text, "none with --backend gloo, with a --policy or with --coded")
    return text


def _weathers(loss: str | None, rate: str | None, backend: Backend) -> list[Any]:
    """What the networks of the trainings do, a Weather each; [None] for one without a relay. Raises InvalidArgument."""
    from ultima.demo.relay import Weather
    from ultima.demo.share import rate_of, share_of

    if loss is None and rate is None:
        return [None]
    if backend is not Backend.ULTIMA:
        named = ("--loss", loss) if loss is not None else ("--rate", rate)
        raise InvalidArgument(*named, "none with --backend gloo, whose TCP losses only the kernel can make: `make lab`")
    weather = Weather(
        0.0 if loss is None else share_of(loss, "--loss", LOSS_MAX), 0.0 if rate is None else rate_of(rate, "--rate")
    )
    return [Weather(), weather]


def _far(wan: str, backend: Backend, policy: Policy, coded: int | None) -> Any:
    """What a long path does, a Weather. Raises InvalidArgument."""
    from ultima.demo.relay import Weather
    from ultima.demo.share import wan_of

    trip, loss, rate = wan_of(wan, "--wan")
    if backend is not Backend.ULTIMA or policy is not Policy.NONE or coded:
        raise InvalidArgument("--wan", wan, "none with --backend gloo, with a --policy or with --coded")
    return Weather(loss, rate, trip / 2)


def _leaver(text: str | None, ranks: int) -> list[str]:
    """Arguments for the training by DiLoCo. Raises InvalidArgument."""
    from ultima.demo.slow import Leaver

    if text is None:
        return []
    if not 1 <= Leaver.parse(text).rank < ranks:
        raise InvalidArgument(
            "--leave", text, f"a site from 1 to {ranks - 1}, and a time: site 0 tells what came of it"
        )
    return ["--leave", text]


def _run(cluster: Any, watcher: Any, backend: Backend, ranks: int, seed: int, options: list[str]) -> Any:
    """One training; its start and result events as a Run."""
    from ultima.demo.cluster import ChildFailed
    from ultima.demo.report import Run

    kept: dict[str, dict[str, Any]] = {}

    def on_line(line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return  # a library's own chatter on standard output
        if isinstance(event, dict) and "event" in event:
            kept[event["event"]] = event
            watcher.on_event(event)

    cluster.run_ranks(ranks, options, backend.value, on_line)
    if "result" not in kept:
        raise ChildFailed("rank 0 ended without a result")
    return Run(seed, kept["start"], kept["result"])


def _has_gaps(runs: list[Any]) -> bool:
    return any(summary["missing_bytes"] for run in runs for summary in run.result["receipts"])


def _end_in_order(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
