# SPDX-License-Identifier: Apache-2.0
"""What a path between two hosts allows, and whether a socket buffer is in its way. Pure functions of measurements.

An op between two hosts may take the *goal*: what its bytes need at the rate at which data arrive, and two round trips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEADER_BYTES = 32
"""Of a full packet, whose datagram is `packet_bytes` of the daemon's status."""
FLYING_PACKETS = 32_768
"""Packets that one host may have under way to another (UT_SENT_MAX): no buffer and no sysctl changes it."""
NEAR = 1.15
"""The most that the judge of the simulator asks of any path with distance, up to 2 % of loss."""
FLYING_FULL = 0.9
"""Of FLYING_PACKETS, from which on they are what bounds the rate; what is measured differs by a few percent."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Of the socket by which a host receives, in bytes."""

    host: str
    granted: int
    wanted: int
    """What suffices for what was measured there, as its daemon says."""

    @property
    def enough(self) -> int:
        """In whole pages, for the sysctl."""
        return -(-self.wanted // 4096) * 4096


@dataclass(frozen=True, slots=True)
class Path:
    """What was measured between two hosts. None: it was not."""

    round_trip_us: float | None = None
    """The least, over TCP."""
    lost: float | None = None
    """Share of the data packets of both hosts that had to be sent again, while ops ran."""
    rate: float | None = None
    """Bytes a second of datagrams, as they arrive at the host where they arrive more slowly."""
    packet_bytes: int = 1472
    buffers: tuple[Buffer, ...] = ()
    """Those that are less than they have to be."""

    def goal_us(self, size: int) -> float | None:
        """What an op of so many bytes may take between the two."""
        if not self.rate or self.round_trip_us is None:
            return None
        sent = size * self.packet_bytes / (self.packet_bytes - HEADER_BYTES)
        return sent / self.rate * 1e6 + 2 * self.round_trip_us

    def held(self) -> float:
        """Bytes that are under way when the path is full."""
        return (self.rate or 0.0) * (self.round_trip_us or 0.0) / 1e6

    def shorter(self, buffer: Buffer) -> float:
        """The share of an op's time that a sufficient buffer saves at most: a link that lacks credit is busy for as
        large a part as may be outstanding of what it needs."""
        return 1 - (self.held() + buffer.granted / 2) / (self.held() + buffer.wanted / 2)

    def flying_most(self) -> int:
        """Bytes that one host may have under way to another."""
        return FLYING_PACKETS * self.packet_bytes

    def flying_full(self) -> bool:
        """Whether the path holds about as much as that."""
        return self.held() >= FLYING_FULL * self.flying_most()


def path_of(hosts: Sequence[str], told: Sequence[Sequence[Mapping[str, Any]]], rate: float | None = None) -> Path:
    """What the two hosts of a pair printed, of each the objects in order: `ultima status` before and after the ops, and
    `ultima ping` of one of them. |rate|: of the links in bytes a second, if somebody has said it. What is not there is
    not known: an older version has no such verb or field."""
    rates: list[int] = []
    buffers: list[Buffer] = []
    sent, lost, packet, trip = 0, 0, 1472, None
    for host, said in zip(hosts, told, strict=True):
        trip = next((each["rtt_min_s"] for each in said if each.get("rtt_min_s")), trip)
        engines = [each["engine"] for each in said if isinstance(each.get("engine"), Mapping)]
        if len(engines) < 2:
            continue
        packet = int(engines[-1].get("packet_bytes", 0)) or packet
        before, after = engines[0].get("counters", {}), engines[-1].get("counters", {})
        rates.append(after.get("arrival_rate", 0))
        sent += _more(before, after, "data_sent")
        lost += _more(before, after, "lost_packets") - _more(before, after, "spurious_losses")
        buffer = Buffer(host, int(engines[-1].get("receive_buffer_bytes", 0)), int(after.get("receive_wanted", 0)))
        if 0 < buffer.granted < buffer.wanted:
            buffers.append(buffer)
    return Path(
        round_trip_us=None if trip is None else float(trip) * 1e6,
        lost=max(lost, 0) / sent if sent else None,
        rate=rate or (min(rates) if len(rates) == len(hosts) and min(rates) else None),
        packet_bytes=packet,
        buffers=tuple(buffers),
    )


def _more(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> int:
    return int(after.get(name, 0)) - int(before.get(name, 0))
