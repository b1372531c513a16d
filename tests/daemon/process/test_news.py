# SPDX-License-Identifier: Apache-2.0
"""What engines tell without waking anybody is known to whoever asks, and before a job goes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from tests.daemon.helpers import House, Trainer, engine, eventually, status
from ultima.daemon.engine.engine import EventKind


async def gathering(house: House) -> tuple[Any, Trainer]:
    """A daemon whose engine gathers what it has to tell of ops, and its trainer."""
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    await trainer.join()
    engine(daemon).gathers = True
    return daemon, trainer


async def test_status__knows_the_ops_that_have_gathered(house: House) -> None:
    daemon, _ = await gathering(house)
    fake = engine(daemon)
    for _ in range(7):
        fake.op_done(0)
    assert fake.events_waiting == 7, "nobody was woken"
    assert (await status(daemon)).jobs[0].ops_complete_count == 7
    assert fake.events_waiting == 0


async def test_metrics__know_them_too(house: House) -> None:
    daemon, _ = await gathering(house)
    engine(daemon).op_done(0)
    text = await asyncio.to_thread(daemon._metrics_text)
    (count,) = re.findall(rb"ultima_ops_total\{[^}]*complete[^}]*\} (\S+)", text)
    assert float(count) == 1


async def test_event__of_another_kind_brings_them_along(house: House) -> None:
    daemon, _ = await gathering(house)
    fake = engine(daemon)
    (job,) = daemon.jobs.all()
    fake.op_done(0)
    assert job.record.ring.total == 0
    fake.emit(EventKind.BAD_SUBMISSION, 0, session=0, a=9)
    await eventually(lambda: fake.events_waiting == 0, "the daemon was woken")
    assert job.record.ring.total == 1


async def test_job__takes_its_last_ops_with_it(house: House) -> None:
    """Its number may be another job's next. The trainer dies: there is no call that would ask."""
    daemon, trainer = await gathering(house)
    fake = engine(daemon)
    (job,) = daemon.jobs.all()
    fake.op_done(0)
    fake.op_done(0)
    trainer.hang_up()
    await eventually(lambda: job.over, "the job is over")
    assert job.record.ring.total == 2 and fake.events_waiting == 0
