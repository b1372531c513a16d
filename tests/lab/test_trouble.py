# SPDX-License-Identifier: Apache-2.0
"""Networks that are broken in ways that loopback cannot be: paths that swallow large packets, or one direction, or all.

Each op has its deadline and is held to it: right values, or an account of what is missing that names who is to blame.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ultima
from tests.daemon.trust.papers import Authority
from tests.e2e.hosts import everywhere, new_job_name
from tests.lab.cluster import PORT, Cluster
from tests.lab.lab import Lab
from tests.lab.test_lab import CLASSES
from ultima import Receipt, Status, Trouble

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

ELEMENTS = 300_000  # 1.2 MB: some hundred full packets to each host
FOUND_S = 2.0  # in which a path that swallows full packets must be found, and served
GRACE_S = 3.0  # for a busy machine


@contextmanager
def ranks(cluster: Cluster, options: ultima.Options | None = None) -> Iterator[list[ultima.Job]]:
    """A rank on each host, all in this process: a trainer needs its daemon's socket and no network."""
    name, places = new_job_name(), cluster.addresses

    def join(rank: int, _: str) -> ultima.Job:
        rendezvous = f"[{places[0]}]:{PORT}" if ":" in places[0] else f"{places[0]}:{PORT}"
        return ultima.connect(
            name, rank, len(places), cluster.socket(rank), rendezvous, timeout=30, arena="16M", options=options
        )

    jobs = everywhere(places, join)
    assert all(isinstance(job, ultima.Job) for job in jobs), jobs
    try:
        yield jobs
    finally:
        for job in jobs:
            job.close()


def reduce_once(jobs: list[ultima.Job], deadline: float, elements: int = ELEMENTS) -> list[Receipt]:
    """One sum on all ranks, each within its deadline. What receipts say is held against the values."""
    place = np.arange(elements) % 1000 * 2 ** len(jobs)
    data = [(place + (1 << rank)).astype(np.float32) for rank in range(len(jobs))]
    start = time.monotonic()
    receipts = everywhere(jobs, lambda rank, job: job.allreduce(data[rank], "sum", deadline=deadline))
    assert time.monotonic() - start < deadline + GRACE_S
    for rank, receipt in enumerate(receipts):
        assert isinstance(receipt, Receipt), receipt
        check_claims(receipt, rank, data[rank], place, len(jobs))
    return receipts


def check_claims(receipt: Receipt, rank: int, result: np.ndarray, place: np.ndarray, world: int) -> None:
    """Each element is the sum of some ranks' values, and its low bits say whose: the receipt may claim no more."""
    who = result.astype(np.int64) % 2**world
    ranks_in = sum(who >> other & 1 for other in range(world))
    np.testing.assert_array_equal(result, ranks_in * place + who, err_msg=f"rank {rank}: not a sum of contributions")
    everywhere_in, somewhere_in = np.bitwise_and.reduce(who), np.bitwise_or.reduce(who)
    assert all(everywhere_in >> other & 1 for other in receipt.contributors), (rank, receipt)
    assert all(somewhere_in >> other & 1 for other in receipt.partly), (rank, receipt)
    assert ranks_in.min() == receipt.weight_min, (rank, receipt)
    if receipt.complete:
        assert everywhere_in == 2**world - 1, (rank, receipt)
    if receipt.status is Status.INSUFFICIENT:
        assert (who == 1 << rank).all(), (rank, receipt)


def pieces_sent(cluster: Cluster) -> list[int]:
    return [cluster.status(index)["engine"]["counters"]["pieces_sent"] for index in range(len(cluster.addresses))]


@pytest.mark.alone
@pytest.mark.parametrize("at_switch", [True, False], ids=["at the switch", "on the host"])
def test_black_hole__is_found_and_lowered(at_switch: bool) -> None:
    """Nothing larger than 1300 bytes gets to host 1 or away from it; hosts believe in 1500, and nobody tells them."""
    with Lab(3, unit="packet") as lab, Cluster(lab) as cluster:
        lab.host(1).set_mtu(1300, at_switch)
        with ranks(cluster) as jobs:
            first = reduce_once(jobs, FOUND_S)
            assert [receipt.status for receipt in first] == [Status.COMPLETE] * 3, first
            for _ in range(3):
                later = reduce_once(jobs, FOUND_S)
                assert [receipt.status for receipt in later] == [Status.COMPLETE] * 3, later
                assert max(receipt.elapsed_s for receipt in later) < 1.0, "it is found once, not in each op"
            sent = pieces_sent(cluster)
        assert min(sent) > 0, "both directions are narrow"
        assert "full packets do not get through" in cluster.log(0)


@pytest.mark.check
@pytest.mark.parametrize("v6", [False, True], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("mtu", [1280, 1420])
def test_black_hole__of_the_least_mtu_and_of_a_tunnel(mtu: int, v6: bool) -> None:
    """1280 is what IPv6 promises (RFC 8200, section 5), 1420 what a WireGuard tunnel leaves of 1500. Packets are
    sealed, so they and their pieces are longer by a tag. Host 1 knows, so TCP finds its own size; the others do not."""
    with Lab(3, unit="packet") as lab, Cluster(lab, v6=v6, authority=Authority()) as cluster:
        lab.host(1).set_mtu(mtu, at_switch=False)
        with ranks(cluster) as jobs:
            for _ in range(4):
                receipts = reduce_once(jobs, FOUND_S)
                assert [receipt.status for receipt in receipts] == [Status.COMPLETE] * 3, receipts
            assert min(pieces_sent(cluster)) > 0


def test_black_hole__that_opens_while_the_job_runs() -> None:
    with Lab(3, unit="packet") as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        assert all(receipt.complete for receipt in reduce_once(jobs, FOUND_S))
        assert pieces_sent(cluster) == [0, 0, 0]
        lab.host(2).set_mtu(1300)
        for _ in range(3):
            receipts = reduce_once(jobs, FOUND_S)
            assert [receipt.status for receipt in receipts] == [Status.COMPLETE] * 3, receipts
        assert min(pieces_sent(cluster)) > 0


@pytest.mark.check
def test_black_hole__that_closes_is_left() -> None:
    """Every 10 s one packet goes whole, to see whether it gets through."""
    with Lab(2, unit="packet") as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        lab.host(1).set_mtu(1300)
        assert all(receipt.complete for receipt in reduce_once(jobs, FOUND_S))
        lab.host(1).set_mtu(1500)
        limit = time.monotonic() + 25
        while time.monotonic() < limit:
            before = pieces_sent(cluster)
            assert all(receipt.complete for receipt in reduce_once(jobs, FOUND_S))
            if pieces_sent(cluster) == before:
                return
            time.sleep(0.5)
        pytest.fail("the path carries full packets again, and nobody has noticed")


def test_one_direction_lost__ends_by_the_deadline_and_names_the_host() -> None:
    """Host 2 is heard by nobody, and hears everyone; its TCP lives, so nobody takes it for dead."""
    with Lab(3) as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        assert all(receipt.complete for receipt in reduce_once(jobs, 2.0))
        lab.set_one_way([(2, 0), (2, 1)], protocol="udp")
        receipts = reduce_once(jobs, 0.5)
        for rank in (0, 1):
            assert receipts[rank].status is Status.PARTIAL, receipts[rank]
            assert 2 in receipts[rank].missing_ranks and receipts[rank].culprit == (2,), receipts[rank]
            assert receipts[rank].peers[1 - rank].missing_bytes == (0, 0), receipts[rank]
        assert receipts[2].status is not Status.FAILED
        lab.set_one_way([])
        assert any(all(receipt.complete for receipt in reduce_once(jobs, 2.0)) for _ in range(3))


def test_all_peers_silent__own_value_by_the_deadline() -> None:
    with Lab(3) as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        assert all(receipt.complete for receipt in reduce_once(jobs, 2.0))
        everyone = [(a, b) for a in range(3) for b in range(3) if a != b]
        lab.set_one_way(everyone, protocol="udp")
        data = [np.full(1000, 1.0 + rank) for rank in range(3)]
        receipts = everywhere(jobs, lambda rank, job: job.allreduce(data[rank], "sum", deadline=0.4))
        assert [receipt.status for receipt in receipts] == [Status.INSUFFICIENT] * 3
        assert [set(each.tolist()) for each in data] == [{1.0}, {2.0}, {3.0}]
        assert max(receipt.elapsed_s for receipt in receipts) < 0.4 + GRACE_S
        lab.set_one_way([])
        assert any(all(receipt.complete for receipt in reduce_once(jobs, 2.0)) for _ in range(3))


def test_stopped_daemon__others_go_on_by_the_deadline() -> None:
    """Its trainer has own values, the others have a true average of who is left; when it wakes up, all meet again."""
    with Lab(3) as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        assert all(receipt.complete for receipt in reduce_once(jobs, 2.0))
        cluster.daemons[2].send_signal(signal.SIGSTOP)
        receipts = reduce_once(jobs, 0.5)
        assert receipts[2].status is Status.INSUFFICIENT and receipts[2].trouble is Trouble.DAEMON, receipts[2]
        for receipt in receipts[:2]:
            assert receipt.status is Status.PARTIAL and receipt.culprit == (2,), receipt
            assert 2 in receipt.missing_ranks and receipt.deadline_s <= 0.5
        cluster.daemons[2].send_signal(signal.SIGCONT)
        assert any(all(receipt.complete for receipt in reduce_once(jobs, 2.0)) for _ in range(5))


@pytest.mark.parametrize("loss", [100.0, 60.0], ids=["everything lost", "most lost"])
def test_switch_drops__true_receipts_by_the_deadline(loss: float) -> None:
    with Lab(3, unit="packet") as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        assert all(receipt.complete for receipt in reduce_once(jobs, 2.0))
        lab.set_loss(loss)
        for receipt in reduce_once(jobs, 0.3):
            assert receipt.status is not Status.COMPLETE or loss < 100, receipt
            # All meant for this host may have come, and an owner's shard still lack a rank: then it says which.
            lacks_a_rank = receipt.weight_min < 3 and bool(receipt.partly)
            assert receipt.complete or receipt.bytes_missing > 0 or lacks_a_rank, receipt
        lab.set_loss(0)
        assert any(all(receipt.complete for receipt in reduce_once(jobs, 2.0)) for _ in range(5))


def test_flood__ops_complete_and_every_datagram_is_counted() -> None:
    """A hundred thousand datagrams of garbage at both ports of host 0 while ops run."""
    with Lab(3) as lab, Cluster(lab) as cluster, ranks(cluster) as jobs:
        assert all(receipt.complete for receipt in reduce_once(jobs, 2.0))
        command = [sys.executable, "-m", "tests.lab.flood", cluster.addresses[0], "50000", "2"]
        ports = [str(PORT + 1), str(PORT + 2)]
        flood = lab.host(2).popen([*command, *ports], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        ops = 0
        while flood.poll() is None:
            receipts = reduce_once(jobs, 2.0)
            assert [receipt.status for receipt in receipts] == [Status.COMPLETE] * 3, receipts
            ops += 1
        assert flood.stdout is not None
        sent = int(flood.stdout.read())
        counters = cluster.status(0)["engine"]["counters"]
        assert ops >= 3 and sent >= 20_000
        refused = counters["malformed"] + counters["unknown"]
        assert sent >= refused >= 0.5 * sent, "a full socket buffer may drop some, but not most"
        assert counters["bad_checksum"] == 0, "no stranger's datagram is worth a checksum"
        assert sum(counters[name] for name in CLASSES) - counters["stash_replayed"] == counters["packets_received"]
