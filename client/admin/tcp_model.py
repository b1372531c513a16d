# SPDX-License-Identifier: Apache-2.0
"""What TCP takes for an all-reduce at least: a model to hold predictions against, no measurement. Pure functions.

Libraries over TCP reduce large buckets in a ring: 2 (N - 1) steps, in each of which a host sends a part of 1/N of the
bucket to its neighbour over one connection. What such a connection carries between losses is known:

* cubic has a mean window of (C (3 + b) / (4 (1 - b)))^(1/4) (RTT / p)^(3/4) packets at a share p of lost ones, with
  C = 0.4 and b = 0.7 (RFC 9438, 5.1), RTT in seconds;
* but no less than Reno's, sqrt(3 / (2 p)) (RFC 9438, 4.3, and Mathis et al., 1997).

All else is in TCP's favour: the link is full whenever the window allows it, nothing is lost by a queue of its own, no
connection starts slowly or times out, buffers are large, and the parts of a step follow one another without a rest.
"""

from __future__ import annotations

import math

PAYLOAD_BYTES, FRAME_BYTES = 1448, 1514
"""Of a full packet with time stamps, and what the wire carries for it, as the simulator counts."""
CUBIC_C, CUBIC_BETA = 0.4, 0.7


def window_packets(loss: float, round_trip_s: float) -> float:
    """The mean window of one connection of cubic, in packets, at a share of lost packets from 0 to 1. Infinite if none
    is lost."""
    if loss <= 0:
        return math.inf
    factor = math.pow(CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA)), 0.25)
    return max(factor * math.pow(round_trip_s / loss, 0.75), math.sqrt(1.5 / loss))


def flow_bytes_per_s(link_bytes_per_s: float, loss: float, round_trip_s: float) -> float:
    """Payload that one connection carries in a second over a link of that rate, frames included."""
    most = link_bytes_per_s * PAYLOAD_BYTES / FRAME_BYTES
    return min(most, window_packets(loss, round_trip_s) * PAYLOAD_BYTES / round_trip_s)


def ring_s(size: int, hosts: int, flow: float, delay_s: float) -> float:
    """Least time of an all-reduce of so many bytes, at `flow` bytes a second of each connection, with that delay one
    way. A step lasts as long as its part takes, or as the first byte of it is under way if that is longer; the last
    part has to arrive."""
    part_s = size / hosts / flow
    return (2 * hosts - 3) * max(part_s, delay_s) + part_s + delay_s
