# SPDX-License-Identifier: Apache-2.0
"""Copies what the metrics show out of a running daemon. Everything here is quick, and for the event loop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.engine.engine import NEVER, PeerStats, Status
from ultima.daemon.engine.host_engine import HostEngine, HostSnapshot
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.observe.keeper import Keeper
from ultima.daemon.observe.metrics import STRAGGLER_OPS, Facts, JobFacts, PeerFacts
from ultima.daemon.observe.progress import judge_all
from ultima.daemon.observe.stats import ViewFacts
from ultima.daemon.observe.totals import Path, Totals
from ultima.daemon.trust.trust import Trust
from ultima.v1.limits import WIRE_VERSION

RECEIVE_BUFFER_UNSAID = 8 << 20  # what the engine asks for by itself
LOOK_SECONDS = 5.0


class Gauges:
    """See the module."""

    def __init__(
        self,
        config: DaemonConfig,
        engine: HostEngine,
        jobs: JobTable,
        keeper: Keeper,
        version: str,
        trust: Trust | None,
    ) -> None:
        self._config, self._engine, self._jobs, self._keeper = config, engine, jobs, keeper
        self._trust = trust
        self._version, self._started = version, time.time()
        self._totals = Totals()
        self.relay: Callable[[], dict[str, int]] = dict
        """Counters of the relay here."""

    def look(self) -> None:
        """To be called every few seconds, so that nothing is missed of what the engine counts by path."""
        if self._jobs.all():
            self._totals.look(self._paths(self._engine.snapshot()))

    def facts(self) -> Facts:
        """All of it, as it is now."""
        now, now_ns = self._engine.snapshot(), self._engine.now()
        self._totals.look(self._paths(now))
        stats = now.stats
        opened = stats["oldest_open_ns"]
        jobs = [job for job in self._jobs.all() if job.record.life is not None and job.membership is not None]
        blamed: Counter[tuple[str, str]] = Counter()
        for job in jobs:
            blamed.update(job.record.culprits)
        return Facts(
            version=self._version,
            wire_version=WIRE_VERSION,
            simd=now.info.simd,
            start_s=self._started,
            healthy=judge_all(now_ns, now.stats_of_each()).well,
            oldest_op_s=0.0 if opened == NEVER else max(now_ns - opened, 0) / 1e9,
            cpu_s=time.process_time(),
            receive_asked=self._config.engine.receive_buffer_bytes or RECEIVE_BUFFER_UNSAID,
            receive_granted=min(part.info.receive_buffer_bytes for part in now.parts),
            on_disk=self._keeper.on_disk,
            history_errors=self._keeper.errors,
            history_bytes=self._keeper.bytes,
            repaired_bytes=stats.get("bytes_repaired", 0),
            lanes=now.stats_of_each(),
            relay=self.relay(),
            insecure=bool(self._config.bind) and self._config.insecure,
            certificate_warning=self._trust is not None and bool(self._trust.warning(time.time())),
            not_after_s=self._trust.not_after_s() if self._trust is not None else {},
            jobs=[self._job(job, label) for job, label in zip(jobs, _labels(jobs), strict=True)],
            peers=self._peers(jobs, now),
            lost=dict(self._totals.lost),
            blamed=blamed,
            violations=dict(self._jobs.fellows.violations),
            events=dict(self._jobs.recorder.events.counts),
        )

    def _job(self, job: Job, label: str) -> JobFacts:
        record, moved = job.record, self._totals.by_job.get(job.incarnation, Counter())
        assert record.life is not None
        return JobFacts(
            name=label,
            world_size=record.life.world_size,
            hosts=record.life.addresses,
            ops={Status(status).name.lower(): count for status, count in job.stats.count.items()},
            counts=tuple(record.histogram.counts),
            sum_s=record.histogram.sum_ns / 1e9,
            missing=dict(record.missing),
            bucket_bytes=record.bucket_bytes,
            wires=dict(job.stats.by_wire),
            sent_bytes=moved["sent_bytes"],
            received_bytes=moved["received_bytes"],
            contributors=record.contributors,
            deadline_s=record.deadline_ns / 1e9,
            newest=record.ring.copy(STRAGGLER_OPS),
            rounds=dict(record.rounds.counts) if record.rounds else {},
            rounds_s=record.rounds.took_us / 1e6,
            computed_share=record.rounds.computed_share,
            view=self._view(job),
        )

    def _view(self, job: Job) -> ViewFacts | None:
        view = self._jobs.fellows.council.view(job) if job.elastic else None
        if view is None or job.elastic is None:
            return None
        moved = dict(job.moves.changes), dict(job.moves.state_bytes)
        return ViewFacts(view.number, len(view.ranks), job.elastic.least * job.elastic.each, *moved)

    def _paths(self, now: HostSnapshot) -> Iterator[tuple[Path, str, PeerStats]]:
        for job in self._jobs.all():
            if job.membership is not None:
                for host, _ in self._others(job):
                    path = job.incarnation, host.index
                    yield path, host.address, now.peer_stats(job.number, host.index)

    def _peers(self, jobs: list[Job], now: HostSnapshot) -> dict[str, PeerFacts]:
        ret: dict[str, PeerFacts] = {}
        for job in jobs:
            for host, state in self._others(job):
                rtt = now.peer_stats(job.number, host.index).srtt_ns / 1e9
                other = ret.get(host.address, PeerFacts(True, 0.0))
                shut = other.quarantined or job.quarantine_s(host.index) > 0
                ret[host.address] = PeerFacts(other.up and state is State.UP, max(other.rtt_s, rtt), shut)
        return ret

    @staticmethod
    def _others(job: Job) -> list[tuple[Host, State]]:
        """A free seat of an elastic job is no peer: it would be one that is silent."""
        return [(host, state) for host, state in job.hosts() if host is not job.own and not host.vacant]


def _labels(jobs: list[Job]) -> list[str]:
    """The names of jobs; of several of one name, which differ in their secret, all but the first are numbered."""
    seen: Counter[str] = Counter()
    labels: dict[Job, str] = {}
    for job in sorted(jobs, key=lambda job: not job.secret):
        seen[job.name] += 1
        labels[job] = job.name if seen[job.name] == 1 else f"{job.name} ({seen[job.name]})"
    return [labels[job] for job in jobs]
