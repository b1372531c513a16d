# SPDX-License-Identifier: Apache-2.0
"""Newcomers of a job whose hosts come and go, to whom two daemons that do not know of each other's give seats."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from tests.daemon.helpers import House, Trainer, eventually, rendezvous, wired
from tests.daemon.trust.papers import Authority
from tests.daemon.trust.secure import secure
from ultima.daemon.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from ultima.daemon.hosts import membership, seating
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs import council
from ultima.daemon.jobs.claims import Claims, SeatLost, until_seated
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.link import Link
from ultima.daemon.process.server import Daemon
from ultima.v1 import peer_pb2, types_pb2

SEATS = 4


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def enter(house: House, daemon: Daemon, *meets: Daemon, each: int = 1) -> Trainer:
    """The ranks of a host, of which one is returned; it returns when the host is in."""
    trainers = [await house.trainer(daemon) for _ in range(each)]
    said = {"rendezvous": ",".join(map(rendezvous, meets)), "least": 2, "local_world_size": each}
    await asyncio.gather(*(trainer.join(local, SEATS * each, **said) for local, trainer in enumerate(trainers)))
    return trainers[0]


def job(daemon: Daemon) -> Job:
    (found,) = daemon.jobs.all()
    return found


async def begun(house: House, monkeypatch: pytest.MonkeyPatch, daemons: list[Daemon], each: int = 1) -> list[Daemon]:
    """A job of two hosts, which both of the daemons know at which it meets; the four hosts."""
    monkeypatch.setattr(seating, "SETTLE_SECONDS", 0.1)
    first, second, *hosts = daemons
    await asyncio.gather(*(enter(house, host, first, second, each=each) for host in hosts[:2]))
    await eventually(lambda: second._coordinator.record("job") is not None, "the second is told of the job")
    return hosts


def seats(hosts: list[Daemon]) -> list[int]:
    found = [job(host).own for host in hosts]
    return [own.index for own in found if own is not None]


async def whole(hosts: list[Daemon]) -> None:
    """All are in the view that holds, and there is a path between each two."""
    places = dict(zip(seats(hosts), hosts, strict=True))
    ordered = [places[seat] for seat in range(SEATS)]
    await eventually(lambda: wired(ordered), "paths between all")

    def all_in() -> bool:
        views = [host.jobs.fellows.council.view(job(host)) for host in hosts]
        each = len(job(hosts[0]).own.ranks)  # type: ignore[union-attr]
        return all(view is not None and view.ranks == tuple(range(SEATS * each)) for view in views)

    await eventually(all_in, "one view with all")


@pytest.mark.check
async def test_a_seat_that_another_daemon_gave__is_given_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second daemon hears nothing of the third host, and gives its seat to the fourth, which is told so by the
    hosts that are in. It is they who tell it of the third one, too."""
    hosts = await begun(house, monkeypatch, [await house.daemon() for _ in range(6)])
    first, second = house.daemons[:2]
    monkeypatch.setattr(second._coordinator, "restore", lambda *told: None)
    await enter(house, hosts[2], first)
    assert seats(hosts[:3]) in ([0, 1, 2], [1, 0, 2])
    record = second._coordinator.record("job")
    assert record is not None and record.states[2] is State.ABSENT, "it would give that seat again"
    await enter(house, hosts[3], second)
    assert seats(hosts[2:]) == [2, 3] and job(hosts[3]).taken == {2} and not job(hosts[2]).taken
    await whole(hosts)
    assert record.hosts[2].vacant and record.hosts[3].incarnation == job(hosts[3]).incarnation


@pytest.mark.check
async def test_a_daemon_that_did_not_give_a_seat__is_told_who_has_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = await begun(house, monkeypatch, [await house.daemon() for _ in range(6)])
    first, second = house.daemons[:2]
    await enter(house, hosts[2], first, second)
    record = second._coordinator.record("job")
    assert record is not None
    await eventually(lambda: record.states[2] is State.UP, "the second knows of the seat")
    await enter(house, hosts[3], second)
    assert seats(hosts[2:]) == [2, 3] and not job(hosts[3]).taken
    await whole(hosts)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"rank": 2}, "rank = 2: allowed: 0 to 1"),
        ({"world_size": 5}, "world_size = 5: allowed: a multiple of local_world_size = 2"),
        ({"world_size": 130}, "world_size = 130: allowed: 2 to 128"),
        ({"least": 3}, "least = 3: allowed: 1 to 2"),
        ({"local_world_size": 17}, "local_world_size = 17: allowed: 1 to 16"),
        ({"follow": True}, "follow = True: allowed: False, as local_world_size = 2"),
    ],
)
async def test_several_ranks__that_cannot_be_are_refused(house: House, said: dict[str, Any], error: str) -> None:
    trainer = await house.trainer(await house.daemon())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await trainer.join(**{"rank": 0, "world_size": 4, "least": 1, "local_world_size": 2} | said)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, error)


async def test_a_host_of_two_ranks_that_leaves__gets_no_path_back_by_the_one_that_stays(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank that leaves takes its host along. It says from which op on it has nothing. The other rank is there
    all the same, and what its daemon tells of it brings no path back, which would hold the seat."""
    stays, leaves = await begun(house, monkeypatch, [await house.daemon() for _ in range(4)], each=2)
    host = job(leaves).own
    assert host is not None
    await eventually(lambda: len(job(leaves).sessions) == 2, "both ranks are in")
    first = next(iter(job(leaves).sessions.values())).trainer
    trainer = next(each for each in house.trainers if each.answer.reply["ticket"] == first.ticket)
    link = job(stays).links[host.index]  # type: ignore[index]
    words: list[int] = []
    plain = stays.jobs.fellows.council.heard

    def heard(job: Job, link: Link, told: peer_pb2.EpochWord) -> bool:
        words.extend([told.next_op_seq] if told.leaving else [])
        return plain(job, link, told)

    monkeypatch.setattr(stays.jobs.fellows.council, "heard", heard)
    for daemon, op_seq in ((leaves, 7), (stays, 6)):
        for each in daemon.engine.engines:
            each.jobs[0].next_op_seq = op_seq  # type: ignore[attr-defined]
    await trainer.leave(next_op_seq=5)
    await eventually(lambda: link.left == host.incarnation, "it has left")
    assert not link.up() and words[0] == 5, "of op 5 it has nothing, whatever its other rank calls"
    leaves._watchers.tell(job(leaves))
    await asyncio.sleep(0.2)
    assert len(job(leaves).sessions) == 1 and not link.up() and not link.calls()


@pytest.mark.check
@pytest.mark.parametrize(("certificates", "each"), [(False, 1), (True, 1), (False, 3)])
async def test_two_newcomers_with_one_seat__one_of_them_gives_way(
    house: House, monkeypatch: pytest.MonkeyPatch, authority: Authority, certificates: bool, each: int
) -> None:
    """Each of the two is connected to one of the hosts that are in, before it calls the other one. All ranks of the one
    that gives way go to its next seat."""
    made = [await (secure(house, authority, f"n{i}") if certificates else house.daemon()) for i in range(6)]
    hosts = await begun(house, monkeypatch, made, each)

    crossed = asyncio.Event()

    def has(host: Daemon, newcomer: Daemon) -> bool:
        links = job(host).links
        return links is not None and links[2].up() and links[2].host.grpc_port == newcomer.grpc_port

    def hold(host: Daemon, late: Daemon) -> None:
        """On a host the calls of one newcomer have to wait until each has a path to one host."""
        plain = host.jobs.fellows.connect

        async def connect(request: peer_pb2.ConnectRequest, caller: Host, deadline: float) -> peer_pb2.ConnectResponse:
            while caller.grpc_port == late.grpc_port and not crossed.is_set():
                if has(hosts[0], hosts[2]) and has(hosts[1], hosts[3]):
                    crossed.set()
                await asyncio.sleep(0.005)
            return await plain(request, caller, deadline)

        monkeypatch.setattr(host.jobs.fellows, "connect", connect)

    hold(hosts[0], hosts[3])
    hold(hosts[1], hosts[2])
    await asyncio.gather(enter(house, hosts[2], made[0], each=each), enter(house, hosts[3], made[1], each=each))
    assert crossed.is_set()
    assert sorted(seats(hosts[2:])) == [2, 3]
    for seat, host in zip(seats(hosts[2:]), hosts[2:], strict=True):
        assert sorted(job(host).sessions) == [*range(seat * each, seat * each + each)] and not job(host).joining
    (loser,) = [host for host in hosts[2:] if job(host).taken]
    (winner,) = [host for host in hosts[2:] if host is not loser]
    assert job(loser).taken == {2} and seats([winner, loser]) == [2, 3]
    assert min(job(loser).former) > job(winner).incarnation, "the smaller life goes on"
    await whole(hosts)


@pytest.mark.check
async def test_a_host_that_believes_in_paths_to_all__hears_that_another_one_has_its_seat(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hosts that are in have taken the third one for seat 2, while they called the fourth one by the same seat: it
    has paths that nobody there knows of, so nobody refuses it, and nobody takes it in."""
    hosts = await begun(house, monkeypatch, [await house.daemon() for _ in range(6)])
    first, second = house.daemons[:2]
    monkeypatch.setattr(second._coordinator, "restore", lambda *told: None)
    await enter(house, hosts[2], first)
    late, believed = hosts[3], list[int]()

    def believe(member: Daemon) -> None:
        plain = member.jobs.fellows.connect

        async def connect(request: peer_pb2.ConnectRequest, caller: Host, deadline: float) -> peer_pb2.ConnectResponse:
            if caller.grpc_port != late.grpc_port or caller.index != 2 or request.doubt:
                return await plain(request, caller, deadline)
            links, own = job(late).links, job(member).own
            assert links is not None and own is not None
            await links.called(own, (1000 + own.index,), 1, doubt=False)
            believed.append(own.index)
            return peer_pb2.ConnectResponse(incarnation=own.incarnation)

        monkeypatch.setattr(member.jobs.fellows, "connect", connect)

    for member in hosts[:2]:
        believe(member)
    await enter(house, late, second)
    assert sorted(believed) == [0, 1]
    assert seats(hosts[2:]) == [2, 3] and job(late).taken == {2}
    await whole(hosts)


async def test_until_seated__tries_other_seats_and_raises_what_else_there_is() -> None:
    tried = []

    async def join(lost: frozenset[int]) -> str:
        tried.append(lost)
        if len(tried) < 3:
            raise SeatLost("another host has it", seat=4 + len(tried))
        if len(tried) == 3:
            return "in"
        raise Unavailable("away")

    assert await until_seated(join) == "in"
    assert tried == [set(), {5}, {5, 6}]
    with pytest.raises(Unavailable, match="away"):
        await until_seated(join)
    assert tried[3:] == [set()]


@pytest.mark.check
async def test_a_daemon_that_is_told_of_a_job__gives_the_seat_of_who_leaves_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path still stands when the daemon at `meet` is started anew, and nobody would say later that it is gone."""
    hosts = await begun(house, monkeypatch, [await house.daemon() for _ in range(5)])
    await enter(house, hosts[2], house.daemons[0])
    told = []
    for host in (hosts[0], hosts[2]):
        monkeypatch.setattr(host.jobs.fellows._peers, "restore", lambda place, request: told.append(request))
    seat = seats(hosts[2:])[0]

    def says() -> list[int]:
        for host in (hosts[0], hosts[2]):
            host.jobs.fellows.tell_where_hosts_meet(job(host))
        return [request.hosts[seat].state for request in told[-2:]]

    await eventually(lambda: says() == [State.UP.value] * 2, "it is in")
    leaves = asyncio.create_task(
        hosts[2].jobs.fellows.council.leave(job(hosts[2]), asyncio.get_running_loop().time() + 60)
    )
    await eventually(lambda: says() == [State.ABSENT.value] * 2, "it leaves")
    links = job(hosts[0]).links
    assert links is not None and [request.hosts[0].state for request in told[-2:]] == [State.UP.value] * 2
    await leaves


class Place(Claims):
    """The paths of host 0 to hosts 1 and 2, of which host 1 is connected as life 50."""

    def __init__(self, answer: Exception | None, is_in: set[int]) -> None:
        self.own, self._job, self._elastic = host(0, 40), "j", True
        self._links = {1: Link(host(1, 50), State.UP), 2: Link(host(2, 0), State.ABSENT)}
        self._is_in = lambda each: each.incarnation in is_in
        self._on_change = lambda: None
        self.answer, self.asked, self.called = answer, list[int](), list[int]()

    def call(self, link: Link, give_up: bool, after: float = 0.0) -> None:
        self.called.append(link.host.incarnation)

    def settled(self) -> bool:
        return all(link.state is not State.CONNECTING for link in self._links.values())

    def _forget(self, link: Link, why: str) -> None:
        link.state = State.ABSENT

    async def _claim(self, link: Link, rival: int) -> peer_pb2.ConnectResponse:
        self.asked.append(rival)
        if self.answer is not None:
            raise self.answer
        return peer_pb2.ConnectResponse()

    async def stands_by(self, link: Link) -> None:
        self.asked.append(link.host.incarnation)
        if self.answer is not None:
            raise self.answer


def host(index: int, life: int) -> Host:
    return Host(index, f"10.0.0.{life}", 29520, ((29521, 29522),), life, (index,), 1472)


@pytest.mark.parametrize(
    ("answer", "is_in", "error", "asked", "stands"),
    [
        (None, {40, 50}, AlreadyExists("job 'j': seat 1: host 1 (10.0.0.50:29520) has it"), [60], True),
        (Unavailable("away"), {40, 50}, DeadlineExceeded("gives it up is not known: away"), [60], True),
        (FailedPrecondition("gives up"), {40}, None, [60], False),
        (None, {40, 60}, None, [], False),
    ],
)
async def test_claims__whose_a_seat_is(
    answer: Exception | None, is_in: set[int], error: Exception | None, asked: list[int], stands: bool
) -> None:
    """The life that is in the ops of the job has it, without a question. A host that does not answer is not taken for
    one that gives way."""
    place = Place(answer, is_in)
    link = place._links[1]
    if error is None:
        await place._check_seat(link, host(1, 60))
    else:
        with pytest.raises(type(error)) as found:
            await place._check_seat(link, host(1, 60))
        assert str(error) in str(found.value)
    assert place.asked == asked and link.up() is stands


@pytest.mark.parametrize(
    ("answer", "lost"), [(None, False), (Unavailable("away"), False), (AlreadyExists("host 5 has it"), True)]
)
async def test_claims__who_is_not_taken_in_asks_for_its_seat(answer: Exception | None, lost: bool) -> None:
    """It asks those that it has paths to; that one does not answer says nothing."""
    place = Place(answer, set())
    if lost:
        with pytest.raises(SeatLost, match="host 5 has it") as found:
            await place.check_own_seat()
        assert found.value.seat == 0
    else:
        await place.check_own_seat()
    assert place.asked == [50], "there is no path to host 2"


async def test_a_newcomer_that_asks_for_its_seat__hears_at_once_that_it_is_in(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it from then on, and an answer may be lost on its way."""
    daemon, other = [await house.daemon() for _ in range(2)]
    await asyncio.gather(*(enter(house, each, daemon) for each in (daemon, other)))
    is_in, asked, given_up = False, asyncio.Event(), asyncio.Event()

    async def no_answer(links: Claims) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(council, "SEAT_SECONDS", 0.02)
    monkeypatch.setattr(Claims, "check_own_seat", no_answer)
    here = daemon.jobs.fellows.council
    monkeypatch.setattr(here, "_is_in", lambda job: is_in)
    seated = asyncio.create_task(here._seated(job(daemon), asyncio.get_running_loop().time() + 600))
    await asked.wait()
    is_in = True
    here._changes.notify()
    await eventually(seated.done, "it is in")
    assert given_up.is_set() and seated.exception() is None


async def test_claims__a_seat_whose_host_leaves_is_free_soon() -> None:
    """The newcomer is to call again, and not to ask for another seat: there may be none."""
    place = Place(None, {40, 50})
    link = place._links[1]
    link.leaving = True
    with pytest.raises(ResourceExhausted, match="leaves it: call again"):
        await place._check_seat(link, host(1, 60))
    assert link.up() and place.asked == [60]


def test_claims__a_newcomer_calls_whom_it_is_told_of() -> None:
    place = Place(None, set())
    told = [host(1, 51).to_proto(), host(2, 60).to_proto(), host(9, 61).to_proto(), types_pb2.Host(index=2)]
    place.meet(told)
    assert place.called == [60] and place._links[2].state is State.ABSENT, "nothing else is waited for"
    assert place._links[1].host.incarnation == 50, "there is a path to that one"
    place.meet(told)
    assert place.called == [60], "it knows"
    place._links[2].caller = cast(Any, SimpleNamespace(done=lambda: False))
    place.meet([host(2, 70).to_proto()])
    assert place.called == [60], "another one is being called"
    assert place._not_there(place._links[2], Unavailable("")) and place._links[2].host.incarnation == 70
    assert not place._not_there(place._links[2], Unavailable(""))
    place._is_in = lambda each: True
    place._links[2].caller = None
    place.meet([host(2, 80).to_proto()])
    assert place.called == [60], "who is in hears of newcomers from themselves"


def test_claims__a_newcomer_is_told_of_those_that_are_connected_or_called() -> None:
    place = Place(None, set())
    assert [each.incarnation for each in place.known(host(2, 60))] == [50]
    assert place.known(host(1, 50)) == []
    place._links[2].host = host(2, 60)
    assert [each.incarnation for each in place.known(host(1, 50))] == [], "nobody calls that one"
    place._links[2].caller = cast(Any, SimpleNamespace(done=lambda: False))
    assert [each.incarnation for each in place.known(host(1, 50))] == [60]
    place._elastic = False
    assert place.known(host(1, 50)) == []


@pytest.mark.parametrize(
    ("rival", "ready", "gives_way"), [(69, False, True), (70, False, False), (71, False, False), (69, True, False)]
)
def test_job__gives_way_to_a_smaller_life_before_it_is_connected(rival: int, ready: bool, gives_way: bool) -> None:
    links: Any = SimpleNamespace(seat_taken=False)
    membership: Any = SimpleNamespace(elastic=(1, False))
    here = Job(name="j", uid=0, incarnation=70, links=links, membership=membership, ready=ready)
    assert here.gives_way(rival) is gives_way is links.seat_taken is here.unseated


@pytest.mark.parametrize(
    ("numbers", "error"),
    [([0, 64], r"taken\[1\] = 64: allowed: 0 to 63"), ([0] * 65, "taken: 65 entries: allowed: up to 64")],
)
def test_taken__seats_that_cannot_be_are_refused(numbers: list[int], error: str) -> None:
    assert membership.seats("taken", [63, 0, 63]) == {0, 63}
    with pytest.raises(InvalidArgument, match=error):
        membership.seats("taken", numbers)
