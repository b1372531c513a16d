# SPDX-License-Identifier: Apache-2.0
"""What the engine counts of each peer, and how the counters of several lanes become those of one engine."""

from __future__ import annotations

from dataclasses import dataclass

from ultima.daemon.engine.option_struct import NEVER


@dataclass(frozen=True, slots=True)
class PeerStats:
    """One peer host of a job: the fields of struct ut_peer_stats by their names."""

    # generated: ut_peer_stats (schema/)
    up: bool = False
    """1 once it is connected and not absent."""
    srtt_ns: int = 0
    """Smoothed round trip; 0: not known."""
    sent_bytes: int = 0
    """Bytes of datagrams of data sent to it."""
    received_bytes: int = 0
    """Bytes of datagrams of data received from it."""
    lost_bytes: int = 0
    """How many of the sent bytes were lost."""
    window_bytes: int = NEVER
    """Congestion window in bytes; NEVER, the largest number, where there is none."""
    base_rtt_ns: int = 0
    """Least round trip of the last seconds; 0: not known."""
    ce_packets: int = 0
    """Packets sent that were marked on the way (ECN)."""
    window_cuts: int = 0
    """How often the congestion control has reduced its window."""
    sent_packets: int = 0
    """Data packets sent since the path was made."""
    feedbacks_sent: int = 0
    """Feedbacks and grants sent since the path was made."""
    feedbacks_heard: int = 0
    """Feedbacks and grants that came at the feedback port."""
    feedbacks_beside: int = 0
    """Feedbacks and grants that came at the data port, beside data."""
    # generated: end


PEER_FIELDS = tuple(PeerStats.__dataclass_fields__)
# How the counters of several lanes become those of one engine: all else is added up.
# generated: counters of lanes (schema/)
LEAST = frozenset({"oldest_open_ns", "oldest_deadline_ns"})
LARGEST = frozenset({"arrival_rate", "receive_wanted", "send_drain_rate", "send_pace", "send_queued_max", "send_errno"})
# generated: end
