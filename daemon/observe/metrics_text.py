# SPDX-License-Identifier: Apache-2.0
"""The daemon's counters in the text form of Prometheus. docs/operations.md says what each of them means.

`Facts` are copied in the event loop, in well under a millisecond; `render` makes the text of them in another thread. No
series is by job times peer, so 16 jobs and 64 peers stay below `SERIES_MAX`. Series are of live jobs and of their peers
alone. The label is `ultima_job`, because Prometheus has `job` for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from ultima.daemon.observe.durations import BOUNDS_S
from ultima.daemon.observe.metrics import STRAGGLER_OPS, Facts, JobFacts
from ultima.daemon.observe.record import REASONS, TROUBLES, UNKNOWN
from ultima.daemon.observe.ring import culprits_in

SERIES_MAX = 1500
PEERS_MAX = 64
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
        yield from _peers(self._facts)


def _counter(name: str, text: str, label: str, rows: Iterable[tuple[Sequence[str], float]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=label.split())
    for labels, value in rows:
        family.add_metric(list(labels), value)
    return family


def _gauge(name: str, text: str, label: str, rows: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=label.split())
    for labels, value in rows:
        family.add_metric(list(labels), value)
    return family


def _daemon(facts: Facts) -> Iterator[Metric]:
    build = {"version": facts.version, "wire_version": str(facts.wire_version), "simd": facts.simd}
    yield InfoMetricFamily("ultima_build", "Version and CPU features of this daemon.", value=build)
    yield GaugeMetricFamily(
        "ultima_start_time_seconds", "When the daemon started, in seconds since 1970.", value=facts.start_s
    )
    yield GaugeMetricFamily(
        "ultima_healthy", "1 while ops make progress; at 0 the watchdog restarts the daemon.", value=facts.healthy
    )
    yield GaugeMetricFamily(
        "ultima_oldest_op_seconds", "Age of the oldest open op; 0 for none.", value=facts.oldest_op_s
    )
    yield CounterMetricFamily("ultima_daemon_cpu_seconds", "CPU time of the whole daemon.", value=facts.cpu_s)
    yield CounterMetricFamily("ultima_repaired_bytes", "Bytes lost and sent again in time.", value=facts.repaired_bytes)
    yield _gauge(
        "ultima_receive_buffer_bytes",
        "Receive buffer of a lane's data socket: what was asked for, and what the kernel granted.",
        "kind",
        [(["asked"], facts.receive_asked), (["granted"], facts.receive_granted)],
    )
    yield GaugeMetricFamily("ultima_history_on_disk", "1 while the history is written to disk.", value=facts.on_disk)
    yield CounterMetricFamily(
        "ultima_history_errors", "Failed attempts to write to the history on disk.", value=facts.history_errors
    )
    yield GaugeMetricFamily("ultima_history_bytes", "Size of the history on disk.", value=facts.history_bytes)
    yield GaugeMetricFamily("ultima_insecure", "1 where peers are not authenticated.", value=facts.insecure)
    yield GaugeMetricFamily(
        "ultima_certificate_warning",
        "1 where less than a quarter of a certificate's life is left, or new files are not valid.",
        value=facts.certificate_warning,
    )
    ends = [([kind], at) for kind, at in sorted(facts.not_after_s.items())]
    yield _gauge(
        "ultima_certificate_not_after_seconds", "When a certificate expires, in seconds since 1970.", "kind", ends
    )
    lanes = list(enumerate(facts.lanes))
    drops = [([str(lane)], counters.get("kernel_drops", 0)) for lane, counters in lanes]
    yield _counter(
        "ultima_kernel_drops", "Datagrams that the kernel dropped because a socket's buffer was full.", "lane", drops
    )
    cpu = [([str(lane)], counters.get("cpu_ns", 0) / 1e9) for lane, counters in lanes]
    yield _counter("ultima_engine_cpu_seconds", "CPU time of a lane's thread.", "lane", cpu)


def _jobs(jobs: Sequence[JobFacts]) -> Iterator[Metric]:
    ops = [([job.name, status], count) for job in jobs for status, count in job.ops.items()]
    yield _counter("ultima_ops", "Ops that ended here, by outcome.", "ultima_job status", ops)
    moved = [
        ([job.name, direction], count)
        for job in jobs
        for direction, count in (("sent", job.sent_bytes), ("received", job.received_bytes))
    ]
    yield _counter("ultima_bytes", "Payload to and from other hosts.", "ultima_job direction", moved)
    buckets = [([job.name], job.bucket_bytes) for job in jobs]
    yield _counter("ultima_bucket_bytes", "Bytes of all buckets of ops that ended here.", "ultima_job", buckets)
    missing = [([job.name, reason], job.missing.get(reason, 0)) for job in jobs for reason in _MISSING]
    yield _counter("ultima_missing_bytes", "Bytes missing at the end of ops.", "ultima_job reason", missing)
    durations = HistogramMetricFamily(
        "ultima_op_duration_seconds", "Durations of ops, from start to end.", labels=["ultima_job"]
    )
    for job in jobs:
        durations.add_metric([job.name], _buckets(job.counts), job.sum_s)
    yield durations
    contributors = [([job.name], job.contributors) for job in jobs]
    yield _gauge("ultima_contributors", "Hosts in every byte of the newest op.", "ultima_job", contributors)
    hosts = [([job.name], len(job.hosts)) for job in jobs]
    yield _gauge("ultima_hosts", "Hosts of the job.", "ultima_job", hosts)
    yield _gauge("ultima_world_size", "Ranks of the job.", "ultima_job", [([job.name], job.world_size) for job in jobs])
    deadlines = [([job.name], job.deadline_s) for job in jobs if job.deadline_s]
    yield _gauge("ultima_deadline_seconds", "Deadline of the last op with a receipt.", "ultima_job", deadlines)


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
    yield _counter("ultima_peer_lost_bytes", "Bytes to a peer that were lost on the way.", "peer", by_peer(lost))
    blamed: Counter[tuple[str, str]] = Counter()
    for (address, reason), count in facts.blamed.items():
        if address in facts.peers or address == UNKNOWN:
            blamed[address if address in named else OTHER, reason] += count
    rows = [(list(key), float(blamed[key])) for key in sorted(blamed) if key[1] in _BLAMES]
    yield _counter("ultima_culprit", "Ops for which a host was to blame, this one included.", "peer reason", rows)
    ups = [([address], facts.peers[address].up) for address in sorted(named)]
    yield _gauge("ultima_peer_up", "1 while a peer is connected in all its jobs.", "peer", ups)
    broke = {address: facts.violations.get(address, 0) for address in facts.peers}
    text = "Times that packets in a peer's name broke the protocol and its path was made again."
    yield _counter("ultima_peer_violations", text, "peer", by_peer(broke))
    shut = [([address], facts.peers[address].quarantined) for address in sorted(named)]
    yield _gauge(
        "ultima_peer_quarantined",
        "1 while no path to a peer is made because its packets broke the protocol.",
        "peer",
        shut,
    )
    rtts = [([a], facts.peers[a].rtt_s) for a in sorted(named) if facts.peers[a].rtt_s]
    yield _gauge("ultima_peer_rtt_seconds", "Smoothed round trip, the slowest of all lanes and jobs.", "peer", rtts)
    scores = _scores(facts.jobs)
    rows = [([address], scores.get(address, 0.0)) for address in sorted(named)]
    text = "Share of a job's newest ops for which it was to blame, 0 to 1; of several jobs the largest."
    yield _gauge("ultima_straggler_score", text, "peer", rows)


def _scores(jobs: Sequence[JobFacts]) -> dict[str, float]:
    ret: dict[str, float] = {}
    for job in jobs:
        ops = culprits_in(job.newest)[-STRAGGLER_OPS:]
        for host, count in Counter(ops).items():
            if host < len(job.hosts):
                address = job.hosts[host]
                ret[address] = max(ret.get(address, 0.0), count / len(ops))
    return ret
