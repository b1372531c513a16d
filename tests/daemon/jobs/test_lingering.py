# SPDX-License-Identifier: Apache-2.0
"""For how long a host stays in a job that all its ranks have left: as long as others may need something of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.daemon.helpers import House, engine, eventually
from ultima.daemon.jobs import table
from ultima.v1 import types_pb2


async def test_leave__host_stays_while_others_may_miss_packets_of_it(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    slow, fast = await house.job(daemons)
    engine(daemons[1]).jobs[0].unsettled = 1
    await fast.leave()
    assert engine(daemons[1]).removed_sessions == [0]
    await asyncio.sleep(0.3)
    assert engine(daemons[1]).jobs and engine(daemons[0]).path(0, 1).up
    await slow.leave()  # nobody is left who could miss anything
    took = await eventually(lambda: not engine(daemons[0]).jobs and not engine(daemons[1]).jobs, "both are free")
    assert took < table.LINGER_SECONDS / 2


async def test_leave__host_does_not_stay_for_ever(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LINGER_SECONDS", 0.3)
    daemons = [await house.daemon(), await house.daemon()]
    _, fast = await house.job(daemons)
    engine(daemons[1]).jobs[0].unsettled = 1
    await fast.leave()
    await eventually(lambda: not engine(daemons[1]).jobs, "the host is free")
    await eventually(lambda: not engine(daemons[0]).path(0, 1).up, "the other one does not wait for it")


async def test_leave__host_goes_once_the_others_have_its_last_op(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LINGER_SECONDS", 600.0)
    daemons = [await house.daemon(), await house.daemon()]
    _, fast = await house.job(daemons)
    engine(daemons[1]).jobs[0].unsettled = 1
    await fast.leave()
    await asyncio.sleep(0.3)
    assert engine(daemons[1]).jobs and engine(daemons[0]).path(0, 1).up
    engine(daemons[1]).jobs[0].unsettled = 0
    await eventually(lambda: not engine(daemons[1]).jobs, "the host is free")
    await eventually(lambda: not engine(daemons[0]).path(0, 1).up, "the other one does not wait for it")


async def test_leave__host_stays_in_a_job_with_a_policy(house: House) -> None:
    """Its part of the next op is owed to those who start it, though no rank here gives anything to that."""
    daemons = [await house.daemon(), await house.daemon()]
    _, fast = await house.job(daemons, options=types_pb2.JobOptions(policy="POLICY_SOLO"))
    await fast.leave()
    await asyncio.sleep(0.3)
    assert engine(daemons[1]).jobs and engine(daemons[0]).path(0, 1).up
