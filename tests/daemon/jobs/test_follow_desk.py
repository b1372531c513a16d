# SPDX-License-Identifier: Apache-2.0
"""What a rank gives to those who follow it, as its daemon passes it on."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ultima.daemon.base.errors import InvalidArgument, NotFound
from ultima.daemon.base.waiting import Changes
from ultima.daemon.jobs.follow_desk import FollowDesk
from ultima.daemon.jobs.wishes import PART_BYTES
from ultima.daemon.observe.stats import ViewStats
from ultima.v1 import peer_pb2, trainer_pb2, types_pb2


class Job(SimpleNamespace):
    __hash__ = object.__hash__


async def test_read__what_the_rank_answers_in_pieces_until_a_short_one() -> None:
    changes = Changes()
    job: Any = Job(name="j", over=False, moves=ViewStats())
    desk = FollowDesk(changes, lambda job: 2)
    request = peer_pb2.ReadStateRequest(kind=types_pb2.STATE_KIND_RESULTS, op_seq=7)
    with pytest.raises(NotFound, match="gives nothing to followers"):
        _ = [each async for each in desk.read(job, request)]
    whole, answer, asked = b"x" * PART_BYTES + b"rest", (0, b""), []

    async def giver() -> None:
        nonlocal answer
        while True:
            turn = trainer_pb2.TurnStateRequest(wish=answer[0], data=answer[1])
            told = await desk.turn(job, turn, asyncio.get_running_loop().time() + 0.05)
            assert told.followers == 2
            asked.append((told.kind, told.op_seq, told.part))
            answer = told.wish, whole[told.part * PART_BYTES : (told.part + 1) * PART_BYTES]

    task = asyncio.create_task(giver())
    await asyncio.sleep(0.01)
    found = [each async for each in desk.read(job, request)]
    task.cancel()
    assert found == [(0, whole[:PART_BYTES]), (1, b"rest")], [(part, len(data)) for part, data in found]
    assert (types_pb2.STATE_KIND_RESULTS, 7, 0) in asked and job.moves.state_bytes["sent"] == len(whole)


async def test_read__a_giver_that_begins_again_is_asked_what_the_one_before_left_unanswered() -> None:
    """What that one gave was too old. Whoever asked does not wait until the rank counts as silent."""
    job: Any = Job(name="j", over=False, moves=ViewStats())
    desk, loop = FollowDesk(Changes(), lambda job: 1), asyncio.get_running_loop()

    async def turn(wish: int = 0, data: bytes = b"") -> trainer_pb2.TurnStateResponse:
        return await desk.turn(job, trainer_pb2.TurnStateRequest(wish=wish, data=data), loop.time() + 5)

    async def read() -> list[tuple[int, bytes]]:
        request = peer_pb2.ReadStateRequest(kind=types_pb2.STATE_KIND_HEAD)
        return [each async for each in desk.read(job, request)]

    first = asyncio.create_task(turn())
    await asyncio.sleep(0.01)
    found = asyncio.create_task(read())
    left = await first
    assert left.wish and left.kind == types_pb2.STATE_KIND_HEAD
    again = await turn()
    assert again.wish == left.wish
    later = asyncio.create_task(turn(again.wish, b"new"))
    async with asyncio.timeout(5):
        assert await found == [(0, b"new")]
    later.cancel()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"kind": 9}, "kind = 9: allowed"),
        ({"kind": 2, "parts": [-1]}, "parts"),
        ({"kind": 2, "parts": [0] * 257}, "257: allowed: 256 at most"),
        ({"kind": 1, "parts": [0]}, "none of them for kind = 1"),
        ({"kind": 3, "op_seq": -1}, "op_seq"),
    ],
)
async def test_read__what_cannot_be_asked_is_refused_by_name(said: dict[str, Any], why: str) -> None:
    desk, job = FollowDesk(Changes(), lambda job: 0), Job(name="j", over=False, moves=ViewStats())
    with pytest.raises(InvalidArgument, match=why):
        _ = [each async for each in desk.read(job, peer_pb2.ReadStateRequest(**said))]  # type: ignore[arg-type]
