# SPDX-License-Identifier: Apache-2.0
"""Passes on what ranks give to those who follow them: newcomers that are in no op yet, and get state and results.

The rank that gives makes turns beside its ops, and nobody waits for it. Here nothing is kept: what another host asks
for is asked of the rank. Who follows whom the state desk knows, by what ranks say (state_desk.py).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ultima.daemon.base.errors import InvalidArgument, NotFound
from ultima.daemon.base.ranges import OP_SEQ_MAX, whole
from ultima.daemon.base.waiting import Changes
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.wishes import LIST_PIECES_MAX, PART_BYTES, PARTS_MAX, SILENT_SECONDS, Wish, granted
from ultima.v1 import peer_pb2, trainer_pb2, types_pb2
from ultima.v1.limits import BUCKET_BYTES_MAX

RESULT_PIECES_MAX = BUCKET_BYTES_MAX // PART_BYTES + 2  # the largest result and its head


@dataclass(eq=False)
class _Giver:
    """Of one job on this host."""

    turned: float = 0.0
    wishes: deque[Wish] = field(default_factory=deque)
    asked: dict[int, Wish] = field(default_factory=dict)


class FollowDesk:
    """See the module."""

    def __init__(self, changes: Changes, followers: Callable[[Job], int]) -> None:
        self._changes, self._followers = changes, followers
        self._givers: WeakKeyDictionary[Job, _Giver] = WeakKeyDictionary()
        self._numbers = itertools.count(1)

    async def turn(
        self, job: Job, request: trainer_pb2.TurnStateRequest, deadline: float
    ) -> trainer_pb2.TurnStateResponse:
        """Of the rank here that gives: its answer to a wish, and the next one, as soon as there is one.

        A rank begins to give again where what it gave is too old, and leaves what it was asked for last unanswered.
        Its first turn answers nothing, so then it is asked once more.
        """
        giver, loop = self._givers.setdefault(job, _Giver()), asyncio.get_running_loop()
        giver.turned = loop.time()
        answered = giver.asked.pop(request.wish, None)
        if answered is not None and not answered.answer.done():
            answered.answer.set_result(request.data)
        if not request.wish:
            giver.wishes.extendleft(reversed(giver.asked.values()))
            giver.asked.clear()
        followers = self._followers(job)

        def news() -> bool:
            return bool(giver.wishes) or self._followers(job) != followers or job.over

        await self._changes.until(news, deadline)
        giver.turned = loop.time()
        told = trainer_pb2.TurnStateResponse(followers=self._followers(job))
        while giver.wishes:
            wish = giver.wishes.popleft()
            if not wish.answer.done():
                giver.asked[wish.number] = wish
                told.wish, told.part, told.kind, told.op_seq = wish.number, wish.part, wish.kind, wish.op_seq
                break
        return told

    async def read(self, job: Job, request: peer_pb2.ReadStateRequest) -> AsyncGenerator[tuple[int, bytes], None]:
        """What another host asks of the rank here. Raises Refused."""
        parts = _parts(request)
        op_seq = whole("op_seq", request.op_seq, 0, OP_SEQ_MAX)
        found = granted(lambda part: self._wish(job, request.kind, op_seq, part), parts, ends_short=not request.parts)
        async with aclosing(found):
            async for part, data in found:
                job.moves.state_bytes["sent"] += len(data)
                yield part, data

    def _wish(self, job: Job, kind: types_pb2.StateKind.ValueType, op_seq: int, part: int) -> Wish:
        giver, loop = self._givers.get(job), asyncio.get_running_loop()
        if giver is None or loop.time() >= giver.turned + SILENT_SECONDS:
            raise NotFound(f"job {job.name!r}: the rank here gives nothing to followers, or not any more")
        wish = Wish(next(self._numbers), part, loop.create_future(), kind, op_seq)
        giver.wishes.append(wish)
        self._changes.notify()
        return wish


def _parts(request: peer_pb2.ReadStateRequest) -> list[int] | range:
    """Numbers of the pieces that are asked for. Raises InvalidArgument."""
    kinds = types_pb2.StateKind
    if request.kind not in kinds.values():
        raise InvalidArgument(f"kind = {request.kind}: allowed: 0 to {max(kinds.values())}")
    if len(request.parts) > PARTS_MAX:
        raise InvalidArgument(f"parts: {len(request.parts)}: allowed: {PARTS_MAX} at most")
    if request.kind == kinds.STATE_KIND_FOLLOWED:
        for part in request.parts:
            whole("parts", part, 0, 2**31 - 1)
        return list(request.parts) or range(-1, -LIST_PIECES_MAX - 1, -1)
    if request.parts:
        raise InvalidArgument(f"parts: {len(request.parts)}: allowed: none of them for kind = {request.kind}")
    return range(RESULT_PIECES_MAX if request.kind == kinds.STATE_KIND_RESULTS else 1)
