# SPDX-License-Identifier: Apache-2.0
"""`ultima top`: jobs, peers, lanes and events of this host, live."""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, OfJob, Socket, formed, print_json, say, socket_named
from ultima.cli.rows import clip, job_facts, job_lines, peer_facts, peer_lines
from ultima.cli.width import cut

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2

EVENTS_SHOWN = 6
ONCE_S = 0.5
CLEAR = "\x1b[H\x1b[2J"


def top(
    once: Annotated[bool, typer.Option("--once", help="Show one screen and exit.")] = False,
    interval: Annotated[str, typer.Option(help="Time between two screens, 200ms to 60s.")] = "1s",
    job: OfJob = "",
    everywhere: Annotated[
        bool, typer.Option("--all", help="Show all hosts of the jobs here; every 1s at most.")
    ] = False,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.operate import watch
    from ultima.base.durations import duration_s
    from ultima.base.errors import InvalidArgument

    seconds = duration_s(interval, "--interval")
    if not 0.2 <= seconds <= 60:
        raise InvalidArgument("--interval", interval, "200ms to 60s")
    if everywhere:
        show_all(socket_named(socket), job, seconds, once, as_json)
        return
    newest: deque[Any] = deque(maxlen=EVENTS_SHOWN)
    before: admin_pb2.GetStatusResponse | None = None
    # One screen needs two pictures, for a rate is what has changed between them.
    seconds = min(seconds, ONCE_S) if once else seconds
    for answer in watch(socket_named(socket), seconds, job):
        newest.extend(answer.events)
        if once and before is None:
            before = answer.status
            continue
        facts = picture(answer.status, before, seconds)
        if as_json and once:
            print_json(facts)
        elif as_json:
            say(json.dumps(formed(facts)))
        else:
            show(screen(facts, list(newest)), once)
        if once:
            return
        before = answer.status


def show(lines: list[str], once: bool) -> None:
    """A screen, in place of the one before on a terminal."""
    if sys.stdout.isatty() and not once:
        typer.echo(CLEAR, nl=False)
    say("\n".join(lines))


def show_all(socket: str, job: str, seconds: float, once: bool, as_json: bool) -> None:
    """The same for all hosts, for ever, or once."""
    from ultima.cli import cluster

    for found, rates in cluster.views(socket, job, max(seconds, cluster.LEAST_S)):
        for host in found["hosts"]:
            for row in host["jobs"]:
                row["ops_per_s"] = rates.get((host["name"], row["job"]), 0.0)
        if as_json and once:
            print_json(found)
        elif as_json:
            say(json.dumps(formed(found)))
        else:
            show([cut(line) for line in cluster.lines(found, rates)], once)
        if once:
            return


def picture(
    now: admin_pb2.GetStatusResponse, before: admin_pb2.GetStatusResponse | None, seconds: float
) -> dict[str, Any]:
    """One picture in JSON's types; rates are since the one before, over |seconds|, 0 in the first."""
    old = {job.job: sum(job_facts(job)["ops"].values()) for job in before.jobs} if before is not None else {}
    jobs = []
    for job in now.jobs:
        facts = job_facts(job)
        ops = sum(facts["ops"].values())
        jobs.append(facts | {"ops_per_s": max(ops - old.get(job.job, ops), 0) / seconds})
    lanes = []
    for number, lane in enumerate(now.engine.lanes):
        known = before.engine.lanes[number].counters if before and number < len(before.engine.lanes) else lane.counters
        busy = max(lane.counters["cpu_ns"] - known["cpu_ns"], 0) / 1e9 / seconds
        lanes.append({"lane": number, "cpu": busy, "kernel_drops": lane.counters["kernel_drops"]})
    return {
        "version": now.version,
        "pid": now.pid,
        "uptime_ms": now.uptime_ms,
        "jobs": jobs,
        "peers": peer_facts(now.jobs),
        "lanes": lanes,
    }


def screen(facts: dict[str, Any], events: list[Any]) -> list[str]:
    """For people, no wider than the terminal."""
    from ultima.cli.events import line
    from ultima.cli.status import duration

    lanes = ", ".join(
        f"lane {lane['lane']} {100 * lane['cpu']:.0f}% CPU {lane['kernel_drops']} drops" for lane in facts["lanes"]
    )
    rates = ", ".join(f"{clip(job['job'], 20)} {job['ops_per_s']:.1f}/s" for job in facts["jobs"])
    lines = [f"ultimad {facts['version']}, pid {facts['pid']}, up {duration(facts['uptime_ms'] / 1e3)}; {lanes}", ""]
    lines += [*job_lines(facts["jobs"]), *([f"ops: {rates}"] if rates else []), "", *peer_lines(facts["peers"])]
    if events:
        lines += ["", *(text for event in events for text in line(event).splitlines())]
    return [cut(text) for text in lines]
