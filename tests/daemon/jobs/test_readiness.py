# SPDX-License-Identifier: Apache-2.0
"""Probes as they are answered: by what the engine has told, when it tells more, and never twice in two ways."""

from __future__ import annotations

import asyncio

import pytest

from ultima.daemon.base.errors import DeadlineExceeded, ResourceExhausted
from ultima.daemon.engine.engine import NOBODY, Event, EventKind
from ultima.daemon.jobs import readiness
from ultima.daemon.jobs.readiness import EXPIRED, READY, UNKNOWN_RANK, Readiness


def told(*events: tuple[EventKind, int, int]) -> Readiness:
    """After READY with a mask of places, ACTIVATED, OP_DONE: kind, op_seq, a."""
    ready = Readiness()
    for kind, op_seq, a in events:
        tell(ready, kind, op_seq, a)
    return ready


def tell(ready: Readiness, kind: EventKind, op_seq: int, a: int = 0) -> None:
    ready.take(Event(int(kind), 0, NOBODY, NOBODY, op_seq, a, 0, 0))


@pytest.mark.parametrize(
    ("events", "op_seq", "place", "answer"),
    [
        ([], 0, 0, None),
        ([(EventKind.READY, 0, 0b1)], 0, 0, READY),
        ([(EventKind.READY, 0, 0b10)], 0, 0, None),
        ([(EventKind.READY, 0, 0b10)], 0, 1, READY),
        ([(EventKind.READY, 7, 0b1)], 7, 0, READY),
        ([(EventKind.READY, 7, 0b1)], 6, 0, EXPIRED),
        ([(EventKind.READY, 7, 0b1)], 8, 0, None),  # the one who asks is further than this host
        ([(EventKind.READY, 7, 0b1), (EventKind.READY, 6, 0b10)], 7, 1, None),  # of an op that is past
        ([(EventKind.READY, 7, 0b1), (EventKind.ACTIVATED, 7, 0b1)], 7, 0, EXPIRED),
        ([(EventKind.READY, 7, 0b1), (EventKind.ACTIVATED, 7, 0b1)], 8, 0, None),  # it was taken
        ([(EventKind.ACTIVATED, 7, 0), (EventKind.READY, 8, 0b1)], 8, 0, None),  # 7 runs: 8 could not start
        ([(EventKind.ACTIVATED, 7, 0), (EventKind.READY, 8, 0b1), (EventKind.OP_DONE, 7, 1)], 8, 0, READY),
        ([(EventKind.ACTIVATED, 7, 0), (EventKind.OP_DONE, 6, 1), (EventKind.READY, 8, 0b1)], 8, 0, None),
        ([(EventKind.OP_DONE, 7, 1)], 7, 0, EXPIRED),
        ([(EventKind.READY, 7, 0b1)], 7, None, UNKNOWN_RANK),
        ([(EventKind.READY, 7, 0b1)], 6, None, EXPIRED),
    ],
)
def test_result(events: list[tuple[EventKind, int, int]], op_seq: int, place: int | None, answer: int | None) -> None:
    assert told(*events).result(op_seq, place) == answer


async def test_answer__waits_for_the_gradient() -> None:
    ready = told((EventKind.READY, 3, 0b10))
    probe = asyncio.ensure_future(ready.answer(3, lambda: 0, asyncio.get_running_loop().time() + 10))
    await asyncio.sleep(0)
    assert not probe.done()
    tell(ready, EventKind.READY, 3, 0b11)
    assert await probe == READY


async def test_answer__expires_when_another_rank_has_started_the_op() -> None:
    """The loser of a race (docs/papers.md, section 3.5)."""
    ready = told((EventKind.READY, 7, 0b10))
    probe = asyncio.ensure_future(ready.answer(7, lambda: 0, asyncio.get_running_loop().time() + 10))
    await asyncio.sleep(0)
    tell(ready, EventKind.ACTIVATED, 7)
    tell(ready, EventKind.READY, 7, 0b1)  # late: id 8 is open
    assert await probe == EXPIRED


async def test_answer__of_a_rank_that_dies_meanwhile() -> None:
    ready, alive = Readiness(), [True]
    deadline = asyncio.get_running_loop().time() + 10
    probe = asyncio.ensure_future(ready.answer(0, lambda: 0 if alive[0] else None, deadline))
    await asyncio.sleep(0)
    alive[0] = False
    ready.look_again()
    assert await probe == UNKNOWN_RANK


async def test_answer__the_same_twice() -> None:
    ready = told((EventKind.READY, 3, 0b1))
    deadline = asyncio.get_running_loop().time() + 10
    assert [await ready.answer(3, lambda: 0, deadline) for _ in range(2)] == [READY, READY]


async def test_answer__at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="op_seq = 3"):
        await Readiness().answer(3, lambda: 0, asyncio.get_running_loop().time())


async def test_answer__no_more_than_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "WAITING_MAX", 2)
    ready, deadline = Readiness(), asyncio.get_running_loop().time() + 10
    waiting = [asyncio.ensure_future(ready.answer(0, lambda: 0, deadline)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="probes = 2"):
        await ready.answer(0, lambda: 0, deadline)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    third = asyncio.ensure_future(ready.answer(0, lambda: 0, deadline))
    await asyncio.sleep(0)
    tell(ready, EventKind.READY, 0, 0b1)
    assert await asyncio.gather(waiting[1], third) == [READY, READY]


def test_denied__is_not_ready_again_before_the_engine_says_so() -> None:
    ready = told((EventKind.READY, 3, 0b11))
    ready.denied(2)
    assert ready.result(3, 0) == READY, "that was about another op"
    ready.denied(3)
    assert ready.result(3, 0) is None and ready.result(3, 1) is None
    tell(ready, EventKind.READY, 3, 0b10)
    assert ready.result(3, 0) is None and ready.result(3, 1) == READY


def test_started__before_the_engine_has_told() -> None:
    ready = told((EventKind.READY, 3, 0b1))
    ready.started(3)
    assert ready.result(3, 0) == EXPIRED
    tell(ready, EventKind.READY, 4, 0b1)
    assert ready.result(4, 0) is None, "op 3 runs"
    tell(ready, EventKind.ACTIVATED, 3, 0b1)
    tell(ready, EventKind.OP_DONE, 3)
    assert ready.result(4, 0) == READY
