# SPDX-License-Identifier: Apache-2.0
"""A branch that waits for hosts which live no more: who finds that out, how, and what follows."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.daemon.helpers import House, engine, eventually, rendezvous
from ultima.daemon.base.errors import DeadlineExceeded, FailedPrecondition, NotFound, Refused, Unavailable
from ultima.daemon.hosts import seating
from ultima.daemon.hosts.host import Host
from ultima.daemon.jobs import heirs
from ultima.daemon.jobs.epoch import HEIR, Epoch, Fork, Member, Word, decide, left_behind, unhurried
from ultima.daemon.jobs.heirs import Heirs
from ultima.v1 import peer_pb2

A, B, C, D = (Member(slot, 10 + slot) for slot in range(4))
FORK, INNER = Fork(2, 2, C), Fork(1, 4, D)


def epoch(*members: Member, line: tuple[Fork, ...] = (), options: tuple[int, ...] = (0, 0, 0, 0)) -> Epoch:
    return Epoch(1, 0, 0, members, frozenset(members), line, options)


@pytest.mark.parametrize(
    ("before", "base", "now", "left"),
    [
        (None, None, epoch(A, B), set()),
        (None, None, epoch(C, D, line=(FORK,)), None),
        (set(), epoch(A, B, C, D), epoch(C, D, line=(FORK,)), {A, B}),
        ({A, B}, epoch(C, D, line=(FORK,)), epoch(C, line=(FORK,)), {A, B}),
        ({A, B}, epoch(C, D, line=(FORK,)), epoch(C, D, A, line=(FORK,)), {B}),
        ({A, B}, epoch(C, D, line=(FORK,)), epoch(D, line=(FORK, INNER)), {A, B, C}),
        ({A, B}, epoch(C, D, line=(FORK,)), epoch(A, B, C, D), set()),
        (set(), epoch(A, B, C, D), epoch(D, line=(FORK, INNER)), None),
        (None, epoch(C, D, line=(FORK,)), epoch(D, line=(FORK, INNER)), None),
    ],
)
def test_left_behind__is_who_was_in_a_line_and_is_not_in_the_branch(
    before: set[Member] | None, base: Epoch | None, now: Epoch, left: set[Member] | None
) -> None:
    """Who came to a branch later, or through one that it was not in, does not know."""
    known = None if before is None else frozenset(before)
    assert left_behind(known, base, now) == left


def test_decide__one_host_that_knows_is_enough_and_nothing_is_to_be_waited_for() -> None:
    base = epoch(C, D, line=(FORK,))
    told = {m: Word(1, base, 5, frozenset({C, D}) - {m}, wishes=(0, 0, 0, int(m == D))) for m in (C, D)}
    child, why = decide(base, C, {D}, told, False, 7)
    assert child is not None and child.options[HEIR] == 1 and child.members == (C, D)
    assert why == "the hosts that were left live no more: these go on" and not unhurried(base, child)


def host(m: Member) -> Host:
    return Host(m.slot, f"10.0.0.{m.life}", 29520, ((29521, 29522),), m.life, (m.slot,), 1472)


async def test_heirs__are_told_once_the_daemons_of_all_others_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them says nothing for a while."""
    monkeypatch.setattr(heirs, "AGAIN_SECONDS", 0.01)
    asked, done = list[int](), asyncio.Event()

    async def is_over(who: Host) -> bool:
        asked.append(who.index)
        return who.index == 0 or asked.count(1) == 3

    found = Heirs("j", {A: host(A), B: host(B)}, is_over, done.set)
    assert not found.alone
    await asyncio.wait_for(done.wait(), 20)
    assert found.alone and asked == [0, 1, 1, 1], "who has said so is not asked again"


async def test_heirs__of_a_host_in_an_unknown_place_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heirs, "AGAIN_SECONDS", 0.001)
    asked = asyncio.Event()

    async def is_over(who: Host) -> bool:
        asked.set()
        return True

    found = Heirs("j", {A: host(A), B: None}, is_over, lambda: pytest.fail("nobody knows of host 1"))
    await asyncio.wait_for(asked.wait(), 20)
    await asyncio.sleep(0.05)
    assert not found.alone
    found.close()


@pytest.mark.parametrize(
    ("error", "over"),
    [
        (None, False),
        (NotFound("no job here has it"), True),
        (FailedPrecondition("host 0 is alive as 7, and you are another one"), False),
        (DeadlineExceeded("busy"), False),
        (Unavailable("connection refused: a firewall may do that, too"), False),
    ],
)
async def test_links__a_life_is_over_if_the_daemon_in_its_place_says_just_that(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Refused | None, over: bool
) -> None:
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    links = daemons[0].jobs.all()[0].links
    assert links is not None
    asked = []

    async def call(place: object, request: object, timeout: float) -> object:
        asked.append(request)
        if error is not None:
            raise error
        return peer_pb2.ConnectResponse()

    monkeypatch.setattr(links, "_call", call)
    assert await links.is_over(host(B)) is over
    (request,) = asked
    assert request.doubt and request.to_incarnation == B.life and request.to_index == B.slot


async def test_links__of_a_daemon_that_was_started_anew(house: House) -> None:
    """Over real calls: of a life that it has the daemon says nothing of the kind, of any other one that it is over."""
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    job = daemons[0].jobs.all()[0]
    assert job.links is not None
    there = job.links[1].host
    assert not await job.links.is_over(there)
    over = replace(there, incarnation=77)
    assert await job.links.is_over(over)
    assert not await job.links.is_over(replace(over, outward=True)), "another daemon may answer by that address"
    await eventually(job.links[1].up, "the path stays")


async def test_council__the_engine_hears_of_a_branch_once_it_waits_for_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ops that wait with it are released by the next view: none of them is to run with the branch alone."""
    monkeypatch.setattr(seating, "SETTLE_SECONDS", 0.1)
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    await trainer.join(0, 2, rendezvous=rendezvous(daemon), least=1, split_waits=True)
    council, job = daemon.jobs.fellows.council, daemon.jobs.all()[0]
    room = council._rooms[job]
    base, me = room.seat.epoch, room.seat.me
    assert base is not None and base.members == (me,)

    def follows(number: int, line: tuple[Fork, ...], heir: int) -> None:
        options = (*base.options[:HEIR], heir)
        new = Epoch(number, 1, 9 + number, (me,), frozenset({me}), line, options, base.settings)
        room.seat._take(new)
        council._took(room)

    def given() -> list[int]:
        return [each.number for each in engine(daemon).jobs[0].epochs]

    before, fork = given(), (Fork(1, 2, me),)
    follows(2, fork, 0)
    assert given() == before and room.waits_from == 11
    follows(3, fork, 1)
    assert given() == [*before, 3] and room.waits_from is None
    assert engine(daemon).jobs[0].epochs[-1].options == (0, 0, 0, 0), "the engine knows of no such option"
    follows(4, (), 0)
    assert given() == [*before, 3, 4]
