# SPDX-License-Identifier: Apache-2.0
"""`ultima jobs` and `ultima peers`: a row each. The rows are those of `ultima top` as well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ultima.cli.common import AsJson, OfJob, Socket, print_json, say, socket_named
from ultima.cli.width import wrapped

if TYPE_CHECKING:
    from ultima.v1 import admin_pb2

JOB_HEAD = (
    f"{'JOB':<21} {'STATE':<7} {'VIEW':>4} {'RANKS':>5} {'HOSTS':>5} {'OPS':>8} {'WHOLE':>6} {'P50 ms':>8} "
    f"{'P99 ms':>7}"
)
PEER_HEAD = f"{'PEER':<24} {'STATE':<10} {'JOBS':>4} {'RTT us':>8} {'SENT':>10} {'HEARD':>10} {'LOST':>8}"


def jobs(as_json: AsJson = False, socket: Socket = None) -> None:
    from ultima.admin.calls import get_status

    found = [job_facts(job) for job in get_status(socket_named(socket)).jobs]
    if as_json:
        print_json({"jobs": found})
        return
    for line in job_lines(found):
        say(line)


def peers(job: OfJob = "", as_json: AsJson = False, socket: Socket = None) -> None:
    from ultima.admin.calls import get_status

    found = peer_facts(get_status(socket_named(socket), job).jobs)
    if as_json:
        print_json({"peers": found})
        return
    for line in peer_lines(found):
        say(line)


def job_facts(job: admin_pb2.JobStatus) -> dict[str, Any]:
    """One job in JSON's types. A job that forms says whom it waits for, as far as the daemon knows."""
    from ultima.admin.round_view import status_line
    from ultima.cli.job_view import view_facts
    from ultima.v1 import types_pb2

    up = sum(host.state == types_pb2.HOST_STATE_UP for host in job.hosts)
    complete, partial = job.ops_complete_count, job.ops_partial_count
    own, failed = job.ops_insufficient_count, job.ops_failed_count
    forming = not job.HasField("options")
    return {
        "job": job.job,
        "state": "forming" if forming else "running",
        "waiting_for": job.waiting_for,
        "ailments": [{"name": ailment.name, "text": ailment.text} for ailment in job.ailments],
        "world_size": job.world_size or job.world_size_asked,
        "hosts": len(job.hosts),
        "hosts_up": up,
        "ops": {"complete": complete, "partial": partial, "insufficient": own, "failed": failed},
        "missing_bytes": job.missing_bytes,
        "op_p50_us": job.op_p50_us,
        "op_p99_us": job.op_p99_us,
        "straggler_rank": job.straggler_rank if job.straggler_rank >= 0 else None,
        "view": view_facts(job),
        "rounds": status_line(job.rounds, time.time_ns()) if job.HasField("rounds") else None,
    }


def peer_facts(found: Sequence[admin_pb2.JobStatus]) -> list[dict[str, Any]]:
    """Other hosts, one row each for all its jobs: bytes added up, the worst state and the slowest round trip."""
    from ultima.v1 import types_pb2

    worst = {types_pb2.HOST_STATE_ABSENT: 0, types_pb2.HOST_STATE_CONNECTING: 1, types_pb2.HOST_STATE_UP: 2}
    names = ("gone", "connecting", "up")
    ret: dict[tuple[str, int], dict[str, Any]] = {}
    for job in found:
        for row in job.hosts:
            if row.host.index == job.host_index:
                continue
            new = {"address": row.host.address, "port": row.host.grpc_port, "state": "up", "jobs": [], "srtt_us": 0}
            new |= {"sent_bytes": 0, "received_bytes": 0, "lost_bytes": 0}
            peer = ret.setdefault((row.host.address, row.host.grpc_port), new)
            peer["jobs"].append(job.job)
            peer["state"] = names[min(names.index(peer["state"]), worst.get(row.state, 1))]
            peer["srtt_us"] = max(peer["srtt_us"], row.srtt_us)
            for name in ("sent_bytes", "received_bytes", "lost_bytes"):
                peer[name] += getattr(row, name)
    return [ret[place] for place in sorted(ret)]


def job_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """A table of 80 columns; a job that forms or ails has more lines, as wide as the terminal."""
    lines = [JOB_HEAD] if found else ["no jobs"]
    for job in found:
        ops = sum(job["ops"].values())
        whole = f"{100 * job['ops']['complete'] / ops:.1f}%" if ops else "-"
        times = f"{job['op_p50_us'] / 1e3:8.2f} {job['op_p99_us'] / 1e3:7.2f}"
        view = "-" if job["view"] is None else str(job["view"]["number"])
        hosts = f"{job['hosts_up']}/{job['hosts']}"
        name, ranks = clip(job["job"], 21), job["world_size"]
        lines.append(f"{name:<21} {job['state']:<7} {view:>4} {ranks:5} {hosts:>5} {ops:8} {whole:>6} {times}")
        if job["waiting_for"]:
            lines += wrapped(job["waiting_for"], rest="  ", first="  ")
        if job["rounds"]:
            lines += wrapped(job["rounds"], rest="  ", first="  ")
        for ailment in job["ailments"]:
            lines += wrapped(ailment["text"], rest="  ", first="  ")
        for each in job["view"]["outside"] if job["view"] else ():
            text = f"not in the view: host {each['host']} ({each['place']}): {each['reason']}: {each['text']}"
            lines += wrapped(text, rest="  ", first="  ")
    return lines


def peer_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """A table of at most 80 columns."""
    from ultima.base.receipt import size_text

    lines = [PEER_HEAD] if found else ["no peers"]
    for peer in found:
        where = clip(f"{peer['address']}:{peer['port']}", 24)
        sizes = [size_text(peer[name]) for name in ("sent_bytes", "received_bytes", "lost_bytes")]
        rtt = peer["srtt_us"] or "-"
        head = f"{where:<24} {peer['state']:<10} {len(peer['jobs']):4} {rtt:>8}"
        lines.append(f"{head} {sizes[0]:>10} {sizes[1]:>10} {sizes[2]:>8}")
    return lines


def clip(text: str, most: int) -> str:
    """The text, or its ends with two dots between them."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}..{text[-(most - most // 2 - 1) :]}"
