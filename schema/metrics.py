# SPDX-License-Identifier: Apache-2.0
"""The metrics of a daemon: what Prometheus reads, and the table of docs/operations.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schema.rows import SchemaError, lowered
from schema.text import WIDTH

KINDS = ("counter", "gauge", "histogram", "info")


@dataclass(frozen=True)
class Metric:
    """One metric. A counter is exported with `_total` behind its name, an info with `_info`."""

    kind: str
    name: str
    text: str
    """One sentence; unit and meaning."""
    labels: str = ""
    """Separated by spaces."""

    @property
    def exported(self) -> str:
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


METRICS = (
    Metric(
        "counter", "ultima_ops", "Ops that ended here, by outcome; insufficient: own values alone.", "ultima_job status"
    ),
    Metric("counter", "ultima_bytes", "Payload sent to and received from other hosts.", "ultima_job direction"),
    Metric("counter", "ultima_bucket_bytes", "Bytes of all buckets of ops that ended here.", "ultima_job"),
    Metric(
        "counter",
        "ultima_wire_bytes",
        "Payload of ops with a form of few bits (wire).",
        "ultima_job wire direction",
    ),
    Metric(
        "counter",
        "ultima_wire_value_bytes",
        "Bytes of arrays that such ops received as that payload.",
        "ultima_job wire",
    ),
    Metric(
        "counter",
        "ultima_rounds",
        "Rounds of local SGD of ranks here: stepped, missed, void, state, failed.",
        "ultima_job outcome",
    ),
    Metric("counter", "ultima_round_seconds", "Time of such rounds, from call to result.", "ultima_job"),
    Metric(
        "counter",
        "ultima_missing_bytes",
        "Bytes missing: absent, silent, lost, closed, view, unknown.",
        "ultima_job reason",
    ),
    Metric("counter", "ultima_repaired_bytes", "Bytes that were lost first and arrived again in time."),
    Metric("counter", "ultima_events", "Events of this host, by the kinds of `ultima events`.", "kind"),
    Metric("counter", "ultima_relayed_bytes", "Bytes of datagrams that this host forwarded between others."),
    Metric("counter", "ultima_relay_refused_packets", "Datagrams that its relay refused, as from no host that may."),
    Metric("counter", "ultima_peer_lost_bytes", "Bytes to a peer that were lost on the way.", "peer"),
    Metric(
        "counter",
        "ultima_culprit",
        "Ops for which a host was to blame: sender, path, receiver, gone, udp.",
        "peer reason",
    ),
    Metric(
        "counter",
        "ultima_peer_violations",
        "Times that packets in a peer's name broke the protocol.",
        "peer",
    ),
    Metric(
        "counter", "ultima_kernel_drops", "Datagrams dropped by the kernel because a socket's buffer was full.", "lane"
    ),
    Metric("counter", "ultima_engine_cpu_seconds", "CPU time of a lane's thread.", "lane"),
    Metric("counter", "ultima_daemon_cpu_seconds", "CPU time of the whole daemon."),
    Metric("counter", "ultima_history_errors", "Failed attempts to write to the history on disk."),
    Metric(
        "histogram",
        "ultima_op_duration_seconds",
        "Time of ops, from the first call here to the end; 13 bounds, 1 ms to 10 s.",
        "ultima_job",
    ),
    Metric("gauge", "ultima_contributors", "Hosts in every byte of the newest op.", "ultima_job"),
    Metric("gauge", "ultima_hosts", "Hosts of the job.", "ultima_job"),
    Metric("gauge", "ultima_world_size", "Ranks of the job.", "ultima_job"),
    Metric(
        "counter",
        "ultima_view_changes",
        "Changes of an elastic job's view: hosts came, left, are gone.",
        "ultima_job reason",
    ),
    Metric("counter", "ultima_state_bytes", "State given to, and taken from, other hosts.", "ultima_job direction"),
    Metric("gauge", "ultima_view", "Number of the newest view of an elastic job.", "ultima_job"),
    Metric("gauge", "ultima_view_members", "Ranks that are in it.", "ultima_job"),
    Metric("gauge", "ultima_view_least", "Ranks that an op of it needs.", "ultima_job"),
    Metric("gauge", "ultima_deadline_seconds", "Deadline of the newest op with a receipt.", "ultima_job"),
    Metric("gauge", "ultima_computed_share", "Least share of the time that a rank here computes.", "ultima_job"),
    Metric("gauge", "ultima_oldest_op_seconds", "Age of the oldest open op; 0 for none."),
    Metric(
        "gauge", "ultima_peer_up", "1 while the peer is connected in all jobs that it shares with this host.", "peer"
    ),
    Metric("gauge", "ultima_peer_rtt_seconds", "Smoothed round trip, the slowest of all lanes and jobs.", "peer"),
    Metric(
        "gauge", "ultima_peer_quarantined", "1 while a peer has no path because its packets broke the protocol.", "peer"
    ),
    Metric(
        "gauge",
        "ultima_straggler_score",
        "Share of a job's newest 256 ops that a peer is to blame for; its largest.",
        "peer",
    ),
    Metric(
        "gauge", "ultima_receive_buffer_bytes", "Receive buffer of a lane's socket: asked for, and granted.", "kind"
    ),
    Metric("gauge", "ultima_healthy", "1 while ops make progress; 0 while one is open beyond its deadline."),
    Metric("gauge", "ultima_start_time_seconds", "When the daemon started, in seconds since 1970."),
    Metric("info", "ultima_build", "Version and CPU features of this daemon.", "version wire_version simd"),
    Metric("gauge", "ultima_insecure", "1 where peers are not authenticated (--insecure)."),
    Metric(
        "gauge",
        "ultima_certificate_not_after_seconds",
        "When a certificate expires, in seconds since 1970.",
        "kind",
    ),
    Metric(
        "gauge",
        "ultima_certificate_warning",
        "1 if a certificate is in its last quarter, or new files are not valid.",
    ),
    Metric("gauge", "ultima_history_on_disk", "1 while the history is written to disk."),
    Metric("gauge", "ultima_history_bytes", "Size of the history on disk."),
)


def check_metrics(metrics: Iterable[Metric]) -> None:
    """Raises SchemaError for a metric that Prometheus would not take, or that is there twice."""
    seen: set[str] = set()
    for row in metrics:
        if row.kind not in KINDS:
            raise SchemaError(f"metric {row.name}: kind {row.kind}: allowed: {', '.join(KINDS)}")
        if row.name in seen:
            raise SchemaError(f"metric {row.name}: it is there already")
        if not row.name.startswith("ultima_") or row.name.endswith(("_total", "_info")):
            raise SchemaError(f"metric {row.name}: must begin with ultima_, and not end with what its kind adds")
        if {"ultima_job", "peer"} <= set(row.labels.split()):
            raise SchemaError(f"metric {row.name}: labels {row.labels}: no series is by job and peer")
        seen.add(row.name)


def document(metrics: Iterable[Metric], counters: bool) -> list[str]:
    """A table of docs/operations.md: of counters, or of all else."""
    lines = [f"| {'counter' if counters else 'gauge or histogram'} | meaning |", "|---|---|"]
    for row in metrics:
        if (row.kind == "counter") is counters:
            labels = f"{{{','.join(row.labels.split())}}}" if row.labels else ""
            lines.append(f"| `{row.exported}{labels}` | {lowered(row.text.removesuffix('.'))} |")
    wide = [line for line in lines if len(line) > WIDTH]
    if wide:
        raise SchemaError(f"a line of the table of metrics has more than {WIDTH} characters: {wide[0]}")
    return lines


def python_rows(metrics: Iterable[Metric]) -> list[str]:
    """The rows that the daemon shows them by."""
    rows = (f"    Metric({row.name!r}, {row.text!r}, {tuple(row.labels.split())!r})," for row in metrics)
    return ["ROWS = (", *rows, ")"]
