# SPDX-License-Identifier: Apache-2.0
"""Somebody calls in the name of a host of a job (A3), or a host lies about numbers (A9): the true path lives on."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, engine, eventually, peer, wired
from ultima.daemon.base.ranges import WINDOW
from ultima.daemon.base.waiting import Changes
from ultima.daemon.hosts.standing import Standing
from ultima.daemon.process.server import Daemon
from ultima.v1 import peer_pb2

CODE = grpc.StatusCode
FORGED = 0x5EED


def in_the_name_of(caller: Daemon, called: Daemon, **fields: Any) -> peer_pb2.ConnectRequest:
    """A Connect as `caller` would make it, but for `fields`; it leads the packets to somebody else's ports."""
    job = called.jobs.all()[0]
    assert job.links is not None and job.own is not None
    told = job.links[1 - job.own.index].host.to_proto()
    told.lanes[0].data_port = told.lanes[0].feedback_port = 9
    for name in ("incarnation", "grpc_port"):
        setattr(told, name, fields.pop(name, getattr(told, name)))
    values = {
        "job": job.name,
        "generation": job.generation,
        "caller": told,
        "to_index": job.own.index,
        "connection_ids": [FORGED],
        "offer": 2,
    }
    return peer_pb2.ConnectRequest(**(values | fields))


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("offer", [2, 3, 1000, WINDOW + 1])
async def test_connect__a_forged_offer_is_found_out_and_replaced(house: House, offer: int) -> None:
    """A3: a Connect as host 0 with a high offer was believed, and every true one after it void."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    async with peer(daemons[1]) as stub:
        await stub.Connect(in_the_name_of(daemons[0], daemons[1], offer=offer), timeout=5)
        await eventually(lambda: wired(daemons), "the true hosts are connected again")
        assert engine(daemons[1]).path(0, 0).address[1] != 9
        await stub.Connect(in_the_name_of(daemons[0], daemons[1], offer=offer + 5), timeout=5)  # and once more
        await eventually(lambda: wired(daemons), "the true hosts are connected again")
        assert engine(daemons[1]).path(0, 0).tx_cid != FORGED


async def test_connect__an_offer_out_of_reach_is_refused(house: House) -> None:
    """No single message makes all later offers void: the highest number is a window away from the last one."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    async with peer(daemons[1]) as stub:
        for offer in (WINDOW + 2, 2**47, 2**62, 2**63 - 1, -1, -(2**63)):
            code, said = await refused(stub.Connect(in_the_name_of(daemons[0], daemons[1], offer=offer), timeout=5))
            assert code in (CODE.FAILED_PRECONDITION, CODE.INVALID_ARGUMENT) and f"offer = {offer}" in said
    async with peer(daemons[0]) as stub:
        for offer in (WINDOW + 2, 2**62, -1):
            request = in_the_name_of(daemons[1], daemons[0], offer=offer, connection_ids=[])
            code, said = await refused(stub.Connect(request, timeout=5))
            assert code in (CODE.FAILED_PRECONDITION, CODE.INVALID_ARGUMENT) and f"offer = {offer}" in said
    assert wired(daemons)


@pytest.mark.parametrize("called", [0, 1])
async def test_connect__a_new_life_is_not_believed_while_the_old_one_answers(house: House, called: int) -> None:
    """Somebody says that he is the other host, begun anew: to be sent what that host should get."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    fields = {"incarnation": 77, "grpc_port": 9, "offer": called, "connection_ids": [FORGED] if called else []}
    async with peer(daemons[called]) as stub:
        request = in_the_name_of(daemons[1 - called], daemons[called], **fields)
        code, said = await refused(stub.Connect(request, timeout=5))
    assert code is CODE.FAILED_PRECONDITION and "caller.incarnation = 77" in said and "is alive as" in said
    assert wired(daemons) and engine(daemons[called]).path(0, 1 - called).connects == 1


async def test_connect__asking_in_anothers_name_only_makes_a_new_path(house: House) -> None:
    """A forged request for an offer: the offer goes to the true host, which takes it."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    async with peer(daemons[0]) as stub:
        for offer in (1, 2, WINDOW):
            await stub.Connect(in_the_name_of(daemons[1], daemons[0], offer=offer, connection_ids=[]), timeout=5)
            await eventually(lambda: wired(daemons), "connected again")
    assert engine(daemons[0]).path(0, 1).address[1] != 9


def test_standing__one_liar_moves_nobody() -> None:
    """What comes next is heard from others only where they are near, or are more than those who say otherwise."""
    rows = [  # told by the coordinator, own engine, words, what is believed
        (0, 0, {}, 0),
        (0, 5, {1: 7, 2: 6}, 7),
        (0, 5, {1: 2**47}, 5),
        (0, 5, {1: 7, 2: 2**47}, 7),
        (0, 5, {1: 2**40, 2: 2**40 + 3}, 2**40 + 3),  # this host was away for long
        (0, 0, {1: 5 * 10**6}, 5 * 10**6),  # it comes back, and knows nothing
        (0, 0, {1: 5 * 10**6, 2: 2**47, 3: 5 * 10**6 + 2}, 5 * 10**6 + 2),
        (0, 0, {1: 5 * 10**6, 2: 2**47}, 5 * 10**6),
        (5 * 10**6, 0, {1: 2**47}, 5 * 10**6),
    ]
    for told, here, words, believed in rows:
        standing = Standing(told)
        for index, word in words.items():
            standing.hear(index, word)
        assert standing.next_op_seq(here) == believed, (told, here, words)


async def test_changes__a_listener_that_fails_is_nobody_elses_trouble() -> None:
    """A9: an exception in one job's listener made every join and `status` INTERNAL."""
    changes, seen = Changes(), []

    def fails() -> None:
        raise OverflowError("a number of one job")

    changes.listen(fails)
    changes.listen(lambda: seen.append(1))
    for _ in range(3):
        changes.notify()
    assert seen == [1, 1, 1]


async def test_changes__each_who_waits_looks_once_a_turn() -> None:
    """A11: every change woke all who waited for anything, of all jobs."""
    changes, looks, box = Changes(), [0], [False]

    def predicate() -> bool:
        looks[0] += 1
        return box[0]

    end = asyncio.get_running_loop().time() + 30
    waiting = [asyncio.ensure_future(changes.until(predicate, end)) for _ in range(50)]
    await asyncio.sleep(0)
    looks[0] = 0
    for _ in range(100):
        changes.notify()
    await asyncio.sleep(0.01)
    assert looks[0] == 50
    box[0] = True
    changes.notify()
    assert await asyncio.gather(*waiting) == [True] * 50
