# SPDX-License-Identifier: Apache-2.0
"""A host acknowledges what was never sent, or somebody does so in its name: a new path is made (A4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from tests.daemon.helpers import House, config, engine, eventually, peer, wired
from tests.hostile.peer import ADDRESS, feedback, host, hostile_peer, send
from ultima.daemon.base.waiting import BACKOFF_SECONDS_MAX, PEACE_SECONDS, Backoff
from ultima.daemon.engine.engine import EventKind, NativeEngine
from ultima.daemon.process.server import Daemon
from ultima.v1 import peer_pb2, types_pb2


def violate(daemons: Sequence[Daemon], *who: int, lane: int = 0) -> None:
    for here in who:
        engine(daemons[here], lane).emit(EventKind.VIOLATION, 0, host=1 - here)


@pytest.mark.parametrize("who", [(0,), (1,), (0, 1)])
async def test_violation__both_sides_come_to_the_same_new_ids(house: House, who: tuple[int, ...]) -> None:
    """Whichever side sees it, the one who offers or the one who asks, or both at once."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    for _ in range(3):
        before = [engine(d).path(0, 1 - i).rx_cid for i, d in enumerate(daemons)]
        violate(daemons, *who)
        await eventually(
            lambda before=before: (
                wired(daemons)  # type: ignore[misc]
                and all(engine(d).path(0, 1 - i).rx_cid != before[i] for i, d in enumerate(daemons))
            ),
            "a new path, with new ids on both sides",
        )


async def test_violation__in_one_lane_makes_all_lanes_anew(house: House) -> None:
    daemons = [await house.daemon(lanes=3), await house.daemon(lanes=3)]
    await house.job(daemons)
    before = [engine(daemons[0], lane).path(0, 1).rx_cid for lane in range(3)]
    violate(daemons, 0, lane=2)
    await eventually(
        lambda: all(
            wired(daemons, lane=lane) and engine(daemons[0], lane).path(0, 1).rx_cid != before[lane]
            for lane in range(3)
        ),
        "all lanes are new",
    )


async def test_violation__a_flood_of_them_makes_few_paths(house: House) -> None:
    """Each new path is forged at again at once: the waits grow, and the daemon has better things to do."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        violate(daemons, 0)
        await asyncio.sleep(0.005)
    assert 2 <= engine(daemons[0]).path(0, 1).connects <= 8
    await eventually(lambda: wired(daemons), "the path is there again")


async def test_violation__of_hosts_and_jobs_that_are_not_there(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    for job, index in ((0, 0), (0, 63), (9, 1), (0, 2**32 - 1)):
        engine(daemons[0]).emit(EventKind.VIOLATION, job, host=index)
    await eventually(lambda: not engine(daemons[0]).events_waiting, "all are taken")
    assert wired(daemons)


def test_backoff__first_at_once_then_doubling_and_peace_forgives() -> None:
    backoff, now, waits = Backoff(), 0.0, []
    for _ in range(12):
        waits.append(backoff.next(now))
        now += waits[-1] + 0.1
    assert waits[:5] == [0.0, 0.2, 0.4, 0.8, 1.6] and waits[-1] == BACKOFF_SECONDS_MAX
    assert backoff.next(now + PEACE_SECONDS) == 0.0


async def test_violation__of_a_hostile_host_over_real_sockets(house: House) -> None:
    """Host 1 is ours: it takes host 0's ids from Connect and acknowledges packets that were never sent. Host 0, a real
    engine, offers it a new path each time, with new ids."""
    daemon = Daemon(config(house.folder / "real"), NativeEngine, "1.2.3")
    await daemon.start()
    offers: list[peer_pb2.ConnectRequest] = []

    def answer(request: peer_pb2.ConnectRequest) -> peer_pb2.ConnectResponse:
        if request.connection_ids:
            offers.append(request)
        return peer_pb2.ConnectResponse(connection_ids=[0xBAD + len(offers)], incarnation=4242)

    try:
        async with hostile_peer(Connect=answer) as bad:
            lanes = [types_pb2.Lane(data_port=2, feedback_port=3)]
            hostile = host([1], 0, bad.port, incarnation=4242, lanes=lanes, state=0)
            request = peer_pb2.RegisterRequest(job="job", world_size=2, host=hostile, bucket_bytes_max=1000)
            trainer = await house.trainer(daemon, 1 << 20)
            await asyncio.gather(_register(daemon, request), trainer.join(0, 2, rendezvous=""))
            ports = daemon.engine.info
            for made in (1, 2, 3):
                await eventually(lambda made=made: len(offers) >= made, f"offer {made}, there are {len(offers)}")  # type: ignore[misc]
                (cid,) = offers[-1].connection_ids
                number = len(offers)
                for count in range(1, 2000):  # until the path is up there: what comes before is ignored
                    send(feedback(cid, count, highest_pn=1000), (ADDRESS, ports.feedback_port))
                    await asyncio.sleep(0.01)
                    if len(offers) > number:
                        break
            assert len({offer.connection_ids[0] for offer in offers}) == len(offers) >= 4
            assert [offer.offer for offer in offers] == sorted({offer.offer for offer in offers})
            assert daemon.engine.stats()["feedback_received"] >= 3
    finally:
        await daemon.stop()


async def _register(daemon: Daemon, request: peer_pb2.RegisterRequest) -> None:
    async with peer(daemon) as stub:
        await stub.Register(request, timeout=20)
