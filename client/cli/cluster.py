# SPDX-License-Identifier: Apache-2.0
"""All hosts of the jobs here, as `ultima status --all` and `ultima top --all` show them: each in its daemon's words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ultima.cli.rows import clip, job_facts
from ultima.cli.width import wrapped

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2

HEAD = f"{'HOST':<28} {'ANSWER ms':>9} {'UP':>7}  VERSION"
JOB_HEAD = f"  {'HOST':<25} {'RANKS':>8} {'OPS':>9} {'WHOLE':>6} {'P50 ms':>8} {'P99 ms':>8} {'MISSES':>8}"
LEAST_S = 1.0  # between two pictures: daemons ask one another no more often


def facts(answer: admin_pb2.GetClusterResponse) -> dict[str, Any]:
    """The whole cluster in JSON's types: `hosts`, this one first, each with its own view of the jobs it shares."""
    return {"hosts": [_host(row) for row in answer.hosts], "not_asked": answer.not_asked_count}


def _host(row: admin_pb2.ClusterHost) -> dict[str, Any]:
    return {
        "name": name_of(row.node, row.address, row.grpc_port),
        "node": row.node,
        "address": row.address,
        "port": row.grpc_port,
        "here": row.here,
        "answered": not row.unreached,
        "reason": row.unreached,
        "took_us": row.took_us if not row.here and not row.unreached else None,
        "version": row.version,
        "uptime_ms": row.uptime_ms,
        "jobs": [_job(job) for job in row.jobs],
        "jobs_left_out": row.left_out_count,
    }


def _job(job: admin_pb2.JobStatus) -> dict[str, Any]:
    from ultima.v1 import types_pb2

    own = next((each.host for each in job.hosts if each.host.index == job.host_index), None)
    others = [each for each in job.hosts if each.host.index != job.host_index]
    missed = [each.host for each in others if each.state != types_pb2.HOST_STATE_UP]
    return job_facts(job) | {
        "host_index": job.host_index,
        "ranks": list(own.ranks) if own is not None else [],
        "misses": [name_of(h.node, h.address, h.grpc_port) for h in missed],
    }


def name_of(node: str, address: str, port: int) -> str:
    """A host for people: its node as its certificate says, else its address and port."""
    if node or not address:
        return node or "this host"
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def lines(found: dict[str, Any], rates: dict[tuple[str, str], float] | None = None) -> Iterator[str]:
    """Tables of at most 80 columns: the hosts, then each job with a row for each host that answered; and a sentence for
    each that did not."""
    from ultima.cli.status import duration

    yield HEAD
    for host in found["hosts"]:
        took = "here" if host["here"] else f"{host['took_us'] / 1e3:.1f}" if host["answered"] else "-"
        up = duration(host["uptime_ms"] / 1e3) if host["answered"] else "-"
        yield f"{clip(host['name'], 28):<28} {took:>9} {up:>7}  {host['version'] or 'NO ANSWER'}"
    silent = [host for host in found["hosts"] if not host["answered"]]
    for host in silent:
        yield from wrapped(f"{host['name']} did not answer: {host['reason']}", rest="  ")
    if found["not_asked"]:
        yield f"{found['not_asked']} more hosts were not asked"
    names = dict.fromkeys(job["job"] for host in found["hosts"] for job in host["jobs"])
    if not names:
        yield "no jobs"
    for name in names:
        yield ""
        yield f"job {name}"
        yield JOB_HEAD + (f" {'OPS/s':>7}" if rates is not None else "")
        for host in found["hosts"]:
            for job in host["jobs"]:
                if job["job"] == name:
                    rate = f" {rates.get((host['name'], name), 0.0):7.1f}" if rates is not None else ""
                    yield _row(host["name"], job) + rate
        yield from _sentences(name, found["hosts"])


def _row(host: str, job: dict[str, Any]) -> str:
    ops = sum(job["ops"].values())
    whole = f"{100 * job['ops']['complete'] / ops:.1f}%" if ops else "-"
    ranks = ",".join(map(str, job["ranks"])) or "-"
    times = f"{job['op_p50_us'] / 1e3:8.2f} {job['op_p99_us'] / 1e3:8.2f}"
    misses = str(len(job["misses"])) if job["misses"] else "-"
    return f"  {clip(host, 25):<25} {clip(ranks, 8):>8} {ops:9} {whole:>6} {times} {misses:>8}"


def _sentences(name: str, hosts: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What a host says of a job that a figure does not: once, however many say it."""
    told: dict[str, list[str]] = {}
    for host in hosts:
        for job in host["jobs"]:
            if job["job"] == name:
                for text in (job["waiting_for"], *(each["text"] for each in job["ailments"])):
                    if text:
                        told.setdefault(text, []).append(host["name"])
                for missed in job["misses"]:
                    told.setdefault(f"{missed} is not connected", []).append(host["name"])
    for text, who in told.items():
        yield from wrapped(f"{', '.join(who)}: {text}", rest="    ", first="  ")


def rates_of(now: dict[str, Any], before: dict[str, Any], seconds: float) -> dict[tuple[str, str], float]:
    """Ops that ended each second, by host and job, between two views."""
    return {key: max(count - _counts(before).get(key, count), 0) / seconds for key, count in _counts(now).items()}


def _counts(found: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(host["name"], job["job"]): sum(job["ops"].values()) for host in found["hosts"] for job in host["jobs"]}


def views(socket: str, job: str, seconds: float) -> Iterator[tuple[dict[str, Any], dict[tuple[str, str], float]]]:
    """A view every so many seconds for ever, with the rates since the one before; the first has to wait for them."""
    from ultima.admin.operate import get_cluster

    before, at = facts(get_cluster(socket, job)), time.monotonic()
    while True:
        time.sleep(seconds)
        now, then = facts(get_cluster(socket, job)), time.monotonic()
        yield now, rates_of(now, before, then - at)
        before, at = now, then
