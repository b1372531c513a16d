# SPDX-License-Identifier: Apache-2.0
"""Which hosts are in the ops of a job, while the network of the daemons or of the data fails."""

import itertools
import time

import pytest

import ultima
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab
from tests.lab.test_trouble import ranks, reduce_once
from ultima import Receipt, Status
from ultima.admin.past import get_events

pytestmark = [pytest.mark.root, pytest.mark.check, pytest.mark.timeout(180)]

KEEPALIVES_S = 18.0  # a ping every 10 s that is waited for for 5 s: by then each watch has ended
DEADLINE_S = 0.4


def views(cluster: Cluster, rank: int) -> list[str]:
    """What the events of a host tell of views."""
    events = get_events(str(cluster.socket(rank)))
    return [event.text for event in events if event.kind == "view_changed"]


def whole_of(receipts: list[Receipt], who: set[int]) -> bool:
    """Each of these has the mean of just these, and lacks nothing of it."""
    return all(receipts[rank].bytes_missing == 0 and set(receipts[rank].contributors) == who for rank in who)


def seconds_until(jobs: list[ultima.Job], who: set[int], limit: float) -> float:
    """Until ops are whole without the rest, and stay so."""
    began, since, run = time.monotonic(), 0.0, 0
    while time.monotonic() - began < limit:
        run = run + 1 if whole_of(reduce_once(jobs, DEADLINE_S), who) else 0
        since = time.monotonic() - began if run == 1 else since
        if run == 6:
            return since
    raise AssertionError(f"not the sum of {who} within {limit} s")


def test_control_network_down__ops_go_on_and_nobody_is_put_out() -> None:
    pairs = list(itertools.permutations(range(3), 2))
    with Lab(3) as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        seconds_until(jobs, {0, 1, 2}, 10)
        lab.set_one_way(pairs, protocol="tcp")
        until, receipts = time.monotonic() + KEEPALIVES_S, []
        while time.monotonic() < until:
            receipts += reduce_once(jobs, DEADLINE_S)
            time.sleep(0.2)  # longer than datagrams are waited for while an op is open
        whole = sum(receipt.status is Status.COMPLETE for receipt in receipts)
        assert whole >= 0.97 * len(receipts), (whole, len(receipts))
        assert [views(cluster, rank) for rank in range(3)] == [[], [], []]
        assert "peer daemon lost" in cluster.log(0), "the watches had ended"
        lab.set_one_way([])
        seconds_until(jobs, {0, 1, 2}, 10)


def test_host_that_vanishes__is_out_before_its_watch_ends_and_comes_back() -> None:
    cut = [pair for pair in itertools.permutations(range(3), 2) if 2 in pair]
    with Lab(3) as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        seconds_until(jobs, {0, 1, 2}, 10)
        lab.set_one_way(cut)
        took = seconds_until(jobs, {0, 1}, 12)
        assert took < KEEPALIVES_S / 2, took
        assert "host 2 is gone; 2 of 3 hosts" in views(cluster, 0)[0]
        lab.set_one_way([])
        took_back = seconds_until(jobs, {0, 1, 2}, 30)
        print(f"out after {took:.2f} s, back after {took_back:.2f} s")
        assert views(cluster, 0)[-1].endswith("3 of 3 hosts, 3 of them own shards")
