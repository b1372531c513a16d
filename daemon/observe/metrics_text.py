# SPDX-License-Identifier: Apache-2.0
"""The daemon's counters in the text form of Prometheus. metric_rows.py names each and says what it means.

`Facts` are copied in the event loop, in well under a millisecond; `render` makes the text of them in another thread. No
series is by job times peer, so 16 jobs and 64 peers stay below `SERIES_MAX`. Series are of live jobs and of their peers
alone. The label is `ultima_job`, because Prometheus has `job` for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from ultima.daemon.observe.durations import BOUNDS_S
from ultima.daemon.observe.metric_rows import BY_NAME
from ultima.daemon.observe.metrics import STRAGGLER_OPS, Facts, JobFacts
from ultima.daemon.observe.record import REASONS, TROUBLES, UNKNOWN
from ultima.daemon.observe.ring import culprits_in

SERIES_MAX = 1650
PEERS_MAX = 64
Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)
OTHER = "other"  # stands for all peers beyond
_BLAMES = (*TROUBLES[1:], UNKNOWN)
_MISSING = (*REASONS[1:], UNKNOWN)


def render(facts: Facts) -> bytes:
    """The text, in UTF-8."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(facts))
    return generate_latest(registry)


class _Collector:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        yield from _daemon(self._facts)
        yield from _jobs(self._facts.jobs)
        yield from _views(self._facts.jobs)
        yield from _peers(self._facts)


def _counter(name: str, rows: Iterable[tuple[Sequence[str], float]]) -> CounterMetricFamily:
    row = BY_NAME[name]
    return _filled(CounterMetricFamily(name, row.text, labels=row.labels), rows)


def _gauge(name: str, rows: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
    row = BY_NAME[name]
    return _filled(GaugeMetricFamily(name, row.text, labels=row.labels), rows)


def _filled(family: Family, rows: Iterable[tuple[Sequence[str], float]]) -> Family:
    for labels, value in rows:
        family.add_metric(list(labels), value)
    return family


def _one(value: float) -> list[tuple[Sequence[str], float]]:
    """The row of a metric without labels."""
    return [((), value)]


def _daemon(facts: Facts) -> Iterator[Metric]:
    build = {"version": facts.version, "wire_version": str(facts.wire_version), "simd": facts.simd}
    yield InfoMetricFamily("ultima_build", BY_NAME["ultima_build"].text, value=build)
    yield _gauge("ultima_start_time_seconds", _one(facts.start_s))
    yield _gauge("ultima_healthy", _one(facts.healthy))
    yield _gauge("ultima_oldest_op_seconds", _one(facts.oldest_op_s))
    yield _counter("ultima_daemon_cpu_seconds", _one(facts.cpu_s))
    yield _counter("ultima_repaired_bytes", _one(facts.repaired_bytes))
    yield _counter("ultima_relayed_bytes", _one(facts.relay.get("bytes", 0)))
    yield _counter("ultima_relay_refused_packets", _one(facts.relay.get("refused", 0) + facts.relay.get("forged", 0)))
    buffers = [(["asked"], facts.receive_asked), (["granted"], facts.receive_granted)]
    yield _gauge("ultima_receive_buffer_bytes", buffers)
    yield _gauge("ultima_history_on_disk", _one(facts.on_disk))
    yield _counter("ultima_history_errors", _one(facts.history_errors))
    yield _gauge("ultima_history_bytes", _one(facts.history_bytes))
    yield _gauge("ultima_insecure", _one(facts.insecure))
    yield _gauge("ultima_certificate_warning", _one(facts.certificate_warning))
    ends = [([kind], at) for kind, at in sorted(facts.not_after_s.items())]
    yield _gauge("ultima_certificate_not_after_seconds", ends)
    yield _counter("ultima_events", [([kind], count) for kind, count in sorted(facts.events.items())])
    lanes = list(enumerate(facts.lanes))
    drops = [([str(lane)], counters.get("kernel_drops", 0)) for lane, counters in lanes]
    yield _counter("ultima_kernel_drops", drops)
    cpu = [([str(lane)], counters.get("cpu_ns", 0) / 1e9) for lane, counters in lanes]
    yield _counter("ultima_engine_cpu_seconds", cpu)


def _jobs(jobs: Sequence[JobFacts]) -> Iterator[Metric]:
    ops = [([job.name, status], count) for job in jobs for status, count in job.ops.items()]
    yield _counter("ultima_ops", ops)
    moved = [
        ([job.name, direction], count)
        for job in jobs
        for direction, count in (("sent", job.sent_bytes), ("received", job.received_bytes))
    ]
    yield _counter("ultima_bytes", moved)
    yield _counter("ultima_bucket_bytes", [([job.name], job.bucket_bytes) for job in jobs])
    forms = [(job.name, wire, row) for job in jobs for wire, row in sorted(job.wires.items())]
    ways = [
        ([name, wire, way], count)
        for name, wire, row in forms
        for way, count in (("sent", row.sent), ("received", row.received))
    ]
    yield _counter("ultima_wire_bytes", ways)
    yield _counter("ultima_wire_value_bytes", [([name, wire], row.values) for name, wire, row in forms])
    outcomes = [([job.name, outcome], count) for job in jobs for outcome, count in job.rounds.items()]
    yield _counter("ultima_rounds", outcomes)
    local = [job for job in jobs if job.rounds]
    yield _counter("ultima_round_seconds", [([job.name], job.rounds_s) for job in local])
    yield _gauge("ultima_computed_share", [([job.name], job.computed_share) for job in local])
    missing = [([job.name, reason], job.missing.get(reason, 0)) for job in jobs for reason in _MISSING]
    yield _counter("ultima_missing_bytes", missing)
    row = BY_NAME["ultima_op_duration_seconds"]
    durations = HistogramMetricFamily(row.name, row.text, labels=row.labels)
    for job in jobs:
        durations.add_metric([job.name], _buckets(job.counts), job.sum_s)
    yield durations
    yield _gauge("ultima_contributors", [([job.name], job.contributors) for job in jobs])
    yield _gauge("ultima_hosts", [([job.name], len(job.hosts)) for job in jobs])
    yield _gauge("ultima_world_size", [([job.name], job.world_size) for job in jobs])
    yield _gauge("ultima_deadline_seconds", [([job.name], job.deadline_s) for job in jobs if job.deadline_s])


def _views(jobs: Sequence[JobFacts]) -> Iterator[Metric]:
    """Of those whose hosts come and go."""
    rows = [(job.name, job.view) for job in jobs if job.view is not None]
    changes = [([name, reason], count) for name, view in rows for reason, count in view.changes.items()]
    yield _counter("ultima_view_changes", changes)
    moved = [([name, way], count) for name, view in rows for way, count in view.state_bytes.items()]
    yield _counter("ultima_state_bytes", moved)
    yield _gauge("ultima_view", [([name], view.number) for name, view in rows])
    yield _gauge("ultima_view_members", [([name], view.members) for name, view in rows])
    yield _gauge("ultima_view_least", [([name], view.least) for name, view in rows])


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    total, ret = 0, []
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], counts, strict=True):
        total += count
        ret.append((bound, float(total)))
    return ret


def _peers(facts: Facts) -> Iterator[Metric]:
    """Of those that are in a job now, `PEERS_MAX` by address; the rest together."""
    named = set(sorted(facts.peers)[:PEERS_MAX])

    def by_peer(values: Mapping[str, float]) -> list[tuple[list[str], float]]:
        added: Counter[str] = Counter()
        for address, value in values.items():
            if address in facts.peers:
                added[address if address in named else OTHER] += value  # type: ignore[assignment]
        return [([address], added[address]) for address in sorted(added)]

    lost = {address: facts.lost.get(address, 0) for address in facts.peers}
    yield _counter("ultima_peer_lost_bytes", by_peer(lost))
    blamed: Counter[tuple[str, str]] = Counter()
    for (address, reason), count in facts.blamed.items():
        if address in facts.peers or address == UNKNOWN:
            blamed[address if address in named else OTHER, reason] += count
    rows = [(list(key), float(blamed[key])) for key in sorted(blamed) if key[1] in _BLAMES]
    yield _counter("ultima_culprit", rows)
    yield _gauge("ultima_peer_up", [([address], facts.peers[address].up) for address in sorted(named)])
    broke = {address: facts.violations.get(address, 0) for address in facts.peers}
    yield _counter("ultima_peer_violations", by_peer(broke))
    yield _gauge("ultima_peer_quarantined", [([a], facts.peers[a].quarantined) for a in sorted(named)])
    yield _gauge(
        "ultima_peer_rtt_seconds", [([a], facts.peers[a].rtt_s) for a in sorted(named) if facts.peers[a].rtt_s]
    )
    scores = _scores(facts.jobs)
    yield _gauge("ultima_straggler_score", [([address], scores.get(address, 0.0)) for address in sorted(named)])


def _scores(jobs: Sequence[JobFacts]) -> dict[str, float]:
    ret: dict[str, float] = {}
    for job in jobs:
        ops = culprits_in(job.newest)[-STRAGGLER_OPS:]
        for host, count in Counter(ops).items():
            if host < len(job.hosts):
                address = job.hosts[host]
                ret[address] = max(ret.get(address, 0.0), count / len(ops))
    return ret
