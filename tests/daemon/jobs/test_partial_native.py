# SPDX-License-Identifier: Apache-2.0
"""Partial jobs the whole way, real daemons and trainers: what operators see of them, and change while ops run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ultima
from tests.daemon.engine.test_native import connect, eventually_async, natives, together
from tests.daemon.helpers import House, rendezvous, status
from tests.daemon.jobs.test_options import tune, tuned
from ultima.cli import main
from ultima.daemon.base.options import from_proto

COUNT = 1000


async def ranks(house: House, where: Sequence[int], **options: Any) -> tuple[list[Any], list[ultima.Job]]:
    """Daemons and jobs; rank r is on daemon where[r]."""
    daemons = await natives(house, max(where) + 1)
    said = ultima.Options(**options)
    calls: list[Callable[[], ultima.Job]] = [
        lambda rank=rank, at=at: connect(daemons[at], rank, len(where), rendezvous(daemons[0]), options=said)  # type: ignore[misc]
        for rank, at in enumerate(where)
    ]
    return daemons, await together(*calls)


class Training:
    """Ranks that call one op after the other, each at its own pace, until told to stop."""

    def __init__(self, jobs: list[ultima.Job], pauses: Sequence[float]) -> None:
        self.receipts: list[list[ultima.Receipt]] = [[] for _ in jobs]
        self._stop = threading.Event()
        rows = zip(jobs, pauses, self.receipts, strict=True)
        self._done = asyncio.gather(*(asyncio.to_thread(self._run, *row) for row in rows))

    def _run(self, job: ultima.Job, pause: float, receipts: list[ultima.Receipt]) -> None:
        while not self._stop.is_set():
            # A short deadline: under full, ranks that stop one after the other wait for each other until then.
            receipts.append(job.allreduce(np.full(COUNT, job.rank, np.float32), deadline=3))
            time.sleep(pause)

    async def until(self, op_seq: int) -> None:
        """Returns when every rank has had that op, or a later one."""

        async def there() -> bool:
            return all(got and got[-1].op_seq >= op_seq for got in self.receipts)

        await eventually_async(there, f"op {op_seq} on all ranks", 60)

    async def stop(self) -> None:
        self._stop.set()
        await self._done


async def test_tune__policy_changes_at_the_same_op_on_all_hosts(house: House) -> None:
    daemons, jobs = await ranks(house, [0, 1, 2], policy="full")
    training = Training(jobs, [0.3] * 3)  # slow, so that two ops and a tenth of a second are time enough to tell all
    await training.until(3)
    answer = await tuned(daemons[1], job="native", policy="POLICY_SOLO", tau=5)
    told, start = from_proto(answer.options), answer.from_op_seq
    assert told.policy == 3 and told.tau == 5 and start > 3
    await training.until(start + 3)
    await training.stop()
    for rank, receipts in enumerate(training.receipts):
        policies = {receipt.op_seq: receipt.policy for receipt in receipts}
        wanted = {op_seq: "full" if op_seq < start else "solo" for op_seq in policies}
        assert policies == wanted, (rank, start)
        assert {"full", "solo"} == set(policies.values())
    await together(*(job.close for job in jobs))


async def test_tune__frees_a_job_that_waits_for_a_quorum_that_never_comes(house: House) -> None:
    daemons, jobs = await ranks(house, [0, 1, 2], policy="quorum", quorum=3)
    before: list[ultima.Receipt] = []
    while not before or any(receipt.fresh != (0, 1, 2) for receipt in before):  # nothing is left over from the start
        before = await together(
            *(lambda job=job: job.allreduce(np.ones(COUNT, np.float32), deadline=20) for job in jobs)
        )  # type: ignore[misc]
    arrays = [np.full(COUNT, rank + 1, np.float32) for rank in range(2)]
    calls = asyncio.gather(
        *(asyncio.to_thread(job.allreduce, array, deadline=60) for job, array in zip(jobs, arrays, strict=False))
    )
    await asyncio.sleep(0.3)
    assert not calls.done(), "two of three are no quorum of three"
    told = from_proto(await tune(daemons[2], job="native", quorum=2))
    assert told.quorum == 2
    for receipt, array in zip(await asyncio.wait_for(calls, 30), arrays, strict=True):
        assert (receipt.op_seq, receipt.included, receipt.fresh) == (before[0].op_seq + 1, 2, (0, 1)), receipt
        assert np.all(array == np.float32(1.0)), "divided by all three ranks"
    await together(*(job.close for job in jobs))


@pytest.mark.check
async def test_status__names_whom_the_others_wait_for(house: House) -> None:
    """With everybody in every op; and the one that is waited for does not know."""
    daemons, jobs = await ranks(house, [0, 1, 2], policy="full")
    training = Training(jobs, [0.0, 0.05, 0.0])
    await training.until(40)
    await training.stop()
    stragglers = [(await status(daemon)).jobs[0].straggler_rank for daemon in daemons]
    assert stragglers == [1, -1, 1]
    await together(*(job.close for job in jobs))


async def test_status__names_the_straggler_by_its_rank(house: House) -> None:
    daemons, jobs = await ranks(house, [0, 1, 0], policy="solo", tau=200)
    training = Training(jobs, [0.005, 0.005, 0.2])
    await training.until(150)
    await training.stop()
    for daemon in daemons:
        (job,) = (await status(daemon)).jobs
        assert job.partial_ops > 100 and job.straggler_rank == 2
        assert [row.rank for row in job.ranks] == [0, 1, 2]
        slots = [row.fresh_count + row.stale_count + row.null_count for row in job.ranks]
        assert slots == [job.partial_ops] * 3
        included = sum(row.fresh_count + row.stale_count for row in job.ranks)
        assert job.included_mean == pytest.approx(included / job.partial_ops)
        assert job.ranks[0].initiated_count + job.ranks[1].initiated_count == job.partial_ops
        assert 0 < job.ranks[2].last_op_seq <= job.next_op_seq
        socket = str(daemon.config.socket)
        shown = await asyncio.to_thread(CliRunner().invoke, main.build(), ["status", "--socket", socket])
        assert "straggler of native: rank 2, in " in shown.output, shown.output
    op = next(receipt for receipt in reversed(training.receipts[2]) if receipt.op_seq > 100)
    words = ["explain", str(op.op_seq), "--job", "native", "--socket", str(daemons[0].config.socket)]
    shown = await asyncio.to_thread(CliRunner().invoke, main.build(), words)
    assert shown.exit_code == 0, shown.output
    assert "By the policy solo, host " in shown.output and f"Included: {op.included} of 3 ranks." in shown.output
    await together(*(job.close for job in jobs))
