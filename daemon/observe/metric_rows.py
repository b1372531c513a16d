# SPDX-License-Identifier: Apache-2.0
"""The names of the metrics, with what they say and their labels."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One metric, without what is added to its name by its kind."""

    name: str
    text: str
    labels: tuple[str, ...]


# generated: metrics (schema/)
ROWS = (
    Metric("ultima_ops", "Ops that ended here, by outcome; insufficient: own values alone.", ("ultima_job", "status")),
    Metric("ultima_bytes", "Payload sent to and received from other hosts.", ("ultima_job", "direction")),
    Metric("ultima_bucket_bytes", "Bytes of all buckets of ops that ended here.", ("ultima_job",)),
    Metric("ultima_wire_bytes", "Payload of ops with a form of few bits (wire).", ("ultima_job", "wire", "direction")),
    Metric(
        "ultima_wire_value_bytes", "Bytes of arrays that such ops received as that payload.", ("ultima_job", "wire")
    ),
    Metric(
        "ultima_rounds",
        "Rounds of local SGD of ranks here: stepped, missed, void, state, failed.",
        ("ultima_job", "outcome"),
    ),
    Metric("ultima_round_seconds", "Time of such rounds, from call to result.", ("ultima_job",)),
    Metric(
        "ultima_missing_bytes", "Bytes missing: absent, silent, lost, closed, view, unknown.", ("ultima_job", "reason")
    ),
    Metric("ultima_repaired_bytes", "Bytes that were lost first and arrived again in time.", ()),
    Metric("ultima_events", "Events of this host, by the kinds of `ultima events`.", ("kind",)),
    Metric("ultima_relayed_bytes", "Bytes of datagrams that this host forwarded between others.", ()),
    Metric("ultima_relay_refused_packets", "Datagrams that its relay refused, as from no host that may.", ()),
    Metric("ultima_peer_lost_bytes", "Bytes to a peer that were lost on the way.", ("peer",)),
    Metric(
        "ultima_culprit", "Ops for which a host was to blame: sender, path, receiver, gone, udp.", ("peer", "reason")
    ),
    Metric("ultima_peer_violations", "Times that packets in a peer's name broke the protocol.", ("peer",)),
    Metric("ultima_kernel_drops", "Datagrams dropped by the kernel because a socket's buffer was full.", ("lane",)),
    Metric("ultima_engine_cpu_seconds", "CPU time of a lane's thread.", ("lane",)),
    Metric("ultima_daemon_cpu_seconds", "CPU time of the whole daemon.", ()),
    Metric("ultima_history_errors", "Failed attempts to write to the history on disk.", ()),
    Metric(
        "ultima_op_duration_seconds",
        "Time of ops, from the first call here to the end; 13 bounds, 1 ms to 10 s.",
        ("ultima_job",),
    ),
    Metric("ultima_contributors", "Hosts in every byte of the newest op.", ("ultima_job",)),
    Metric("ultima_hosts", "Hosts of the job.", ("ultima_job",)),
    Metric("ultima_world_size", "Ranks of the job.", ("ultima_job",)),
    Metric(
        "ultima_view_changes", "Changes of an elastic job's view: hosts came, left, are gone.", ("ultima_job", "reason")
    ),
    Metric("ultima_state_bytes", "State given to, and taken from, other hosts.", ("ultima_job", "direction")),
    Metric("ultima_view", "Number of the newest view of an elastic job.", ("ultima_job",)),
    Metric("ultima_view_members", "Ranks that are in it.", ("ultima_job",)),
    Metric("ultima_view_least", "Ranks that an op of it needs.", ("ultima_job",)),
    Metric("ultima_deadline_seconds", "Deadline of the newest op with a receipt.", ("ultima_job",)),
    Metric("ultima_computed_share", "Least share of the time that a rank here computes.", ("ultima_job",)),
    Metric("ultima_oldest_op_seconds", "Age of the oldest open op; 0 for none.", ()),
    Metric("ultima_peer_up", "1 while the peer is connected in all jobs that it shares with this host.", ("peer",)),
    Metric("ultima_peer_rtt_seconds", "Smoothed round trip, the slowest of all lanes and jobs.", ("peer",)),
    Metric("ultima_peer_quarantined", "1 while a peer has no path because its packets broke the protocol.", ("peer",)),
    Metric(
        "ultima_straggler_score", "Share of a job's newest 256 ops that a peer is to blame for; its largest.", ("peer",)
    ),
    Metric("ultima_receive_buffer_bytes", "Receive buffer of a lane's socket: asked for, and granted.", ("kind",)),
    Metric("ultima_healthy", "1 while ops make progress; 0 while one is open beyond its deadline.", ()),
    Metric("ultima_start_time_seconds", "When the daemon started, in seconds since 1970.", ()),
    Metric("ultima_build", "Version and CPU features of this daemon.", ("version", "wire_version", "simd")),
    Metric("ultima_insecure", "1 where peers are not authenticated (--insecure).", ()),
    Metric("ultima_certificate_not_after_seconds", "When a certificate expires, in seconds since 1970.", ("kind",)),
    Metric("ultima_certificate_warning", "1 if a certificate is in its last quarter, or new files are not valid.", ()),
    Metric("ultima_history_on_disk", "1 while the history is written to disk.", ()),
    Metric("ultima_history_bytes", "Size of the history on disk.", ()),
)
# generated: end
BY_NAME = {row.name: row for row in ROWS}
