# SPDX-License-Identifier: Apache-2.0
"""Jobs on a fake daemon, for all tests of the client."""

from collections.abc import Callable, Iterator

import pytest

from ultima import Job
from ultima.testing import FakeDaemon

Pair = tuple[FakeDaemon, Job, Job]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A fake of two ranks, and both of them."""
    with FakeDaemon(2) as daemon, daemon.connect(0, arena="1M") as first, daemon.connect(1, arena="1M") as second:
        yield daemon, first, second


@pytest.fixture
def alone() -> Iterator[Callable[..., Job]]:
    """Makes a job of one rank among `world_size`, whose other ranks bring what this one does."""
    open_ones: list[tuple[FakeDaemon, Job]] = []

    def make(world_size: int = 2, **options: object) -> Job:
        daemon = FakeDaemon(world_size, peer=lambda rank, op_seq, mine: mine)
        job = daemon.connect(0, **{"arena": "1M", **options})
        open_ones.append((daemon, job))
        return job

    yield make
    for daemon, job in open_ones:
        job.close()
        daemon.close()
