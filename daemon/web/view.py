# SPDX-License-Identifier: Apache-2.0
"""What the status page shows, in JSON's types: one picture a second, made in the event loop while somebody looks.

The page asks the engines for one snapshot a second and the recorder for what has ended since; what a job did in the
two minutes before is sent once to each who begins to look.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.engine.engine import NEVER, PeerStats, Status
from ultima.daemon.engine.host_engine import HostEngine, HostSnapshot
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.observe.events import HostEvent
from ultima.daemon.observe.late import Late
from ultima.daemon.observe.metrics import STRAGGLER_OPS
from ultima.daemon.observe.progress import judge_all
from ultima.daemon.observe.ring import culprits_in
from ultima.daemon.web.course import Course
from ultima.daemon.web.steady import Steady
from ultima.daemon.web.view_rows import Views
from ultima.daemon.web.why import WINDOW_S, HostNow, JobNow, reasons
from ultima.v1 import admin_pb2

EVENTS_SHOWN = 100
STATES = {State.UP: "up", State.CONNECTING: "connecting", State.ABSENT: "gone"}
ASK_SECONDS = 5.0  # between two questions to the other hosts while somebody looks
STRAGGLES = 0.1  # share of the newest ops for which a host must be to blame to be called the straggler


class View:
    """See the module. It belongs to the event loop."""

    def __init__(
        self,
        config: DaemonConfig,
        engine: HostEngine,
        jobs: JobTable,
        version: str,
        ask_cluster: Callable[[], Awaitable[admin_pb2.GetClusterResponse]] | None = None,
    ) -> None:
        """`ask_cluster` asks all hosts of the jobs here."""
        self._ask_cluster = ask_cluster
        self._asking: asyncio.Future[admin_pb2.GetClusterResponse] | None = None
        self._hosts: list[dict[str, Any]] = []
        self._asked_s = float("-inf")
        self._config, self._engine, self._jobs, self._version = config, engine, jobs, version
        self._started = time.monotonic()
        self._courses: dict[int, Course] = {}
        """By the incarnation of the job."""
        self._cpu: deque[tuple[float, list[int]]] = deque(maxlen=2)
        self._drops: deque[int] = deque(maxlen=WINDOW_S + 1)
        self._event = 0
        self._steady = Steady()
        self._views = Views(jobs.recorder.events)

    def rest(self) -> None:
        """Nobody looks any more: forgets what would be wrong when somebody looks again."""
        self._courses.clear()
        self._cpu.clear()
        self._drops.clear()
        self._steady.rest()

    def picture(self) -> dict[str, Any]:
        """One second's: to be called once a second."""
        now, now_ns = self._engine.snapshot(), self._engine.now()
        found = self._jobs.all()
        for job in found:
            if job.incarnation not in self._courses:
                self._courses[job.incarnation] = Course(job.record, now_ns)
            else:
                self._courses[job.incarnation].tick()
        for gone in self._courses.keys() - {job.incarnation for job in found}:
            del self._courses[gone]
        self._views.take({job.name for job in found})
        lanes = self._lanes(now)
        latest = {job.incarnation: job.latest(self._engine, now) for job in found}
        verdict = judge_all(now_ns, now.stats_of_each())
        opened = now.stats["oldest_open_ns"]
        host = HostNow(
            jobs=[self._now(job, now_ns, latest[job.incarnation]) for job in found],
            well=verdict.well,
            reason=verdict.reason,
            drops=self._drops[-1] - self._drops[0],
            busiest=max(lane["cpu"] for lane in lanes),
            open_s=0.0 if opened == NEVER else max(now_ns - opened, 0) / 1e9,
        )
        reason, events = self._steady.take(time.monotonic(), reasons(host)), self._jobs.recorder.events
        news = events.after(self._event) if self._event else []
        self._event = events.last
        return {
            "at_ms": time.time_ns() // 10**6,
            "version": self._version,
            "pid": os.getpid(),
            "address": self._config.address or self._config.bind,
            "insecure": self._config.insecure and bool(self._config.bind),
            "uptime_s": int(time.monotonic() - self._started),
            "why": {"level": reason.level, "text": reason.text},
            "hosts": self._cluster(),
            "lanes": lanes,
            "jobs": [self._job(job, now, latest[job.incarnation]) for job in found],
            "events": _events(news),
        }

    def past(self) -> dict[str, Any]:
        """What somebody who begins to look is sent first, beside the newest picture."""
        events = self._jobs.recorder.events
        return {
            "past": {str(number): list(course.seconds)[:-1] for number, course in self._courses.items()},
            "events": _events(events.after(max(events.last - EVENTS_SHOWN, 0))),
        }

    def _cluster(self) -> list[dict[str, Any]]:
        """What the hosts of the jobs here said of themselves when they were asked last; they are asked again."""
        now_s = time.monotonic()
        asked = self._asking
        if asked is not None and asked.done() and not asked.cancelled() and asked.exception() is None:
            known = self._names()
            self._hosts = [_host_row(row, known) for row in asked.result().hosts]
        if self._ask_cluster is not None and now_s - self._asked_s >= ASK_SECONDS:
            self._asked_s, self._asking = now_s, asyncio.ensure_future(self._ask_cluster())
        return self._hosts

    def _names(self) -> dict[tuple[str, int], str]:
        """Of all hosts of the jobs here, as `_host_row` wants them."""
        found: dict[tuple[str, int], str] = {}
        for job in self._jobs.all():
            for host, _ in job.hosts():
                found["" if host is job.own else host.address, 0 if host is job.own else host.grpc_port] = _name(
                    host, job.own
                )
        return found

    def _lanes(self, now: HostSnapshot) -> list[dict[str, Any]]:
        self._cpu.append((time.monotonic(), [stats.get("cpu_ns", 0) for stats in now.stats_of_each()]))
        (before, old), (after, new) = self._cpu[0], self._cpu[-1]
        spent = max(after - before, 1e-3) * 1e9
        self._drops.append(now.stats.get("kernel_drops", 0))
        return [
            {"cpu": round((new[lane] - old[lane]) / spent, 4), "drops": stats.get("kernel_drops", 0)}
            for lane, stats in enumerate(now.stats_of_each())
        ]

    def _now(self, job: Job, now_ns: int, latest: tuple[Host, Late] | None) -> JobNow:
        course = self._courses[job.incarnation]
        ops, not_whole, blamed = course.recent([_name(host, job.own) for host, _ in job.hosts()])
        p50_ms, usual_ms = course.medians_ms()
        return JobNow(
            name=job.name,
            waiting_for=job.waiting_for,
            forming=not job.ready,
            ailments=[job.ailment.text] if job.ailment else [],
            gone=[_name(host, job.own) for host, state in job.present() if state is State.ABSENT],
            ops=ops,
            not_whole=not_whole,
            blamed=blamed,
            p50_ms=p50_ms,
            usual_ms=usual_ms,
            late=f"{_name(latest[0], job.own)}: it calls an op {latest[1].text}" if latest and ops else "",
            silent_s=(now_ns - course.last_ns) / 1e9 if course.last_ns else time.monotonic() - job.began,
        )

    def _job(self, job: Job, now: HostSnapshot, latest: tuple[Host, Late] | None) -> dict[str, Any]:
        stats, membership = job.stats, job.membership
        asked = next((joiner.spec.world_size for joiner in job.joining.values()), 0)
        why = self._steady.of_job(job.name)
        return {
            "id": str(job.incarnation),
            "name": job.name,
            "state": "running" if job.ready else "forming",
            "waiting_for": "" if job.ready else job.waiting_for,
            "ranks": job.world_size if membership else asked,
            "ops": [stats.count[s] for s in (Status.COMPLETE, Status.PARTIAL, Status.INSUFFICIENT, Status.FAILED)],
            "p50_us": stats.percentile_us(50),
            "p99_us": stats.percentile_us(99),
            "missing_bytes": stats.missing_bytes,
            "bucket_bytes": job.record.bucket_bytes,
            "now": self._courses[job.incarnation].seconds[-1],
            "deadline_us": job.record.deadline_ns // 1000,
            "why": {"level": why.level, "text": why.text} if why is not None else None,
            "rounds": _rounds(job),
            "straggler": _straggler(job, latest),
            "views": self._views.of(job.name, job.record.life.began_ns if job.record.life is not None else 0),
            "peers": [_peer(job, host, state, now) for host, state in job.present()],
        }


def _peer(job: Job, host: Host, state: State, now: HostSnapshot) -> dict[str, Any]:
    paths: Sequence[PeerStats] = () if host is job.own else now.paths(job.number, host.index)
    return {
        "index": host.index,
        "name": _name(host, job.own),
        "own": host is job.own,
        "ranks": host.ranks,
        "state": "blocked" if job.ailment and host.index in job.ailment.hosts else STATES[state],
        "rtt_us": _most(path.srtt_ns for path in paths) // 1000,
        "sent": sum(path.sent_bytes for path in paths),
        "received": sum(path.received_bytes for path in paths),
        "lost": sum(path.lost_bytes for path in paths),
    }


def _host_row(row: admin_pb2.ClusterHost, names: Mapping[tuple[str, int], str]) -> dict[str, Any]:
    """One host, as its own daemon says. `names` are those of the page, by address and port; this host's under ""."""
    where = ("", 0) if row.here else (row.address, row.grpc_port)
    name = names.get(where, row.node or f"{row.address}:{row.grpc_port}")
    jobs = [
        {
            "name": job.job,
            "ops": job.ops_complete_count + job.ops_partial_count + job.ops_insufficient_count + job.ops_failed_count,
            "whole": job.ops_complete_count,
            "p50_us": job.op_p50_us,
        }
        for job in row.jobs
    ]
    facts = {"name": name, "here": row.here, "why": row.unreached, "version": row.version}
    return facts | {"uptime_s": row.uptime_ms // 1000, "jobs": jobs}


def _name(host: Host, own: Host | None) -> str:
    """For people, the same everywhere on the page: "n2 (rank 1)". Its node, else its address, with the port where that
    is another than this host's; and its ranks."""
    name = host.node or host.address or "this host"
    if not host.node and host.address and (own is None or own.grpc_port != host.grpc_port):
        name = str(host.place)
    first, last = host.ranks[:1], host.ranks[-1:]
    ranks = f"ranks {first[0]}-{last[0]}" if first != last else f"rank {first[0]}" if first else ""
    return f"{name} ({ranks})" if ranks else name


def _straggler(job: Job, latest: tuple[Host, Late] | None) -> dict[str, Any] | None:
    """The host that is to blame for most of the newest ops, or else the one for which the others wait while they are
    whole; of a partial job the rank that is in the fewest."""
    if job.partial is not None:
        status = admin_pb2.JobStatus()
        job.partial.fill(status)
        if status.straggler_rank >= 0:
            return {"who": f"rank {status.straggler_rank}", "share": None, "late": None}
    culprits = culprits_in(job.record.ring.copy(STRAGGLER_OPS))
    named = Counter(host for host in culprits if job.membership and host < len(job.membership.hosts))
    for host, count in named.most_common(1):
        if job.membership is not None and count >= STRAGGLES * len(culprits):
            who = _name(job.membership.hosts[host], job.own)
            return {"who": who, "share": round(count / len(culprits), 3), "late": None}
    if latest is None:
        return None
    return {"who": _name(latest[0], job.own), "share": None, "late": [latest[1].late_us, latest[1].took_us]}


def _rounds(job: Job) -> dict[str, Any] | None:
    """Of a job whose ops are rounds of local SGD."""
    rounds = job.record.rounds
    if not rounds:
        return None
    newest = rounds.newest()
    return {
        "counts": rounds.counts,
        "computed": round(rounds.computed_share, 4),
        "newest": {
            "number": newest.number,
            "outcome": newest.outcome,
            "why": newest.why,
            "took_us": newest.took_us,
            "at_ms": newest.told_ns // 10**6,
            "weight": [newest.weight, newest.members_weight],
            "late": list(newest.late),
        },
    }


def _events(found: Iterable[HostEvent]) -> list[dict[str, Any]]:
    return [
        {"number": e.number, "at_ms": e.at_ns // 10**6, "kind": e.kind, "job": e.job, "text": e.text, "level": e.level}
        for e in found
    ]


def _most(values: Iterable[int]) -> int:
    return max(values, default=0)
