# SPDX-License-Identifier: Apache-2.0
"""Containers over real daemons: every rank has every part, whatever the lengths, and nobody hangs when a host dies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, connect_all, everywhere, ranks
from ultima.sparse import Feedback, decode, encode, exchange

SIZE = 200_000


def gradient(rank: int, step: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng([rank, step]).laplace(size=SIZE).astype(np.float32)


@pytest.mark.parametrize("shared", [False, True])
def test_exchange__steps_with_feedback(four: Hosts, shared: bool) -> None:
    """Three steps of unequal containers of other codecs; also with two ranks on a host. The parts are what each rank
    packed, the sums are the same bits everywhere, and what was sent and kept is what was given."""
    codecs = [("delta", "raw"), ("bloom-p0", "qsgd"), ("huffman", "fit-poly")]
    places = [four[0], four[0], four[1]] if shared else four[:3]
    with ranks(places, arena="4M") as jobs:

        def train(rank: int, job: ultima.Job) -> list[tuple[bytes, list[bytes], bytes]]:
            memory, steps = Feedback(SIZE, 0.002 * (rank + 1)), []
            for step in range(3):
                chosen = memory.select(gradient(rank, step))
                index, value = codecs[(rank + step) % 3]
                packed = encode(chosen.indices, chosen.values, SIZE, index=index, value=value, seed=step)
                memory.settle(chosen, decode(packed, SIZE))
                found = exchange(job, packed, SIZE, deadline="20s")
                steps.append((packed, [part.dense().tobytes() for part in found.parts], found.sum().tobytes()))
            return steps

        found = everywhere(jobs, train)
    assert not [error for error in found if isinstance(error, Exception)], found
    for step in range(3):
        packs = [steps[step][0] for steps in found]
        assert len({len(pack) for pack in packs}) == 3
        want = [decode(pack, SIZE).dense().tobytes() for pack in packs]
        for _, parts, total in (steps[step] for steps in found):
            assert parts == want and total == found[0][step][2]


def test_exchange__more_than_the_memory_holds_at_once(four: Hosts) -> None:
    """Dense tensors as containers, in pieces through an arena that is smaller than they are."""
    with ranks(four[:2], arena="1M") as jobs:
        packs = [encode(np.arange(SIZE), gradient(rank, 9), SIZE, index="rle") for rank in range(2)]
        found = everywhere(jobs, lambda rank, job: exchange(job, packs[rank], SIZE))
        for one in found:
            assert not isinstance(one, Exception), one
            assert np.array_equal(one.sum(), gradient(0, 9) + gradient(1, 9))
        assert everywhere(jobs, lambda rank, job: job.barrier().complete) == [True, True]


def test_exchange__a_daemon_killed_under_way(daemons: Callable[[int], Hosts]) -> None:
    """The others fail by their deadline, with an error that a reliable collective has."""
    hosts = daemons(3)
    jobs = connect_all(hosts, deadline=8, arena="8M")
    try:
        pack = encode([1], [1.0], SIZE)
        assert all(one.sum()[1] == 3 for one in everywhere(jobs, lambda rank, job: exchange(job, pack, SIZE)))
        hosts[2].kill()
        found = everywhere(jobs[:2], lambda rank, job: exchange(job, pack, SIZE, deadline="3s"))
        assert all(isinstance(error, ultima.RanksGone | ultima.DeadlineExceeded) for error in found), found
    finally:
        for job in jobs:
            job.close()
