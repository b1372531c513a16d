# SPDX-License-Identifier: Apache-2.0
"""The exchange over a fake daemon: unequal lengths, many pieces, and ranks that disagree or send rubbish."""

from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.sparse.supports import random_sparse, resealed
from tests.e2e.hosts import everywhere
from ultima import Desync, InvalidArgument, Options, Unsupported
from ultima.sparse import encode, exchange
from ultima.testing import FakeDaemon

SIZE = 3000


def connected(daemon: FakeDaemon, world: int, **options: Any) -> list[ultima.Job]:
    return [daemon.connect(rank, **{"arena": "1M", **options}) for rank in range(world)]


@pytest.mark.parametrize("ranks_per_host", [1, 2])
@pytest.mark.parametrize("room", [2 << 20, 4096])
def test_exchange__every_rank_has_all_parts(ranks_per_host: int, room: int) -> None:
    """By all-gather and, where ranks share hosts, by a sum; in one piece and in many."""
    rng = np.random.default_rng(room + ranks_per_host)
    given = [random_sparse(rng, SIZE, density) for density in (0.3, 0.0, 0.01)]
    packs = [encode(each.indices, each.values, SIZE) for each in given]
    with FakeDaemon(3, ranks_per_host=ranks_per_host, bucket_bytes_max=room) as daemon:
        jobs = connected(daemon, 3)
        found = everywhere(jobs, lambda rank, job: exchange(job, packs[rank], SIZE))
        for job in jobs:
            job.close()
    want = sum(each.dense() for each in given)
    for one in found:
        assert not isinstance(one, Exception), one
        assert one.container_bytes == tuple(len(pack) for pack in packs) and one.row_bytes >= max(one.container_bytes)
        for part, each in zip(one.parts, given, strict=True):
            assert part.dense().tobytes() == each.dense().tobytes()
        assert one.sum().tobytes() == found[0].sum().tobytes() and np.allclose(one.sum(), want)
        assert np.allclose(one.mean(), want / 3) and np.allclose(one.sum(np.ones(SIZE, np.float32)), want + 1)
        with pytest.raises(InvalidArgument, match="out is '3 elements"):
            one.sum(np.zeros(3, np.float32))


def test_exchange__tensors_of_other_sizes_are_told(pair: tuple[FakeDaemon, ultima.Job, ultima.Job]) -> None:
    packs = [encode([1], [1.0], 10), encode([1], [1.0], 11)]
    found = everywhere(pair[1:], lambda rank, job: exchange(job, packs[rank], 10 + rank))
    for rank, error in enumerate(found):
        assert isinstance(error, Desync)
        assert (error.rank, error.field, error.mine, error.theirs) == (1 - rank, "size", 10 + rank, 11 - rank)


def test_exchange__a_rank_that_sends_rubbish_is_named(
    pair: tuple[FakeDaemon, ultima.Job, ultima.Job]) -> None:  # fmt: skip
    good = encode([1], [1.0], 10, index="raw")
    bad = resealed(good[:36] + b"\x0a" + good[37:])  # index 10 of 10 elements: only a decoder sees it
    packs = [good, bad]
    found = everywhere(pair[1:], lambda rank, job: exchange(job, packs[rank], 10))
    for error in found:
        assert isinstance(error, InvalidArgument) and error.field == "container of rank 1"
        assert "index 10 at place 0" in str(error)


def test_exchange__refuses_before_anything_is_sent(pair: tuple[FakeDaemon, ultima.Job, ultima.Job]) -> None:
    job = pair[1]
    good = encode([1], [1.0], 10)
    for call, text in [
        (lambda: exchange(job, good[:-1], 10), "container"),
        (lambda: exchange(job, good, 11), "of a tensor of 10 elements"),
        (lambda: exchange(job, good, -1), "size is -1"),
        (lambda: exchange(job, good, 10, deadline=-1), "deadline"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            call()
    handle = job.barrier_async()
    assert handle.op_seq == 0, "no op number was used"


def test_exchange__not_in_a_job_with_a_policy() -> None:
    with FakeDaemon(2, peer=lambda rank, op_seq, mine: mine) as daemon:
        job = daemon.connect(0, arena="1M", options=Options(policy="majority"))
        with pytest.raises(Unsupported, match="a job without a policy"):
            exchange(job, encode([1], [1.0], 10), 10)
        job.close()
