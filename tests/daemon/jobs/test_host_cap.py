# SPDX-License-Identifier: Apache-2.0
"""What a host may send in all (engine.rate_bytes_per_s): real daemons, and two jobs of other trainers at once."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import numpy as np
import pytest

import ultima
from tests.daemon.engine.test_native import Native, together
from tests.daemon.helpers import House, eventually, rendezvous, status
from tests.e2e.hosts import free_port

COUNT, OPS, HEADERS = 1 << 18, 4, 28
MOST = 10_000_000

pytestmark = pytest.mark.check


async def sent(daemon: Native) -> int:
    """Bytes of data packets, with the headers of IP and UDP."""
    counters = (await status(daemon)).engine.counters
    return int(counters["data_sent_bytes"] + HEADERS * counters["data_sent"])


def connect(daemon: Native, job: str, rank: int, where: str) -> ultima.Job:
    return ultima.connect(
        job=job, rank=rank, world_size=2, socket=daemon.config.socket, rendezvous=where, arena="16M", timeout=20
    )


def reduce(job: ultima.Job) -> None:
    for _ in range(OPS):
        got: Any = job.allreduce(np.full(COUNT, 1.0 + job.rank, np.float32))
        assert got.complete


async def rate_of(daemon: Native, jobs: list[ultima.Job]) -> float:
    """At which the host sends while all jobs reduce, in bytes a second."""
    before, began = await sent(daemon), time.monotonic()
    await together(*(lambda job=job: reduce(job) for job in jobs))
    return (await sent(daemon) - before) / (time.monotonic() - began)


async def test_host__sends_no_more_for_two_jobs_than_for_one(house: House) -> None:
    """Each job alone may send anything. The cap is lifted while they run."""
    file = house.folder / "capped.toml"
    file.write_text(f"[engine]\nrate_bytes_per_s = {MOST}\n")
    capped = await Native.start(house.folder / "n0", free_port(), "--config", str(file))
    free = await Native.start(house.folder / "n1", free_port())
    house.children += [capped, free]
    where = rendezvous(free)
    jobs = await together(
        *(lambda d=d, j=j, r=r: connect(d, j, r, where) for j in "ab" for r, d in enumerate((free, capped)))
    )
    assert (await status(capped)).limits["engine.rate_bytes_per_s"] == MOST
    both, alone = await rate_of(capped, jobs), await rate_of(capped, jobs[:2])
    assert 0.6 * MOST < both < 1.06 * MOST and alone < 1.06 * MOST, (both, alone)
    file.write_text("")
    capped.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "engine.rate_bytes_per_s=0" in capped.log.read_text(), "it is lifted")
    assert (await status(capped)).limits["engine.rate_bytes_per_s"] == 0
    assert await rate_of(capped, jobs) > 2 * MOST
    await asyncio.gather(*(asyncio.to_thread(job.close) for job in jobs))
