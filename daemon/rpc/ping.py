# SPDX-License-Identifier: Apache-2.0
"""The way to one other daemon, for `ultima ping`: round trip, loss, the packets that pass, the clock. Without a job.

It stands on the trial that `ultima doctor` uses (jobs/trial.py): a few datagrams between the ports that jobs use, and
the counts of both sides. So the other daemon answers only nodes that it knows, sends to nobody but its caller, and
bounds what each node may ask; one ping costs less than half of what a node may have at once.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.trial import ASK_BYTES, FULL_TRIES, PACKETS, SMALL_BYTES, Line, Ports, Trial
from ultima.daemon.rpc.local_checks import FAILURE, OK, WARNING, check
from ultima.daemon.rpc.udp_checks import Tried, of_udp
from ultima.v1 import admin_pb2, peer_pb2

ROUND_TRIPS = 10
ROUNDS_MAX = 12  # of datagrams, by turns to data and feedback ports
ROUNDS_BYTES = 24 << 10  # that all rounds may have the other daemon send: a quarter of what a node may have at once
CLOCK_US = 1_000_000  # by which clocks may differ before logs of two hosts are hard to read together
STEP_BYTES = 8  # to which the size of packets that pass is found out
LEAST_PAYLOAD = 512  # IPv4 must carry packets of 576 B
ETHERNET_PAYLOAD = 1472  # of a packet of 1500 B


async def ping(
    trial: Trial, place: Place, first: peer_pb2.ReachResponse, packet_bytes: int, answer: admin_pb2.PingResponse
) -> None:
    """Fills in what was measured and found; `first` is what the other daemon has said of itself, `packet_bytes` the
    payload of this host's full packets. Raises Refused."""
    name = str(place)
    async with trial.line(place) as line:
        await _times(line, answer, name)
        theirs: Ports = [(pair.data_port, pair.feedback_port) for pair in first.lanes]
        tried = await _datagrams(line, trial.ports, theirs, answer)
        checks = of_udp([Tried(name, *each) for each in tried])
        answer.checks.extend(checks)
        if all(each.verdict == OK for each in checks):
            answer.checks.append(_loss(answer, name))
            way = Way(line, trial.ports[:1], theirs[:1])
            await _packets(way, place, min(first.packet_bytes, packet_bytes), answer)


async def _times(line: Line, answer: admin_pb2.PingResponse, name: str) -> None:
    """Round trips over the control connection, and the clock by the fastest of them."""
    trips: list[tuple[int, int]] = []
    """How long one took, and by how much the other clock was ahead at its middle, both ns."""
    for _ in range(ROUND_TRIPS):
        began = time.time_ns()
        told = await line.ask()
        ended = time.time_ns()
        trips.append((ended - began, told.clock_ns - (began + ended) // 2))
    took = sorted(trip for trip, _ in trips)
    fastest, ahead = min(trips)
    answer.round_trips_count = len(trips)
    answer.rtt_min_us, answer.rtt_max_us = took[0] // 1000, took[-1] // 1000
    answer.rtt_median_us = round(statistics.median(took) / 1000)
    answer.clock_ahead_us, answer.clock_error_us = ahead // 1000, -(-fastest // 2000)
    if abs(answer.clock_ahead_us) - answer.clock_error_us <= CLOCK_US:
        answer.checks.append(check("clock", OK, "clocks agree to a second", subject=name))
        return
    way = "ahead of" if ahead > 0 else "behind"
    finding = f"its clock is {abs(ahead) / 1e9:.1f} s {way} the one here"
    remedy = "run a time service (systemd-timesyncd, chrony) on both; Ultima works, but logs do not fit together"
    answer.checks.append(check("clock", WARNING, finding, remedy, name))


async def _datagrams(
    line: Line, ours: Ports, theirs: Ports, answer: admin_pb2.PingResponse
) -> list[tuple[bool, int, bool, bool]]:
    """Rounds of small datagrams both ways at once, by turns to data and to feedback ports. Returns for each port the
    direction (True: from here to there), its number, whether it is a feedback port, and whether any came."""
    pairs = min(len(ours), len(theirs))
    cost = 2 * ASK_BYTES + pairs * PACKETS * SMALL_BYTES
    rounds = max(2, min(ROUNDS_MAX, ROUNDS_BYTES // cost) // 2 * 2)
    came = {(outward, feedback): [0] * pairs for outward in (True, False) for feedback in (True, False)}
    for number in range(rounds):
        feedback = bool(number % 2)
        there, here = await line.both(ours[:pairs], theirs[:pairs], feedback, SMALL_BYTES, PACKETS)
        for outward, counts in ((True, there), (False, here)):
            for at, count in enumerate(counts):
                came[outward, feedback][at] += min(count, PACKETS)
    answer.sent_there_count = answer.sent_here_count = rounds * pairs * PACKETS
    answer.came_there_count = sum(map(sum, (came[True, False], came[True, True])))
    answer.came_here_count = sum(map(sum, (came[False, False], came[False, True])))
    return [
        (outward, (theirs if outward else ours)[at][feedback], feedback, count > 0)
        for (outward, feedback), counts in came.items()
        for at, count in enumerate(counts)
    ]


def _loss(answer: admin_pb2.PingResponse, name: str) -> admin_pb2.Check:
    """Of ports that all are open."""
    ways = (
        ("there", answer.sent_there_count, answer.came_there_count),
        ("here", answer.sent_here_count, answer.came_here_count),
    )
    lost = [f"{sent - came} of {sent} datagrams did not arrive {way}" for way, sent, came in ways if came < sent]
    if not lost:
        told = answer.sent_there_count
        return check("loss", OK, f"all {told} datagrams arrived in each direction", subject=name)
    remedy = "look for a link that is full, and for errors and drops (`ip -s link`), on both hosts and between"
    return check("loss", WARNING, ", and ".join(lost), remedy, name)


class Way(NamedTuple):
    """Between one data port here and one there."""

    line: Line
    ours: Ports
    theirs: Ports

    async def passes(self, size: int) -> tuple[bool, bool]:
        """Whether packets of that payload get through, there and back. One may be lost by chance."""
        out = back = False
        for _ in range(FULL_TRIES):
            there, here = await self.line.both(self.ours, self.theirs, False, size, 1)
            out, back = out or sum(there) > 0, back or sum(here) > 0
            if out and back:
                break
        return out, back


async def _packets(way: Way, place: Place, full: int, answer: admin_pb2.PingResponse) -> None:
    """The largest packet that passes: full ones, or what a search finds."""
    v6 = ":" in place.address
    out, back = await way.passes(full)
    low, high = (full, full) if out and back else (LEAST_PAYLOAD, full)
    if low < high and full > ETHERNET_PAYLOAD:  # jumbo frames pass whole, or Ethernet's own may be left
        low, high = (ETHERNET_PAYLOAD,) * 2 if all(await way.passes(ETHERNET_PAYLOAD)) else (low, ETHERNET_PAYLOAD)
    while high - low > STEP_BYTES:
        middle = (low + high) // 2
        if all(await way.passes(middle)):
            low = middle
        else:
            high = middle
    answer.packet_bytes = low + headers(v6)
    row = mtu_check(full, out, back, v6, str(place))
    if row.verdict != OK:
        row.finding += f"; {answer.packet_bytes} B pass"
    answer.checks.append(row)


def headers(v6: bool) -> int:
    """Bytes of the IP and UDP headers before a payload."""
    return 48 if v6 else 28


def mtu_check(full: int, out: bool, back: bool, v6: bool, name: str) -> admin_pb2.Check:
    """Whether full packets get through; `full` is the payload of one, in bytes."""
    packet = full + headers(v6)
    if out and back:
        return check("mtu", OK, f"IP packets of {packet} B get through whole", subject=name)
    lost = " and ".join(way for way, came in (("to it", out), ("from it", back)) if not came)
    finding = f"IP packets of {packet} B do not get through {lost}, small ones do: the MTU on the way is less"
    remedy = f"set the MTU of all interfaces and switches to {packet} or more; until then packets go in pieces"
    return check("mtu", FAILURE, finding, remedy, name)
