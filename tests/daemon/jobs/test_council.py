# SPDX-License-Identifier: Apache-2.0
"""Daemons with fake engines agree on epochs over real watch streams, and hand them to every lane of their engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.daemon.helpers import House, engine, eventually, rendezvous
from ultima.daemon.base.errors import InvalidArgument
from ultima.daemon.base.options import DEFAULTS, Options
from ultima.daemon.engine.epochs import EngineEpoch
from ultima.daemon.jobs import decree, epoch_words
from ultima.daemon.jobs.epoch import Ask, Ballot, Epoch, Fork, Member, Word
from ultima.daemon.jobs.epoch_words import to_proto
from ultima.daemon.process.server import Daemon
from ultima.v1 import peer_pb2

A, B, C = Member(0, 2**62), Member(1, 5), Member(2, 7)
EPOCH = Epoch(
    3, 2**64 - 1, 12, (B, A, C), frozenset((A, C)), (Fork(2, 1, B),), (1, 0, 0, 65535), Options(tau=5, t_b_ns=-1)
)
WORD = Word(
    9, EPOCH, 13, frozenset((A, C)), 3, False, True, (1, 2, 3, 4), Ballot(4, 1), 15,
    (Ballot(3, 0), replace(EPOCH, number=4)), Ask(Ballot(4, 1), replace(EPOCH, number=5), True),
    (("t_b_ns", 7), ("policy", 3)), frozenset((C,)),
)  # fmt: skip


def epochs(daemon: Daemon, lane: int = 0) -> list[EngineEpoch]:
    """What the core of that lane was given for its only job."""
    return engine(daemon, lane).jobs[0].epochs


def views(daemon: Daemon) -> list[str]:
    """The events that tell of an epoch."""
    return [event.text for event in daemon.jobs.recorder.events.after(0) if event.kind == "view_changed"]


@pytest.mark.parametrize(
    "word", [WORD, Word(1, None, 0, frozenset()), replace(WORD, accepted=None, ask=Ask(Ballot(9, 2)), epoch=None)]
)
def test_words__come_back_as_they_were_told(word: Word) -> None:
    told = peer_pb2.EpochWord.FromString(to_proto(word).SerializeToString())
    assert epoch_words.from_proto(told, 3, DEFAULTS, lambda options: None) == word


@pytest.mark.parametrize("place", ["epoch", "accepted", "ask"])
def test_words__with_options_that_the_job_cannot_have_are_refused(place: str) -> None:
    """A proposer, or somebody who lies, may tell anything of what others are to go by."""

    def fit(options: Options) -> None:
        if options.tau == 9:
            raise InvalidArgument("tau = 9: allowed: 1 to 8")

    told = to_proto(WORD)
    assert epoch_words.from_proto(told, 3, DEFAULTS, fit) == WORD
    getattr(told, place).settings.tau = 9
    with pytest.raises(InvalidArgument, match="tau = 9"):
        epoch_words.from_proto(told, 3, DEFAULTS, fit)
    told = to_proto(WORD)
    told.change.tau = 9
    with pytest.raises(InvalidArgument, match="tau = 9"):
        epoch_words.from_proto(told, 3, DEFAULTS, fit)
    told.change.tau = 300
    with pytest.raises(InvalidArgument, match="tau = 300: allowed: 1 to 255"):
        epoch_words.from_proto(told, 3, DEFAULTS, lambda options: None)


@pytest.mark.parametrize(
    "field, value, error",
    [
        ("epoch.owners", 1 << 5, "owners = 0x20: allowed: one or more of the members, 0x7"),
        ("epoch.members", [peer_pb2.EpochMember(slot=3)], "members.slot = 3: allowed: 0 to 2"),
        ("epoch.members", [peer_pb2.EpochMember(slot=1)] * 2, "members: allowed: each slot once"),
        ("epoch.options", [1], "options: 1 values: allowed: 4"),
        ("wishes", [0, 0, 0, 2**16], "wishes = 65536: allowed: 0 to 65535"),
        ("sees", [peer_pb2.EpochMember(slot=-1)], "sees.slot = -1: allowed: 0 to 2"),
        ("damped", [peer_pb2.EpochMember(slot=3)], "damped.slot = 3: allowed: 0 to 2"),
        ("ask_ballot.slot", 64, "slot = 64: allowed: 0 to 2"),
        ("epoch.line", [peer_pb2.EpochFork(weight=1)] * 65, "line: 65 forks: allowed: up to 64"),
    ],
)
def test_words__that_cannot_be_are_refused(field: str, value: object, error: str) -> None:
    told = to_proto(WORD)
    *path, name = field.split(".")
    at = getattr(told, path[0]) if path else told
    if isinstance(value, list):
        at.ClearField(name)
        getattr(at, name).extend(value)
    else:
        setattr(at, name, value)
    with pytest.raises(InvalidArgument, match=error.replace("(", r"\(")):
        epoch_words.from_proto(told, 3, DEFAULTS, lambda options: None)


@pytest.fixture
async def three(house: House) -> list[Daemon]:
    """Three daemons of two lanes, in one job."""
    daemons = [await house.daemon(lanes=2) for _ in range(3)]
    for rank, trainer in enumerate(await house.job(daemons)):
        assert trainer.joined is not None
        assert trainer.joined.host_index == rank
    return daemons


async def test_a_host_that_dies__leaves_the_owners_of_all_lanes_on_all_hosts(house: House, three: list[Daemon]) -> None:
    for daemon in three:
        for lane in range(2):
            engine(daemon, lane).jobs[0].next_op_seq = 10
    await house.stop(three[1])
    rest = [three[0], three[2]]
    await eventually(lambda: all(epochs(daemon, 1) for daemon in rest), "an epoch without it")
    (text,) = views(three[0])
    assert text.startswith("view 1 of job job from op ")
    assert text.endswith(": host 1 is gone; 2 of 3 hosts, 2 of them own shards")
    start = int(text.split()[7].rstrip(":"))
    assert 20 <= start <= 24, "the job is at op 20, which is number 10 of each lane"
    for lane in range(2):
        given = [epochs(daemon, lane) for daemon in rest]
        assert given == [given[0]] * 2, "one and the same on both hosts"
        (epoch,) = given[0]
        assert (epoch.number, epoch.members, epoch.owners, epoch.world) == (1, 0b101, 0b101, 3)
        assert epoch.start == -(-(start - lane) // 2), "from the lane's first op that the view has on"
    for daemon in rest:
        assert [*views(daemon)] == [text]
        hold_from, until = engine(daemon).jobs[0].holds[0]
        assert hold_from >= 10
        assert until - engine(daemon).now() < 2e9


@pytest.mark.parametrize("stays", [0, 1])
async def test_leave__waits_for_those_who_stay_to_agree_and_for_nobody_where_all_leave(
    three: list[Daemon], stays: int
) -> None:
    """Fails by its time limit if hosts that leave at once wait for each other."""
    until = asyncio.get_running_loop().time() + 600
    left = three[stays:]
    await asyncio.gather(*(each.jobs.fellows.council.leave(each.jobs.all()[0], until) for each in left))
    if stays:  # who leaves may be the first to hear that it is agreed on
        await eventually(lambda: [epoch.members for epoch in epochs(three[0])][-1:] == [0b001], "both were agreed on")


async def test_a_host_that_comes_back__is_a_member_and_an_owner_once_it_has_opened_an_op(
    house: House, three: list[Daemon]
) -> None:
    victim = three.pop()
    victim_name, port = victim.config.runtime_dir.name, victim.grpc_port
    await house.stop(victim)
    await eventually(lambda: all(epochs(daemon) for daemon in three), "an epoch without it")
    back = await house.daemon(victim_name, port=str(port), lanes=2)
    trainer = await house.trainer(back)
    joined = await trainer.join(2, 3, rendezvous=rendezvous(three[0]))
    assert engine(back).jobs[0].holds[0][0] == 0, "it opened nothing before it knew what holds"
    own = epochs(back)[-1]
    assert (own.members, own.owners) == (0b111, 0b011)
    assert joined.next_op_seq >= 2 * own.start
    for lane in range(2):
        engine(back, lane).jobs[0].next_op_seq = own.start + 5
    engine(back).op_done(0)
    everybody = [*three, back]
    await eventually(lambda: all(epochs(daemon)[-1].owners == 0b111 for daemon in everybody), "it owns a shard again")
    assert len({epochs(daemon)[-1].id for daemon in everybody}) == 1
    assert "host 2 owns a shard" in views(three[0])[-1]


async def test_a_host_that_flaps__comes_in_when_it_has_stood_for_a_while(house: House, three: list[Daemon]) -> None:
    back, number = three.pop(), 0
    name, port = back.config.runtime_dir.name, str(back.grpc_port)
    rooms = [room for daemon in three for room in daemon.jobs.fellows.council._rooms.values()]
    for _ in range(2):
        await house.stop(back)
        await eventually(lambda: all(len(room.epoch.members) == 2 for room in rooms), "a view without it")
        back = await house.daemon(name, port=port, lanes=2)
        joined = await (await house.trainer(back)).join(2, 3, rendezvous=rendezvous(three[0]))
        assert epochs(back)[-1].members == 0b111, "it is in as soon as it has joined"
        assert epochs(back)[-1].number > number and joined.next_op_seq >= 2 * epochs(back)[-1].start
        number = epochs(back)[-1].number
    account = rooms[0].seat.flaps.accounts[2]
    assert account.departures == 2 and account.must_stand > 0
    flapped = [event for event in three[0].jobs.recorder.events.after(0) if event.kind == "host_flaps"]
    assert [event.host for event in flapped] == [f"127.0.0.1:{port}"], "the second time, and not the first"
    assert "host 2 of job job flaps: it went 2 times" in flapped[0].text


async def test_a_wish__of_one_host_becomes_the_option_of_all(
    three: list[Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decree, "SETTLE_S", 0.1)
    engine(three[2], 1).jobs[0].wishes = (1, 0, 0, 0)
    engine(three[2]).op_done(0)
    await eventually(lambda: all(epochs(daemon) for daemon in three), "the codec is agreed on")
    assert {epochs(daemon)[-1].options for daemon in three} == {(1, 0, 0, 0)}
    assert "option 0 becomes 1; 3 of 3 hosts" in views(three[0])[0]


async def test_nothing_changes__nothing_is_told(three: list[Daemon]) -> None:
    rooms = [room for daemon in three for room in daemon.jobs.fellows.council._rooms.values()]
    await eventually(lambda: all(len(room.seat.words) == 3 for room in rooms), "each has heard each")
    told = [room.told for room in rooms]
    for daemon in three:
        for _ in range(20):
            engine(daemon).op_done(0)
    await eventually(lambda: all(engine(daemon).jobs[0].next_op_seq == 20 for daemon in three), "ops went on")
    assert [room.told for room in rooms] == told
    assert all(room.timer is None for room in rooms), "nor does anybody wake"
    assert not any(epochs(daemon) for daemon in three)


async def test_what_was_said_before_a_job_had_formed__is_heard_then(
    three: list[Daemon],
) -> None:
    job = next(iter(three[1].jobs.fellows.council._rooms))
    fellows = three[1].jobs.fellows
    room, links = fellows.council._rooms[job], job.links
    assert links is not None and job.own is not None
    await eventually(lambda: len(room.seat.words) == 3, "it has heard each")
    said = {index: room.seat.words[Member(index, links[index].host.incarnation)] for index in (0, 2)}
    fellows.council.end(job)
    job.ready, job.links = False, None
    for index, word in said.items():
        host = links[index].host
        told = peer_pb2.WatchResponse(job=job.name, generation=job.generation, host_index=index, word=to_proto(word))
        told.incarnation = host.incarnation
        fellows.heard(host.place, told)
        job.links = links  # the second word finds the hosts known, and the job not ready
    assert job not in fellows.council._rooms
    job.ready = True
    fellows.review(job)
    heard = fellows.council._rooms[job].seat.words
    assert {member.slot for member in heard} == {0, 1, 2}
    assert all(heard[member] == said[member.slot] for member in heard if member.slot != 1)


async def test_a_word_that_cannot_be__does_no_harm(three: list[Daemon], caplog: pytest.LogCaptureFixture) -> None:
    job = next(iter(three[1].jobs.fellows.council._rooms)).own
    watchers, theirs = three[1]._watchers, three[1].jobs.all()[0]
    assert job is not None
    theirs.word = peer_pb2.EpochWord(serial=99, wishes=[1])
    watchers.tell_word(theirs)
    await eventually(lambda: "epoch word refused job=job host=1" in caplog.text, "it is refused, and said so")
    assert not any(epochs(daemon) for daemon in three)


async def test_ops_that_open_before_the_hold_begins__are_before_the_epoch(
    house: House, three: list[Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on between two questions of its daemon: what it then tells the others must be later still."""
    job, hold = engine(three[2]).jobs[0], engine(three[2]).epoch_hold

    def opens_meanwhile(number: int, op_seq: int, until_ns: int) -> None:
        job.next_op_seq = max(job.next_op_seq, 30)
        hold(number, op_seq, until_ns)

    monkeypatch.setattr(engine(three[2]), "epoch_hold", opens_meanwhile)
    await house.stop(three[1])
    await eventually(lambda: bool(epochs(three[0])), "an epoch without it")
    assert epochs(three[0])[0].start == 30
    assert [op for op, _ in job.holds] == [0, 30]
