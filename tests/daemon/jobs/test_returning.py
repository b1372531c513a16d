# SPDX-License-Identifier: Apache-2.0
"""A daemon that is told to stop: what it says, who waits for it and for how long, and where its ranks go on."""

from __future__ import annotations

import asyncio
import signal

from tests.daemon.helpers import House, engine, eventually, rendezvous
from tests.e2e.hosts import free_port
from ultima.daemon.process.server import Daemon


def told(daemon: Daemon, kind: str) -> list[str]:
    """The events of a kind, as people read them."""
    return [event.text for event in daemon.jobs.recorder.events.after(0) if event.kind == kind]


async def test_stop__others_wait_and_it_goes_on_at_its_place(house: House) -> None:
    """The rank says what it calls next. The others are beyond that, but one still has it open."""
    daemons = [await house.daemon(), await house.daemon()]
    port = free_port()
    child = await house.child("child", port)
    await house.job([*daemons, child])
    assert await child.kill(signal.SIGTERM) == 0
    await eventually(lambda: not any(engine(d).path(0, 2).up for d in daemons), "the others know")
    for daemon, floor in zip(daemons, (41, 39), strict=True):
        assert engine(daemon).jobs[0].awaited == {2}
        engine(daemon).jobs[0].next_op_seq, engine(daemon).jobs[0].floor = 42, floor
        assert "told to stop and should be back in 10 s" in told(daemon, "host_goes")[0]
        assert "its daemon was told to stop" in told(daemon, "host_gone")[0]
    child = await house.child("child", port)
    joined = await (await house.trainer(child)).join(2, 3, rendezvous=rendezvous(daemons[0]), next_op_seq=38)
    assert joined.next_op_seq == 39, "what is older has ended everywhere"
    await eventually(lambda: all(engine(d).path(0, 2).up for d in daemons), "both have found it again")
    assert not any(link.back_within_s for d in daemons for link in d.jobs.all()[0].links.values())


async def test_stop__of_one_that_does_not_come_back(house: House) -> None:
    daemon = await house.daemon()
    child = await house.child("child", free_port(), ULTIMAD_LIMITS_DRAIN_WINDOW_SECONDS="0.5")
    await house.job([daemon, child])
    assert await child.kill(signal.SIGTERM) == 0
    await eventually(lambda: not engine(daemon).path(0, 1).up, "it knows")
    await eventually(lambda: not engine(daemon).jobs[0].awaited, "it waits no longer")
    assert "was not back within 0.5 s; reliable ops cannot go on" in told(daemon, "host_gone")[-1]


async def test_stop__is_not_waited_for_when_it_does_not_want_it_or_its_ranks_have_left(house: House) -> None:
    for window, leaves in (("0", False), ("10", True)):
        daemon = await house.daemon()
        child = await house.child(f"child{window}", free_port(), ULTIMAD_LIMITS_DRAIN_WINDOW_SECONDS=window)
        trainers = await house.job([daemon, child], job=f"job{window}")
        if leaves:
            await trainers[1].leave()
        assert await child.kill(signal.SIGTERM) == 0
        await eventually(lambda daemon=daemon: not engine(daemon).path(0, 1).up, "it knows")
        assert not engine(daemon).jobs[0].awaited and not told(daemon, "host_goes")


async def test_stop__lets_open_ops_end_and_begins_none(house: House) -> None:
    daemon = await house.daemon()
    await house.job([daemon, await house.daemon()])
    job = engine(daemon).jobs[0]
    job.unsettled = 1
    draining = asyncio.ensure_future(daemon.drain())
    await eventually(lambda: job.held, "it begins no op more")
    await asyncio.sleep(0.1)
    assert not draining.done()
    job.unsettled = 0
    await asyncio.wait_for(draining, 10)


async def test_all_stopped__the_job_goes_on_with_the_highest_number(house: House) -> None:
    """All daemons have forgotten the job, and its ranks have not come equally far."""
    daemons = [await house.daemon(), await house.daemon()]
    trainers = [await house.trainer(daemon) for daemon in daemons]
    where = rendezvous(daemons[0])
    joined = await asyncio.gather(
        *(t.join(rank, 2, rendezvous=where, next_op_seq=70 + rank) for rank, t in enumerate(trainers))
    )
    assert [each.next_op_seq for each in joined] == [71, 71]
