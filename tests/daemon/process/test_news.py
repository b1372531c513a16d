# SPDX-License-Identifier: Apache-2.0
"""What engines tell without waking anybody is known to whoever asks, and before a job goes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.daemon.helpers import House, Trainer, engine, eventually, status
from ultima.base.words import ERR_REDOP
from ultima.cli.status import job_lines
from ultima.daemon.engine.engine import EventKind, Status
from ultima.daemon.observe.ring import ops_in
from ultima.daemon.process.news import OP_SKIPPED


async def gathering(house: House, lanes: int = 1) -> tuple[Any, Trainer]:
    """A daemon whose engine gathers what it has to tell of ops, and its trainer."""
    daemon = await house.daemon(lanes=lanes)
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


async def test_status__adds_up_by_form_what_quantised_ops_moved(house: House) -> None:
    daemon, _ = await gathering(house)
    for forms, sent, received, values in ((0x55, 10, 20, 80), (0x55, 1, 2, 8), (0x56, 5, 6, 40), (0x99, 1, 1, 1)):
        engine(daemon).op_done(0)
        engine(daemon).emit(EventKind.QUANT, 0, a=forms, b=sent, c=received, d=values)
    (job,) = (await status(daemon)).jobs
    assert [(row.wire, row.sent_bytes, row.received_bytes, row.value_bytes) for row in job.wires] == [
        ("9", 1, 1, 1),
        ("int4/int8", 5, 6, 40),
        ("int8", 11, 22, 88),
    ]
    assert "  wire int8: sent 11 B, received 22 B for 88 B of values (0.250)" in job_lines(job)
    text = (await asyncio.to_thread(daemon._metrics_text)).decode()
    assert re.findall(r'ultima_wire_value_bytes_total\{[^}]*wire="int4/int8"\} (\S+)', text) == ["40.0"]


async def test_event__of_another_kind_brings_them_along(house: House) -> None:
    daemon, _ = await gathering(house)
    fake = engine(daemon)
    (job,) = daemon.jobs.all()
    fake.op_done(0)
    assert job.record.ring.total == 0
    fake.emit(EventKind.BAD_SUBMISSION, 0, session=0, a=9)
    await eventually(lambda: fake.events_waiting == 0, "the daemon was woken")
    assert job.record.ring.total == 1


@pytest.mark.parametrize("elastic, error, warned", [(True, 9, False), (False, 9, True), (True, 10, True)])
async def test_refusal__of_an_op_that_a_newcomer_skips_is_no_trouble(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, elastic: bool, error: int,
    warned: bool,
) -> None:  # fmt: skip
    assert -OP_SKIPPED == ERR_REDOP
    daemon, _ = await gathering(house)
    (job,), fake = daemon.jobs.all(), engine(daemon)
    monkeypatch.setattr(type(job), "elastic", elastic)
    fake.emit(EventKind.BAD_SUBMISSION, 0, session=0, a=error)
    await eventually(lambda: fake.events_waiting == 0, "the daemon was woken")
    assert (f"bad submission job={job.name} session=0 error=-{error}" in caplog.text) is warned


async def test_ops__of_two_lanes_are_kept_in_the_order_in_which_they_ended(house: House) -> None:
    daemon, _ = await gathering(house, lanes=2)
    (job,) = daemon.jobs.all()
    fakes = daemon.engine.engines
    for fake in fakes:
        fake.gathers = True
    # Ops 0 to 5 end in the order 0 to 5; what ends in one lane is told by that lane.
    for op in range(6):
        fakes[op % 2].emit(EventKind.OP_DONE, 0, op_seq=op // 2, a=int(Status.COMPLETE), b=1000, at_ns=100 + op)
    fakes[1].emit(EventKind.BAD_SUBMISSION, 0, a=9, at_ns=200)
    await eventually(lambda: not any(fake.events_waiting for fake in fakes), "one lane wakes the daemon for both")
    assert [op.op_seq for op in ops_in(job.record.ring.copy())] == list(range(6))


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
