# SPDX-License-Identifier: Apache-2.0
"""Who is gone, and who only cannot be asked: on sockets of this machine, with fake engines and real watch streams."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from tests.daemon.helpers import House, engine, eventually
from ultima.daemon.base.errors import DeadlineExceeded, FailedPrecondition, NotFound, Refused, Unavailable
from ultima.daemon.engine.engine import PeerStats, Status
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs import vanishing
from ultima.daemon.jobs.vanishing import alive
from ultima.daemon.process.server import Daemon
from ultima.v1 import peer_pb2


@pytest.mark.parametrize(
    "error, lives",
    [
        (None, True),
        (FailedPrecondition("another life"), False),
        (DeadlineExceeded("it does not know the job, or is very busy"), None),
        (Unavailable("it hangs up"), None),
    ],
)
async def test_alive__is_what_the_daemon_says(error: Refused | None, lives: bool | None) -> None:
    async def answer() -> None:
        if error is not None:
            raise error

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert await alive(Place("127.0.0.1", listener.getsockname()[1]), answer, 1.0) is lives


async def test_alive__a_port_where_nobody_listens_is_a_process_that_is_gone() -> None:
    async def answer() -> None:
        raise AssertionError("nobody is asked")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = Place("127.0.0.1", listener.getsockname()[1])
    assert await alive(place, answer, 1.0) is False


@pytest.mark.parametrize("refused", [True, False])
async def test_alive__a_first_packet_that_is_lost_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """TCP would send it again after a second, which is more than all that is allowed here."""
    monkeypatch.setattr(vanishing, "ANSWER_SECONDS", 0.9)
    plain, tried = asyncio.open_connection, list[float]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = Place("127.0.0.1", listener.getsockname()[1])
        if refused:
            listener.close()

        async def connect(*where: object) -> object:
            tried.append(asyncio.get_running_loop().time())
            if len(tried) < 3:
                await asyncio.Event().wait()
            return await plain(*where)  # type: ignore[arg-type]

        async def answer() -> None:
            return

        monkeypatch.setattr(asyncio, "open_connection", connect)
        assert await alive(place, answer, 0.02) == (not refused)
    assert len(tried) == 3 and tried[2] - tried[1] > 1.5 * 0.02, "ever longer"


async def test_alive__nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of connections that is full: as where packets are dropped on the way."""
    monkeypatch.setattr(vanishing, "ANSWER_SECONDS", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        held = []
        for _ in range(4):
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex(listener.getsockname())
        try:
            assert await alive(Place("127.0.0.1", listener.getsockname()[1]), asyncio.Event().wait, 0.05) is None  # type: ignore[arg-type]
        finally:
            for each in held:
                each.close()


async def test_a_daemon_that_dies_slowly__is_asked_again_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watch is the first of its connections that the kernel closes, and the next one is still taken. That nothing
    comes any more would be seen much later here."""
    monkeypatch.setattr(vanishing, "HEARD_SECONDS", 600.0)
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    lives: list[bool | None] = [None, None, False]

    async def asked(*_: object) -> bool | None:
        return lives.pop(0)

    monkeypatch.setattr(vanishing, "alive", asked)
    job = daemons[0].jobs.all()[0]
    assert job.links is not None
    link = job.links[1]
    daemons[0].jobs.fellows.silence.lost(job, link)
    await eventually(lambda: not link.up(), "it is gone")
    assert link.why == "its daemon is gone" and not lives


async def test_a_host_whose_watch_ended__is_gone_once_nothing_comes_though_its_daemon_is_yet_to_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first packet of a question to it may be lost, which TCP sends again after a second."""
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    asked = asyncio.Event()

    async def never(*_: object) -> bool | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(vanishing, "alive", never)
    job = daemons[0].jobs.all()[0]
    assert job.links is not None
    link = job.links[1]
    daemons[0].jobs.fellows.silence.lost(job, link)
    await eventually(lambda: not link.up(), "it is gone")
    assert asked.is_set() and link.why == "its daemon does not answer, and nothing comes from it"


async def test_a_daemon_that_was_started_anew__says_at_once_that_it_does_not_live_a_life(house: House) -> None:
    """It knows no such life, and never will: nothing is to be waited for."""
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    caller = daemons[0].jobs.all()[0].own
    assert caller is not None
    request = peer_pb2.ConnectRequest(job="job", generation=5, to_index=1, to_incarnation=77, doubt=True)
    never = asyncio.get_running_loop().time() + 600
    with pytest.raises(NotFound, match="to_incarnation = 77: no job here has it"):
        await daemons[1].jobs.fellows.connect(request, caller, never)


class Heard:
    """What an engine's snapshot says of peers: bytes that grow as long as a test wants, or with each question."""

    def __init__(self, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes, self.grows, self.answers = 0, True, False
        before, ask = daemon.engine.snapshot, daemon.engine.peer_ask

        def peer_ask(job: int, host: int) -> None:
            ask(job, host)
            self.bytes += 80 * self.answers

        def snapshot() -> object:
            now = before()
            self.bytes += 1000 * self.grows
            monkeypatch.setattr(now, "peer_stats", lambda job, host: replace(PeerStats(), received_bytes=self.bytes))
            return now

        monkeypatch.setattr(daemon.engine, "snapshot", snapshot)
        monkeypatch.setattr(daemon.engine, "peer_ask", peer_ask)


async def nobody(*_: object) -> None:
    """The network of the daemons is down."""


async def test_control_network_down__a_host_whose_datagrams_come_stays(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = [await house.daemon() for _ in range(3)]
    await house.job(daemons)
    monkeypatch.setattr(vanishing, "alive", nobody)
    heard, job, path = Heard(daemons[0], monkeypatch), engine(daemons[0]).jobs[0], engine(daemons[0]).path(0, 1)
    fellows = daemons[0].jobs.fellows
    monkeypatch.setattr(fellows.silence, "_stands", lambda place: False)
    place = daemons[0].jobs.all()[0].links[1].host.place  # type: ignore[index]
    fellows.lost(place, True)
    await asyncio.sleep(3 * vanishing.HEARD_SECONDS)
    assert path.up
    assert not job.epochs
    assert path.asked == 0, "who speaks anyway is not asked"
    heard.grows, heard.answers = False, True
    await asyncio.sleep(3 * vanishing.HEARD_SECONDS)
    assert path.up and path.asked, "no op is open in which it would say something: it answers"
    heard.answers = False
    await eventually(lambda: not path.up, "it does not")


async def test_a_busy_daemon__whose_engine_answers_stays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    monkeypatch.setattr(vanishing, "SUSPECT_SECONDS", 0.05)
    monkeypatch.setattr(vanishing, "alive", nobody)
    heard, path = Heard(daemons[0], monkeypatch), engine(daemons[0]).path(0, 1)
    heard.grows, heard.answers = False, True

    def asked_twice() -> bool:
        engine(daemons[0]).op_done(0, Status.PARTIAL)
        return path.asked >= 2

    await eventually(asked_twice, "it says nothing in ops")
    assert path.up


async def test_a_host_that_vanished__is_found_by_one_op_in_each_of_two_jobs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next op may be long in coming, and is not waited for; nor does one job's look stand for another's."""
    monkeypatch.setattr(vanishing, "SUSPECT_SECONDS", 0.05)
    daemons = [await house.daemon() for _ in range(2)]
    for job in ("one", "other"):
        await house.job(daemons, job)
    heard, paths = Heard(daemons[0], monkeypatch), [engine(daemons[0]).path(job, 1) for job in (0, 1)]
    heard.grows = False
    monkeypatch.setattr(vanishing, "alive", nobody)
    for job in (0, 1):
        engine(daemons[0]).op_done(job, Status.PARTIAL)
    await eventually(lambda: not any(path.up for path in paths), "both are gone")


async def test_a_path_that_the_engine_took_down__keeps_no_event_from_its_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are handled in one go: what one of them raised would lose those behind it."""
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)

    def refuse(job: int, host: int) -> None:
        raise FailedPrecondition("peer_ask: the path is down")

    monkeypatch.setattr(daemons[0].engine, "peer_ask", refuse)
    job = daemons[0].jobs.all()[0]
    daemons[0].jobs.fellows.silence.not_complete(job)
    assert job in daemons[0].jobs.fellows.silence._looks


async def test_a_host_that_vanished_before_its_watch_stood_again__is_asked_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a network is cut twice within seconds: no watch ends, as none stands."""
    monkeypatch.setattr(vanishing, "SUSPECT_SECONDS", 0.05)
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    heard, path = Heard(daemons[0], monkeypatch), engine(daemons[0]).path(0, 1)
    heard.grows = False
    monkeypatch.setattr(vanishing, "alive", nobody)
    monkeypatch.setattr(daemons[0].jobs.fellows.silence, "_stands", lambda place: False)

    def gone() -> bool:
        engine(daemons[0]).op_done(0, Status.PARTIAL)
        return not path.up

    await eventually(gone, "nothing comes from it")


async def test_a_host_that_vanished__is_asked_when_ops_lack_its_data(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watch stands until a keepalive fails, which takes 15 s."""
    monkeypatch.setattr(vanishing, "SUSPECT_SECONDS", 0.05)
    daemons = [await house.daemon() for _ in range(3)]
    await house.job(daemons)
    heard, path = Heard(daemons[0], monkeypatch), engine(daemons[0]).path(0, 1)
    heard.grows = False

    async def does_one(place: Place, _: object, patience: float) -> bool | None:
        return True if place.port == daemons[2].grpc_port else None

    monkeypatch.setattr(vanishing, "alive", does_one)

    def gone() -> bool:
        engine(daemons[0]).op_done(0, Status.PARTIAL)
        return not path.up

    await eventually(gone, "it does not answer")
    assert engine(daemons[0]).path(0, 2).up, "the other one does"
    await eventually(lambda: path.up, "its watch is made anew, and it is found alive")
