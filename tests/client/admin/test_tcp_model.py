# SPDX-License-Identifier: Apache-2.0
"""The model of TCP beside which predictions stand, against the figures of its sources and a ring that is played."""

import math

import pytest

from ultima.admin.tcp_model import flow_bytes_per_s, ring_s, window_packets


@pytest.mark.parametrize(("loss", "packets"), [(1e-2, 12), (1e-3, 38), (1e-4, 187), (1e-5, 1054), (1e-6, 5926)])
def test_window__is_that_of_rfc_9438_at_a_tenth_of_a_second(loss: float, packets: int) -> None:
    """Section 5.1, the table for C = 0.4, in whole packets."""
    assert window_packets(loss, 0.1) == pytest.approx(packets, abs=1)
    assert window_packets(0, 0.1) == math.inf


def test_flow__is_bounded_by_its_window_or_by_the_link() -> None:
    # Measured over Linux: one flow of cubic carries 2.8 Mbit/s at a round trip of 50 ms and 1 %.
    assert flow_bytes_per_s(1e9 / 8, 0.01, 0.05) * 8 == pytest.approx(2.8e6, rel=0.02)
    assert flow_bytes_per_s(1e9 / 8, 0, 0.05) * 8 == pytest.approx(1e9 * 1448 / 1514)
    assert flow_bytes_per_s(1e6 / 8, 0.01, 0.05) * 8 == pytest.approx(1e6 * 1448 / 1514)


def played(size: int, hosts: int, flow: float, delay: float, pieces: int) -> float:
    """A ring of hosts alike, each part in so many pieces: a piece goes on once it has come and the link is free."""
    piece, free, came = size / hosts / pieces / flow, 0.0, [0.0] * pieces
    for _ in range(2 * (hosts - 1)):
        for each in range(pieces):
            free = max(free, came[each]) + piece
            came[each] = free + delay
    return came[-1]


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.3])
def test_ring__is_as_fast_as_one_that_never_rests(hosts: int, delay: float) -> None:
    found = ring_s(1_000_000, hosts, 1e6, delay)
    piece = 1 / hosts / 1000
    assert found <= played(1_000_000, hosts, 1e6, delay, 1000) + 1e-9 <= found + 2 * hosts * piece + 1e-8
