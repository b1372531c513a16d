# SPDX-License-Identifier: Apache-2.0
"""A dead host owns no shard: real daemons, one of which dies for good, or comes back."""

import time
from collections.abc import Callable

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, complete_soon, everywhere, ranks
from ultima import DaemonLost, Receipt, Status, Trouble

N = 30_000
LANES, OPS = 2, 60
"""A change holds from eight ops of a lane on; so many ops at most until the watch has seen a death and it holds."""


def mean(jobs: list[ultima.Job], who: list[int]) -> list[tuple[Receipt, np.ndarray]]:
    """One average on the ranks `who`, each of which brings 10 times its number and one, and the element's."""

    def one(_: int, rank: int) -> tuple[Receipt, np.ndarray]:
        data = 10.0 * (rank + 1) + np.arange(N) % 7
        return jobs[rank].allreduce(data, "avg", deadline="2s"), data

    return everywhere(who, one)


def is_mean_of(found: list[tuple[Receipt, np.ndarray]], who: list[int]) -> bool:
    """Nothing is missing, and every element is the mean of just those ranks."""
    wanted = np.mean([10.0 * (rank + 1) for rank in who]) + np.arange(N) % 7
    whole = all(receipt.bytes_missing == 0 for receipt, _ in found)
    assert not whole or all(set(receipt.contributors) == set(who) for receipt, _ in found)
    return whole and all(np.allclose(data, wanted, atol=1e-9) for _, data in found)


def ops_until(jobs: list[ultima.Job], calling: list[int], who: list[int]) -> int:
    """Ops until on all ranks that call the whole bucket is the mean of `who`; then it stays so."""
    for op in range(OPS):
        if is_mean_of(mean(jobs, calling), who):
            again = [mean(jobs, calling) for _ in range(2 * LANES)]
            if all(is_mean_of(found, who) for found in again):
                return op
        time.sleep(0.02)
    raise AssertionError(f"not the mean of {who} in {OPS} ops")


@pytest.mark.parametrize("victim", [0, 2])
def test_owners__the_others_average_the_whole_bucket(daemons: Callable[[int], Hosts], victim: int) -> None:
    """Rank 0's daemon decides who owns, so its death is a case of its own."""
    hosts = daemons(3)
    everybody, others = [0, 1, 2], [rank for rank in range(3) if rank != victim]
    with ranks(hosts) as jobs:
        ops_until(jobs, everybody, everybody)
        hosts[victim].kill()
        with pytest.raises(DaemonLost):
            jobs[victim].allreduce(np.ones(3), deadline=20)
        ops_until(jobs, others, others)
        for receipt, _ in mean(jobs, others):
            assert receipt.status is Status.PARTIAL and receipt.missing_ranks == (victim,), receipt
            assert receipt.culprit == (victim,) and receipt.trouble is Trouble.GONE, "though nothing of it is missing"
            assert receipt.peers[victim].expected_bytes == (0, 0), "nothing is to come from it"
            assert receipt.owners == tuple(others)
        hosts[victim].launch()
        hosts[victim].wait_until_ready()
        assert complete_soon(jobs, deadline="1s", patient=True)
        # It is in it at once; it is to own its part again as well, and to be missed there no more.
        limit, owned = time.monotonic() + 20, False
        while not owned and time.monotonic() < limit:
            found = mean(jobs, everybody)
            assert is_mean_of(found, everybody)
            owned = all(receipt.owners == tuple(everybody) for receipt, _ in found)
        for receipt, _ in mean(jobs, [*others, victim])[:2]:
            assert receipt.peers[victim].expected_bytes[1] >= 8 * N // 3, "it owns a shard again"
            assert receipt.owners == tuple(everybody)
