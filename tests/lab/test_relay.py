# SPDX-License-Identifier: Apache-2.0
"""Jobs whose hosts stand behind NATs: their packets go by relay, or by a way that both sides opened, and receipts say
so. Values tell who is in each op, whatever way it went."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ultima
from tests.daemon.trust.papers import Authority
from tests.lab.cluster import BIN, PORT
from tests.lab.lab import Lab
from tests.lab.nat import MTU_LEAST, Kind, NatCluster, set_mtu
from tests.lab.test_trouble import pieces_sent, ranks, reduce_once
from ultima import Receipt
from ultima.admin.calls import get_status
from ultima.admin.past import get_events
from ultima.v1 import admin_pb2

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(180)]

FOUND_S = 40.0  # to find that nothing gets through, and to have a way around it; generous, for the machine is shared
RELAY_PORT = PORT + 5  # behind two lanes


@contextmanager
def behind_nats(hosts: int, behind: dict[int, Kind], **options: Any) -> Iterator[NatCluster]:
    with Lab(hosts, unit="packet") as lab, NatCluster(lab, behind, **options) as cluster:
        yield cluster


def job_of(cluster: NatCluster, index: int) -> admin_pb2.JobStatus:
    return get_status(str(cluster.socket(index))).jobs[0]


def ways(cluster: NatCluster) -> dict[tuple[int, int], tuple[int, bool]]:
    """Of each pair (from, to) that does not send straight: by which host, and whether they opened the way."""
    found = {}
    for index in range(len(cluster.lab.hosts)):
        for row in job_of(cluster, index).hosts:
            if row.HasField("relay_host"):
                found[index, row.host.index] = row.relay_host, row.way_opened
    return found


def reduce_until(cluster: NatCluster, jobs: list[ultima.Job], done: Callable[[], bool]) -> list[Receipt]:
    """Ops with a short deadline until it holds, then one of each lane that must be whole: the receipts of these."""
    limit = time.monotonic() + FOUND_S
    while not done():
        if time.monotonic() > limit:
            logs = "\n".join(f"--- {index}\n{cluster.log(index)}" for index in range(len(cluster.lab.hosts)))
            pytest.fail(f"not within {FOUND_S} s: {ways(cluster)}\n{logs}")
        reduce_once(jobs, 0.5)
    return reduce_once(jobs, 20.0) + reduce_once(jobs, 20.0)


def test_relay__a_host_behind_a_symmetric_nat_is_reached_by_the_others_own_relays() -> None:
    """Each of the others can answer to where the host says hello from, so no third one is needed."""
    with behind_nats(3, {2: "symmetric"}) as cluster, ranks(cluster) as jobs:
        receipts = reduce_until(cluster, jobs, lambda: len(ways(cluster)) == 4)
        assert all(receipt.complete for receipt in receipts), receipts
        found = ways(cluster)
        assert found.keys() == {(0, 2), (2, 0), (1, 2), (2, 1)}, found
        assert found[0, 2][0] == found[2, 0][0] != 2 != found[1, 2][0] == found[2, 1][0], (
            "nobody gets to host 2 unasked"
        )
        # What goes out of a NAT needs no relay, once it was tried.
        assert not found[0, 2][1] and not found[1, 2][1]
        assert {receipt.by_relay for receipt in receipts[:2]} == {(2,)}, receipts
        assert [receipt.relays for receipt in receipts[:2]] == [(found[0, 2][0],), (found[1, 2][0],)]
        assert "by relay with rank 2" in str(receipts[0])
        # The hosts say that there is a NAT: nothing has to fail to find it out.
        kinds = [event.kind for event in get_events(str(cluster.socket(0)))]
        assert "path_relayed" in kinds and "udp_blocked" not in kinds, kinds


def test_relay__two_hosts_behind_symmetric_nats_go_by_the_third() -> None:
    """Their packets are sealed, so the third host follows each to where its NAT lets it out, and needs no relay."""
    nats: dict[int, Kind] = {1: "symmetric", 2: "symmetric"}
    with behind_nats(3, nats, authority=Authority()) as cluster, ranks(cluster) as jobs:
        receipts = reduce_until(cluster, jobs, lambda: len(ways(cluster)) == 2)
        assert all(receipt.complete for receipt in receipts), receipts
        assert ways(cluster) == {(1, 2): (0, False), (2, 1): (0, False)}
        assert [receipt.by_relay for receipt in receipts[:3]] == [(), (2,), (1,)] and receipts[1].relays == (0,)
        assert "path_moved" in [event.kind for event in get_events(str(cluster.socket(0)))]
        time.sleep(1.5)  # counts are copied once a second
        forwarded = {(row.from_host, row.to_host): row.bytes for row in job_of(cluster, 0).relayed}
        # Each host sends each other one a third of 1.2 MB and a third of the sum, in each of two whole ops at least.
        for pair in ((1, 2), (2, 1)):
            assert forwarded[pair] > 2 * 2 * 400_000, (pair, forwarded)
        listing = [str(BIN / "ultima"), "status", "--socket", str(cluster.socket(1))]
        assert "packets to host 2 go by relay, host 0" in cluster.lab.host(1).run(listing).stdout
        told = [str(BIN / "ultima"), "explain", "--socket", str(cluster.socket(1))]
        assert "went by relay: host 0 at 10.43.0.1 forwarded them" in cluster.lab.host(1).run(told).stdout
        doctor = [str(BIN / "ultima"), "doctor", "--json", "--socket", str(cluster.socket(1))]
        checks = json.loads(cluster.lab.host(1).run(doctor, timeout=120).stdout)["checks"]
        assert [each["name"] for each in checks].count("relay") >= 1, checks


def test_relay__hosts_behind_cones_open_the_way_to_each_other() -> None:
    with behind_nats(3, {1: "cone", 2: "cone"}, always=True) as cluster, ranks(cluster) as jobs:
        receipts = reduce_until(
            cluster, jobs, lambda: len(ways(cluster)) == 6 and all(opened for _, opened in ways(cluster).values())
        )
        assert all(receipt.complete and not receipt.by_relay for receipt in receipts), receipts
        kinds = [event.kind for event in get_events(str(cluster.socket(1)))]
        assert kinds.index("path_relayed") < kinds.index("path_opened")


def test_relay__that_dies_is_named_and_the_others_go_on() -> None:
    """Of four hosts two can forward. When one of them dies, what went by it goes by the other one."""
    with behind_nats(4, {2: "symmetric", 3: "symmetric"}) as cluster, ranks(cluster) as jobs:
        reduce_until(cluster, jobs, lambda: len(ways(cluster)) == 10)
        by = ways(cluster)[2, 3][0]
        other = 1 - by
        began = time.monotonic()
        cluster.daemons[by].kill()
        cluster.daemons[by].wait()
        limit = began + FOUND_S
        left = [index for index in range(4) if index != by]
        mine = [jobs[index] for index in left]
        while True:
            found = [row for row in job_of(cluster, 2).hosts if row.host.index == 3]
            if found[0].HasField("relay_host") and found[0].relay_host == other:
                break
            assert time.monotonic() < limit, cluster.log(2)
            time.sleep(0.1)
        assert time.monotonic() - began < FOUND_S
        events = [event for event in get_events(str(cluster.socket(2))) if event.kind == "path_relay_lost"]
        assert any(f"go no more by host {by}" in event.text for event in events), events
        assert len(mine) == 3


STRANGE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(200):
    s.sendto(bytes([0x41, 0, 0, 0]) + number.to_bytes(4, "big") + bytes(1400), (sys.argv[1], int(sys.argv[2])))
s.setblocking(False)
try:
    print("answered", s.recv(9000))
except BlockingIOError:
    print("silent")
"""


def test_relay__a_stranger_is_refused_and_the_cap_holds() -> None:
    rate = 400_000
    with (
        behind_nats(3, {1: "symmetric", 2: "symmetric"}, rate_bytes_per_s=rate) as cluster,
        ranks(cluster) as jobs,
    ):
        reduce_until(cluster, jobs, lambda: len(ways(cluster)) == 6)
        before = cluster.lab.host(0).run([str(BIN / "ultima"), "metrics", "--socket", str(cluster.socket(0))]).stdout
        command = [sys.executable, "-c", STRANGE, cluster.addresses[0], str(RELAY_PORT)]
        assert cluster.lab.host(1).run(command).stdout.strip() == "silent"
        began, sent = time.monotonic(), _value(before, "ultima_relayed_bytes_total")
        reduce_once(jobs, 20.0)
        after = cluster.lab.host(0).run([str(BIN / "ultima"), "metrics", "--socket", str(cluster.socket(0))]).stdout
        took = time.monotonic() - began
        moved = _value(after, "ultima_relayed_bytes_total") - sent
        # A batch of 32 and a hundredth of a second may go at once.
        assert 0 < moved <= rate * took + 32 * 9216 + rate / 100, (moved, took)
        refused = [_value(text, "ultima_relay_refused_packets_total") for text in (before, after)]
        assert refused[1] - refused[0] >= 100, refused


def _value(text: str, name: str) -> float:
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name)))


@pytest.mark.parametrize("sealed", [True, False])
def test_relay__hosts_that_only_go_out_are_in_a_job_from_its_first_op(sealed: bool) -> None:
    """Nothing comes in at the NATs of hosts 1 and 2, no TCP port is forwarded, and nobody told their daemons. Host 0 is
    the only one that can be dialled."""
    nats: dict[int, Kind] = {1: "symmetric", 2: "symmetric"}
    authority = Authority() if sealed else None
    with behind_nats(3, nats, forwards=False, authority=authority) as cluster, ranks(cluster) as jobs:
        first = [reduce_once(jobs, 2.0) for _ in range(4)]
        assert all(receipt.complete for receipts in first for receipt in receipts), (first, ways(cluster))
        expected = {(1, 2), (2, 1)} if sealed else {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
        found = ways(cluster)
        assert found.keys() >= {(1, 2), (2, 1)} and found.keys() <= expected, found
        assert found[1, 2] == found[2, 1] == (0, False)
        assert 2 in first[-1][1].by_relay and 1 in first[-1][2].by_relay, first[-1]
        for index in (1, 2):
            assert "only goes out: no connection from 10.43.0.1" in cluster.log(index), cluster.log(index)


def test_relay__carries_what_a_narrow_path_lets_through() -> None:
    """The NAT of host 1 carries 1280 bytes, which the other hosts do not know: what goes by relay goes in pieces."""
    nats: dict[int, Kind] = {1: "symmetric", 2: "symmetric"}
    with behind_nats(3, nats, forwards=False, authority=Authority()) as cluster:
        set_mtu(cluster.lab, 1, MTU_LEAST)
        with ranks(cluster) as jobs:
            receipts = [receipt for _ in range(3) for receipt in reduce_once(jobs, 20.0)]
            assert all(receipt.complete for receipt in receipts), receipts
            assert ways(cluster) == {(1, 2): (0, False), (2, 1): (0, False)}
            assert min(pieces_sent(cluster)) > 0


def test_relay__is_not_used_where_the_daemon_says_never() -> None:
    with behind_nats(2, {1: "symmetric"}, use="never") as cluster, ranks(cluster) as jobs:
        limit = time.monotonic() + FOUND_S
        while not job_of(cluster, 0).ailments:
            assert time.monotonic() < limit
            reduce_once(jobs, 0.4)
        time.sleep(1.0)
        assert ways(cluster) == {}
