# SPDX-License-Identifier: Apache-2.0
"""What ranks say of their state, and parts that hosts ask of each other."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ultima.daemon.base.errors import InvalidArgument, NotFound
from ultima.daemon.base.waiting import Changes
from ultima.daemon.hosts import host as hosts
from ultima.daemon.hosts.peers import Peers
from ultima.daemon.jobs.state_desk import StateDesk
from ultima.daemon.jobs.wishes import PART_BYTES
from ultima.daemon.observe.stats import ViewStats
from ultima.v1 import peer_pb2, trainer_pb2, types_pb2

ROOT, OTHER = b"r" * 32, b"o" * 32


class Place:
    """A desk, and a job with hosts 0 (here), 1 and 2, of which `members` are in it, with so many ranks on `each`."""

    def __init__(self, each: int = 1) -> None:
        self.told: list[types_pb2.StateWord] = []
        self.wanted: list[tuple[bool, bool]] = []
        self.members = [0, 1]
        links = {
            slot: SimpleNamespace(
                up=lambda: True,
                leaving=False,
                host=SimpleNamespace(
                    index=slot,
                    ranks=tuple(range(slot * each, slot * each + each)),
                    incarnation=70 + slot,
                    place=hosts.Place("10.0.0.1", 100 + slot),
                ),
            )
            for slot in (1, 2)
        }
        own = SimpleNamespace(index=0, ranks=tuple(range(each)), place=hosts.Place("10.0.0.1", 100))

        class Job(SimpleNamespace):
            __hash__ = object.__hash__

        trainer = SimpleNamespace(want_state=lambda wanted, followed: self.wanted.append((wanted, followed)))
        sessions = {rank: SimpleNamespace(trainer=trainer) for rank in range(each)}
        self.job: Any = Job(
            name="j", elastic=hosts.Elastic(1, each=each), own=own, incarnation=70, links=links, number=1, over=False,
            sessions=sessions, state_words={}, moves=ViewStats(), generation=1,
        )  # fmt: skip
        watchers = SimpleNamespace(tell_state=lambda job, rank: self.told.append(job.state_words[rank]))
        council = SimpleNamespace(
            epoch=lambda job: SimpleNamespace(members=[SimpleNamespace(slot=s, life=70 + s) for s in self.members])
        )
        engine = SimpleNamespace(next_op_seq=lambda number: 5)
        self.desk = StateDesk(*cast(Any, (engine, watchers, Changes(), council)))
        self.desk.start(cast(Peers, None))

    async def turn(self, root: bytes = ROOT, rank: int = 0, **said: Any) -> trainer_pb2.TurnStateResponse:
        word = types_pb2.StateWord(here=True, op_seq=5, root=root, size=PART_BYTES + 1)
        request = trainer_pb2.TurnStateRequest(word=word, **said)
        return await self.desk.turn(self.job, rank, request, asyncio.get_running_loop().time() + 0.05)


async def test_turn__a_word_is_told_again_to_who_has_come_since() -> None:
    place = Place()
    told = await place.turn()
    assert [row.rank for row in told.rows] == [0, 1] and told.rows[0].word.root == ROOT and told.next_op_seq == 5
    assert not told.rows[1].HasField("word") and len(place.told) == 1
    await place.turn()
    assert len(place.told) == 1
    place.members = [0, 1, 2]
    await place.turn()
    await place.turn()
    assert len(place.told) == 2 and place.told[1].root == ROOT


async def test_heard__ranks_here_are_told_when_another_asks_and_when_no_more() -> None:
    place = Place()
    link = place.job.links[1]
    for asks in (True, True, False):
        place.desk.heard(place.job, link, types_pb2.StateWord(here=True, op_seq=5, asks=asks))
    assert place.wanted == [(True, False), (False, False)]
    link.host.incarnation = 99  # another life, of which nothing was heard
    place.desk.heard(place.job, link, types_pb2.StateWord(here=True, op_seq=5, asks=True))
    assert place.wanted == [(True, False), (False, False)], "it is not the member that the view names"
    with pytest.raises(InvalidArgument, match="3 bytes: allowed: 32, or none"):
        place.desk.heard(place.job, link, types_pb2.StateWord(here=True, root=b"abc"))


async def test_heard__who_is_yet_to_read_what_it_has_is_stood_still_for() -> None:
    """Else an op would begin that waits for it."""
    place = Place()
    link = place.job.links[1]
    for word in ({"takes": True}, {"takes": True, "asks": True, "root": ROOT}, {"takes": True, "root": ROOT}):
        place.desk.heard(place.job, link, types_pb2.StateWord(here=True, op_seq=5, **word))
    assert place.wanted == [(True, False), (False, False)]


async def test_several__each_rank_of_a_host_says_what_it_has() -> None:
    """And gives its own parts: to other hosts, and to the ranks beside it."""
    place = Place(each=2)
    link = place.job.links[1]
    place.desk.heard(place.job, link, types_pb2.StateWord(here=True, op_seq=5, asks=True, local=1))
    assert place.wanted == [(True, False), (True, False)], "both here stand still for it"
    with pytest.raises(InvalidArgument, match=re.escape("word.local = 2: allowed: 0 to 1")):
        place.desk.heard(place.job, link, types_pb2.StateWord(here=True, local=2))
    told = await place.turn(OTHER, rank=1)
    assert [(row.rank, row.life, row.HasField("word")) for row in told.rows] == [
        (0, 70, False), (1, 70, True), (2, 71, False), (3, 71, True)
    ]  # fmt: skip
    assert place.told[-1].local == 1
    found: list[tuple[int, bytes]] = []

    async def read() -> None:
        request = trainer_pb2.FetchStateRequest(rank=1, root=OTHER, parts=[1])
        async for each in place.desk.fetch(place.job, request):
            found.append(each)

    reader = asyncio.create_task(read())
    told = await place.turn(OTHER, rank=1, table=told.table)
    assert told.wish and told.part == 1 and not (await place.turn(ROOT, rank=0)).wish
    await place.turn(OTHER, rank=1, wish=told.wish, data=b"x")
    await reader
    assert found == [(1, b"x")]
    with pytest.raises(NotFound, match="rank 0 does not give this state"):
        await anext(place.desk.read(place.job, peer_pb2.ReadStateRequest(root=OTHER, parts=[1], local=0)))
    with pytest.raises(InvalidArgument, match="local = 2: allowed: 0 to 1"):
        await anext(place.desk.read(place.job, peer_pb2.ReadStateRequest(root=OTHER, parts=[1], local=2)))
    place.job.sessions.pop(1)
    place.desk._look(place.job, 1)
    assert not place.told[-1].here and place.told[-1].local == 1, "a rank that is gone says nothing more"


async def test_read__a_job_of_two_ranks_is_asked_for_once() -> None:
    place = Place()
    told = await place.turn(sent=7, received=9)
    assert told.place == "10.0.0.1:100" and [row.place for row in told.rows] == ["10.0.0.1:100", "10.0.0.1:101"]
    assert place.job.moves.state_bytes == {"sent": 7, "received": 9}
    found: list[tuple[int, bytes]] = []

    async def read() -> None:
        request = peer_pb2.ReadStateRequest(root=ROOT, kind=types_pb2.STATE_KIND_PAIR, op_seq=77)
        async for each in place.desk.read(place.job, request):
            found.append(each)

    reader = asyncio.create_task(read())
    told = await place.turn(table=told.table)
    assert (told.kind, told.op_seq) == (types_pb2.STATE_KIND_PAIR, 77)
    told = await place.turn(table=told.table, wish=told.wish, data=b"1")
    await reader
    assert found == [(-1, b"1")] and not told.wish, "no second one for the same question"


async def test_read__parts_come_from_the_rank_until_it_gives_another_state() -> None:
    place = Place()
    told = await place.turn()
    found: list[tuple[int, bytes]] = []

    async def read(root: bytes, *parts: int) -> None:
        async for each in place.desk.read(place.job, peer_pb2.ReadStateRequest(root=root, parts=parts)):
            found.append(each)

    reader = asyncio.create_task(read(ROOT, 1, 0))
    told = await place.turn(table=told.table)
    for _ in range(2):
        told = await place.turn(table=told.table, wish=told.wish, data=b"of part %d" % told.part)
    await reader
    assert found == [(1, b"of part 1"), (0, b"of part 0")]
    assert place.job.moves.state_bytes == {"sent": 18, "received": 0}
    with pytest.raises(NotFound, match="does not give this state"):
        await read(b"x" * 32, 0)
    with pytest.raises(InvalidArgument, match="parts = 2: allowed: 0 to 1"):
        await read(ROOT, 2)
    reader = asyncio.create_task(read(ROOT, 0))
    await asyncio.sleep(0)
    await place.turn(root=b"y" * 32)
    with pytest.raises(NotFound, match="gives this state no more"):
        await reader
