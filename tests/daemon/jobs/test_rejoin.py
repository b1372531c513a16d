# SPDX-License-Identifier: Apache-2.0
"""Daemons and trainers that die and come back, with real processes where it is the kernel that brings the news."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.daemon.helpers import House, engine, eventually, rendezvous, status, wired
from tests.e2e.hosts import free_port
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.jobs import vanishing
from ultima.v1 import types_pb2


async def test_daemon_killed__the_others_go_on_at_once(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    child = await house.child("child", free_port())
    trainers = await house.job([*daemons, child])
    began = time.monotonic()
    await child.kill()
    assert await trainers[2].line_is_dead()
    assert time.monotonic() - began < 5.0
    await eventually(lambda: not any(engine(d).path(0, 2).up for d in daemons), "the others know")
    assert time.monotonic() - began < 5.0
    assert wired(daemons)
    assert all(len(engine(d).sessions) == 1 for d in daemons)


async def test_daemon_killed__comes_back_into_its_place(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    port = free_port()
    child = await house.child("child", port)
    await house.job([*daemons, child])
    cids = [engine(d).path(0, 2).rx_cid for d in daemons]
    await child.kill()
    await eventually(lambda: not any(engine(d).path(0, 2).up for d in daemons), "the others know")
    for daemon, at in zip(daemons, (41, 42), strict=True):
        engine(daemon).jobs[0].next_op_seq = at
    child = await house.child("child", port)  # clears away the socket files of its former life
    back = await house.trainer(child)
    joined = await back.join(2, 3, rendezvous=rendezvous(daemons[0]))
    epoch = engine(daemons[0]).jobs[0].epochs[-1]
    assert epoch.members == 0b111
    assert joined.next_op_seq == epoch.start >= 42 and joined.host_index == 2
    assert [list(host.ranks) for host in joined.hosts] == [[0], [1], [2]]
    # The one who offered has its answer a moment after the one who was asked has joined.
    await eventually(lambda: all(engine(d).path(0, 2).up for d in daemons), "both have found it again")
    assert all(engine(d).path(0, 2).rx_cid != cid for d, cid in zip(daemons, cids, strict=True))
    assert all(engine(d).path(0, 2).connects == 2 for d in daemons)
    hosts = (await status(daemons[1])).jobs[0].hosts
    assert hosts[2].state == types_pb2.HOST_STATE_UP
    assert hosts[2].host.incarnation == joined.hosts[2].incarnation


async def test_coordinator_killed__comes_back_into_its_place(house: House) -> None:
    port = free_port()
    child = await house.child("child", port)
    daemons = [await house.daemon(), await house.daemon()]
    await house.job([child, *daemons])
    await child.kill()
    await eventually(lambda: not any(engine(d).path(0, 0).up for d in daemons), "the others know")
    for daemon in daemons:
        engine(daemon).jobs[0].next_op_seq = 99
    child = await house.child("child", port)
    back = await house.trainer(child)
    # It knows of no job; those who are still in it tell it, as soon as they find it again.
    joined = await back.join(0, 3, rendezvous=rendezvous(child), timeout=20)
    held = engine(daemons[0]).jobs[0].epochs  # without it, and from its first op on with it again
    assert [epoch.members for epoch in held[:2]] == [0b110, 0b111]
    assert joined.next_op_seq == held[1].start >= 99 and joined.host_index == 0
    await eventually(lambda: all(engine(d).path(0, 0).up for d in daemons), "both have found it again")
    assert all(engine(d).path(0, 0).connects == 2 for d in daemons)
    generations = {(await status(d)).jobs[0].generation for d in daemons}
    assert len(generations) == 1


async def test_trainers_die_and_come_back__their_daemon_lives_on(house: House) -> None:
    daemons = [await house.daemon() for _ in range(3)]
    trainers = await house.job(daemons)
    for at in (1, 0):
        engine(daemons[2]).jobs[0].next_op_seq += 10
        before = (await status(daemons[2])).jobs[0].hosts[at].host.incarnation
        trainers[at].hang_up()
        await eventually(lambda at=at: not engine(daemons[2]).path(0, at).up, "the others know")  # type: ignore[misc]
        back = await house.trainer(daemons[at])
        joined = await back.join(at, 3, rendezvous=rendezvous(daemons[0]))
        assert joined.next_op_seq == engine(daemons[2]).jobs[0].next_op_seq
        assert joined.hosts[at].incarnation != before
        # The one who offered has its answer a moment after the one who was asked has joined.
        await eventually(lambda: wired(daemons), "all pairs are wired")
        engine(daemons[at]).jobs[0].next_op_seq = joined.next_op_seq


async def test_two_hosts_come_back_together(house: House) -> None:
    daemons = [await house.daemon() for _ in range(4)]
    trainers = await house.job(daemons)
    for at in (1, 3):
        trainers[at].hang_up()
    alive = (daemons[0], daemons[2])
    await eventually(lambda: not any(engine(d).path(0, at).up for d in alive for at in (1, 3)), "the others know")
    back = [await house.trainer(daemons[at]) for at in (1, 3)]
    await asyncio.gather(
        *(t.join(at, 4, rendezvous=rendezvous(daemons[0])) for at, t in zip((1, 3), back, strict=True))
    )
    await eventually(lambda: wired(daemons), "every pair has agreed")


async def test_rejoin__does_not_wait_for_the_dead(house: House) -> None:
    daemons = [await house.daemon() for _ in range(4)]
    trainers = await house.job(daemons)
    for at in (2, 3):
        trainers[at].hang_up()
    await eventually(lambda: not any(engine(daemons[0]).path(0, at).up for at in (2, 3)), "the others know")
    back = await house.trainer(daemons[2])
    joined = await back.join(2, 4, rendezvous=rendezvous(daemons[0]), timeout=8)
    assert [host.state for host in joined.hosts] == [
        types_pb2.HOST_STATE_UP,
        types_pb2.HOST_STATE_UP,
        types_pb2.HOST_STATE_UP,
        types_pb2.HOST_STATE_ABSENT,
    ]


async def test_watch_breaks__but_the_daemon_lives(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    paths = [engine(daemons[0]).path(0, 1), engine(daemons[1]).path(0, 0)]
    rank_1 = daemons[0].jobs.all()[0].links[1].host.place
    peers = daemons[0]._peers
    daemons[1]._watchers.close()
    await eventually(lambda: not peers.stands(rank_1), "the watch has ended")
    await eventually(lambda: peers.stands(rank_1), "it is made anew")
    assert wired(daemons)
    assert [path.absences for path in paths] == [0, 0], "the daemon said that it lives, so the path stays"
    assert not engine(daemons[0]).jobs[0].epochs
    assert (await status(daemons[0])).jobs[0].hosts[1].state == types_pb2.HOST_STATE_UP


async def test_watch_that_never_stood__is_not_taken_for_life(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that died between its Connect and the first watch: no stream breaks to tell of it."""
    monkeypatch.setattr("ultima.daemon.hosts.watching.MISSED_SECONDS", 2.0)
    daemons = [await house.daemon(), await house.daemon()]

    def dead(*_: object) -> None:
        raise Unavailable("as the test wants it")

    async def nobody(*_: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(daemons[1]._watchers, "stream", dead)
        patched.setattr(vanishing, "alive", nobody)
        await house.job(daemons)
        path = engine(daemons[0]).path(0, 1)
        assert path.up and path.absences == 0
        await eventually(lambda: path.absences == 1, "it counts as dead")
    await eventually(lambda: path.connects == 2, "and then it is found alive")
    await eventually(lambda: wired(daemons), "with new ids on both sides")


async def test_all_ranks_die__the_name_is_used_again(house: House) -> None:
    daemons = [await house.daemon() for _ in range(2)]
    for trainer in await house.job(daemons):
        trainer.hang_up()
    await eventually(lambda: not any(engine(d).jobs for d in daemons), "the job is over")
    await eventually(lambda: daemons[0]._coordinator.record("job") is None, "the coordinator knows")
    trainers = await house.job(daemons, rendezvous=rendezvous(daemons[0]))
    assert [t.joined.next_op_seq for t in trainers] == [0, 0]
    assert wired(daemons)


async def test_host_dies_while_the_job_connects__the_others_are_told(house: House) -> None:
    daemons = [await house.daemon() for _ in range(3)]
    engine(daemons[2]).fail_session_add = True
    results = await asyncio.gather(house.job(daemons, timeout=6), return_exceptions=True)
    assert "as the test wants it" in str(results[0])
    await eventually(lambda: not engine(daemons[2]).jobs, "nothing stays on the host that failed")


async def test_daemon_that_stops__says_so_first(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = await house.job(daemons)
    await house.stop(daemons[1])
    assert await trainers[1].line_is_dead()
    await eventually(lambda: not engine(daemons[0]).path(0, 1).up, "the other one knows")
