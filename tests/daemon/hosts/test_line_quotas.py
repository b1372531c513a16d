# SPDX-License-Identifier: Apache-2.0
"""What hosts that only go out may take of those at which they attend, and how their calls are made anew.

The times are short ones: what takes half an hour in a daemon takes half a second here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, eventually
from tests.daemon.hosts.test_lines import daemons_of, links_of, watched
from tests.daemon.trust.papers import Authority
from ultima.daemon.base.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Refused,
    ResourceExhausted,
    Unavailable,
)
from ultima.daemon.base.quota import Quota
from ultima.daemon.hosts import lines as lines_module
from ultima.daemon.hosts import outgoing, pipes, watching
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.lines import Lines
from ultima.daemon.hosts.outgoing import Outgoing
from ultima.daemon.rpc import line_calls
from ultima.daemon.rpc.line_calls import LineCalls
from ultima.daemon.trust import trust
from ultima.v1 import peer_pb2, types_pb2

Attending = AsyncGenerator[peer_pb2.AttendResponse, None]


def place(number: int, node: str = "a") -> Place:
    return Place("10.0.0.1", 1000 + number, node)


async def cannot_be_dialled(_: Place) -> bool:
    return False


async def attends(lines: Lines, where: Place, stays: bool = True) -> Attending:
    """A call that has had its first answer."""
    calls = lines.attend(where, stays, cannot_be_dialled)
    assert (await anext(calls)).source == where.address
    return calls


class Pipe:
    """An end that a test reads and writes at the other side."""

    def __init__(self) -> None:
        self.come: asyncio.Queue[bytes] = asyncio.Queue()
        self.gone: list[bytes] = []

    async def read(self) -> bytes:
        return await self.come.get()

    async def write(self, data: bytes) -> None:
        self.gone.append(data)


async def test_attend__one_node_has_its_part_and_all_have_the_whole(tmp_path: Path) -> None:
    lines = Lines(tmp_path)
    lines._quota = Quota("daemons that attend here", 16)
    calls = [await attends(lines, place(number)) for number in range(2)]
    with pytest.raises(ResourceExhausted, match="daemons that attend here: a has 2 already: allowed: 2 each"):
        await attends(lines, place(2))
    calls += [await attends(lines, place(number, f"n{number // 2}")) for number in range(14)]
    with pytest.raises(ResourceExhausted, match="16 are open already: allowed: 16 in all"):
        await attends(lines, place(0, "another"))
    assert len(lines) == 16
    await calls.pop().aclose()
    assert len(lines) == 15
    await attends(lines, place(0, "another"))


async def test_attend__a_call_made_anew_needs_no_more_than_the_one_before(tmp_path: Path) -> None:
    """Else one of as many as may attend could not go on, for the former call ends when the newer one stands."""
    lines = Lines(tmp_path)
    lines._quota = Quota("daemons that attend here", 1)
    calls = await attends(lines, place(0), stays=False)
    for _ in range(3):
        newer = await attends(lines, place(0))
        with pytest.raises(StopAsyncIteration):
            await anext(calls)
        assert len(lines) == len(lines._quota) == 1
        calls = newer
    await calls.aclose()
    assert len(lines) == len(lines._quota) == 0
    await attends(lines, place(1))


async def test_attend__what_ends_while_it_is_dialled_gives_its_place_back(tmp_path: Path) -> None:
    lines = Lines(tmp_path)
    for number in range(200):
        calls = lines.attend(place(number), False, lambda _: asyncio.sleep(60, False))
        first = asyncio.ensure_future(anext(calls))
        await asyncio.sleep(0)
        assert len(lines._quota) == 1
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
    assert len(lines._quota) == len(lines) == 0


async def test_connection__to_one_that_does_not_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets whose time is over are still in its queue, which is full in the end."""
    monkeypatch.setattr(lines_module, "TICKET_SECONDS", 0.0)
    lines = Lines(tmp_path)
    calls = await attends(lines, place(0))
    why = []
    for _ in range(lines_module.CONNECTIONS_MAX + 3):
        with pytest.raises(Refused) as refused:
            await lines.pass_on(place(0), "", Pipe(), lambda: asyncio.sleep(0))
        why.append(type(refused.value))
    assert why == [Unavailable] * lines_module.CONNECTIONS_MAX + [ResourceExhausted] * 3
    assert (await anext(calls)).ticket, "and it is asked for what there is room for"
    await calls.aclose()


async def test_connection__so_many_wait_for_one_host_at_once(tmp_path: Path) -> None:
    lines = Lines(tmp_path)
    calls = await attends(lines, place(0))
    most = lines_module.CONNECTIONS_MAX
    asked: list[bytes] = []
    waits = []
    for _ in range(most):
        waits.append(asyncio.ensure_future(lines.pass_on(place(0), "10.9.9.9", Pipe(), lambda: asyncio.sleep(0))))
        answer = await anext(calls)
        assert answer.from_address == "10.9.9.9"
        asked.append(answer.ticket)
    with pytest.raises(ResourceExhausted, match=f"{most} connections wait for it: allowed: no more at once"):
        await lines.pass_on(place(0), "", Pipe(), lambda: asyncio.sleep(0))
    end, caller = Pipe(), (place(0).address, place(0).node)
    carried = asyncio.ensure_future(lines.carry(asked[0], caller, end))
    await asyncio.sleep(0.01)
    with pytest.raises(NotFound, match="ticket: nobody waits for this connection"):
        await lines.carry(asked[0], caller, Pipe())  # it is taken
    waits.append(asyncio.ensure_future(lines.pass_on(place(0), "", Pipe(), lambda: asyncio.sleep(0))))
    assert (await anext(calls)).ticket, "another one may wait now"
    end.come.put_nowait(b"")
    await asyncio.wait_for(carried, 5)
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert lines._tickets == {}
    await calls.aclose()


async def test_door__takes_so_many_connections_however_fast_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "CONNECTIONS_MAX", 3)
    lines = Lines(tmp_path)
    calls = await attends(lines, place(0))
    path = str(lines.door(place(0)))
    opened = []
    for _ in range(4):  # all of them stand before the door when it is opened first
        opened.append(socket.socket(socket.AF_UNIX))
        opened[-1].connect(path)
    asked = [(await anext(calls)).ticket for _ in range(3)]
    ends, caller = [Pipe() for _ in asked], (place(0).address, place(0).node)
    carried = [asyncio.ensure_future(lines.carry(t, caller, end)) for t, end in zip(asked, ends, strict=True)]
    streams = [await asyncio.open_unix_connection(sock=each) for each in opened]
    assert await asyncio.wait_for(streams[3][0].read(), 5) == b"", "there was no room for the last one"
    for number in range(3):
        ends[number].come.put_nowait(b"from %d" % number)
        streams[number][1].write(b"to %d" % number)
    said = {await asyncio.wait_for(reader.readexactly(6), 5) for reader, _ in streams[:3]}
    assert said == {b"from 0", b"from 1", b"from 2"}, "each is led to an end of its own"
    await eventually(lambda: all(end.gone for end in ends), "both ways")
    assert {b"".join(end.gone) for end in ends} == {b"to 0", b"to 1", b"to 2"}
    streams[0][1].close()
    await asyncio.wait(carried, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    await eventually(lambda: len(lines._doors[place(0)].tasks) == 3, "one of them is over")
    burst = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for connection in burst:
        connection.connect(path)
    more = [await asyncio.open_unix_connection(sock=each) for each in burst]
    await eventually(lambda: sum(reader.at_eof() for reader, _ in more) == 2, "there is room for one of them")
    assert (await anext(calls)).ticket
    for each in (writer for _, writer in (*more, *streams)):
        each.close()
    lines.close()
    await asyncio.gather(*carried, return_exceptions=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("port", "source", "why"),
    [
        (0, "10.0.0.1", "grpc_port = 0: allowed: 1 to 65535"),
        (65536, "10.0.0.1", "grpc_port = 65536: allowed: 1 to 65535"),
        (1, "nowhere", "source"),
    ],
)
async def test_calls__attend_names_what_is_wrong(tmp_path: Path, port: int, source: str, why: str) -> None:
    calls = LineCalls(Lines(tmp_path), cannot_be_dialled, lambda: ())
    with pytest.raises(InvalidArgument, match=why):
        await anext(calls.attend(peer_pb2.AttendRequest(grpc_port=port, stays=True), source, "a"))


async def test_calls__carry_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_calls, "REQUEST_SECONDS", 0.05)
    calls = LineCalls(Lines(tmp_path), cannot_be_dialled, lambda: ())
    to = types_pb2.PlaceOfHost(address="10.0.0.1", grpc_port=1, node="b")

    async def requests(*given: peer_pb2.CarryRequest, ends: bool = True) -> AsyncIterator[peer_pb2.CarryRequest]:
        for each in given:
            yield each
        if not ends:
            await asyncio.sleep(60)

    for came, error, why in (
        (requests(ends=False), DeadlineExceeded, r"the first message did not come within 0\.05 s"),
        (requests(), InvalidArgument, "the call ended without a message"),
        (requests(peer_pb2.CarryRequest(data=b"x")), InvalidArgument, "ticket, to: allowed: one of them"),
        (requests(peer_pb2.CarryRequest(ticket=b"x", to=to)), InvalidArgument, "ticket, to: allowed: one of them"),
        (requests(peer_pb2.CarryRequest(ticket=b"x")), NotFound, "ticket: nobody waits for this connection"),
        (requests(peer_pb2.CarryRequest(to=to)), Refused, r"is in no job here with a, which calls"),
    ):
        with pytest.raises(error, match=why):
            await calls.carry(came, None, "10.0.0.2", "a")


async def test_stream_end__a_piece_that_is_too_large_ends_the_connection() -> None:
    """What comes before it has arrived; the other end is told by the end of its own."""
    most = pipes.PIECE_BYTES
    come = [peer_pb2.CarryRequest(data=bytes(most)), peer_pb2.CarryRequest(data=bytes(most + 1))]

    async def receive() -> Any:
        return come.pop(0) if come else await asyncio.sleep(60)

    async def send(data: bytes) -> None:
        return None

    stream, other = pipes.StreamEnd(receive, send), Pipe()
    await asyncio.wait_for(pipes.join(stream, other), 5)
    assert [len(piece) for piece in other.gone] == [most]


async def test_join__reads_no_faster_than_the_other_end_takes() -> None:
    room, taken, reads = asyncio.Semaphore(0), 0, 0

    class Fast(Pipe):
        async def read(self) -> bytes:
            nonlocal reads
            reads += 1
            return b"x"

    class Slow(Pipe):
        async def write(self, data: bytes) -> None:
            nonlocal taken
            await room.acquire()
            taken += 1

    joined = asyncio.ensure_future(pipes.join(Fast(), Slow()))
    for count in (0, 5, 20):
        for _ in range(count):
            room.release()
        await asyncio.sleep(0.01)
        assert reads == taken + 1, "one piece waits"
    joined.cancel()
    assert taken == 25


def test_renewal__leaves_time_for_what_was_begun_in_the_last_moment() -> None:
    """A watch that goes by a call lives RENEW_SECONDS, whenever it began: the call ends after it, and the connection,
    which gRPC ends a tenth earlier than it says at the worst, after that."""
    watch = watching.RENEW_SECONDS + watching.LOOK_SECONDS + 60
    assert watch <= outgoing.RETIRED_SECONDS
    ends = 0.9 * trust.AGE_MS / 1000 + trust.AGE_GRACE_MS / 1000
    assert ends > outgoing.RENEW_SECONDS + outgoing.RETIRED_SECONDS


class Meeting:
    """A daemon at which an `Outgoing` attends, and the calls that it has had."""

    def __init__(self, *ends: float) -> None:
        """Calls end by themselves after so many seconds, each; later ones last."""
        self._ends = list(ends)
        self.began: list[float] = []
        self.open = 0
        self._asked: list[asyncio.Queue[Any]] = []

    @contextlib.asynccontextmanager
    async def call(self, _: Place) -> AsyncIterator[Any]:
        yield self

    def Attend(self, request: peer_pb2.AttendRequest) -> Any:
        """A newer call ends the one before, as `Lines.attend` does."""
        for former in self._asked:
            former.put_nowait(grpc.aio.EOF)
        mine: asyncio.Queue[Any] = asyncio.Queue()
        mine.put_nowait(peer_pb2.AttendResponse(source="192.0.2.1"))
        self._asked = [mine]
        loop = asyncio.get_running_loop()
        self.began.append(loop.time())
        if self._ends:
            loop.call_later(self._ends.pop(0), mine.put_nowait, grpc.aio.EOF)
        return _Stream(mine)


class _Stream:
    def __init__(self, messages: asyncio.Queue[Any]) -> None:
        self.read = messages.get

    def cancel(self) -> None:
        return None


async def test_keep__makes_its_call_anew_before_connections_end_for_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "RENEW_SECONDS", 0.2)
    for renews in (True, False):
        meeting = Meeting()
        out = Outgoing("127.0.0.1", 1, meeting.call, {}, renews)
        out.hold([place(0)])
        await eventually(lambda m=meeting: bool(m.began), "it attends")
        await asyncio.sleep(0.9)
        gaps = [later - earlier for earlier, later in zip(meeting.began, meeting.began[1:], strict=False)]
        assert len(gaps) in ((3, 4) if renews else (0,)), gaps
        assert all(0.19 <= gap < 0.35 for gap in gaps), gaps
        out.close()


async def test_keep__comes_back_soon_and_then_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "RETRY_SECONDS_MIN", 0.02)
    monkeypatch.setattr(outgoing, "RETRY_SECONDS_MAX", 0.16)
    meeting = Meeting(*[0.0] * 30)
    out = Outgoing("127.0.0.1", 1, meeting.call, {}, True)
    out.hold([place(0)])
    await asyncio.sleep(1.0)
    out.close()
    gaps = [later - earlier for earlier, later in zip(meeting.began, meeting.began[1:], strict=False)]
    assert 6 <= len(gaps) <= 16, gaps  # at most 20, 40, 80, 160, 160 ... ms, and half of that at least
    assert max(gaps[:2]) < 0.1 and min(gaps[4:]) >= 0.075, gaps


@pytest.mark.check
@pytest.mark.parametrize("with_certificates", [True, False])
async def test_renewal__breaks_no_watch(
    house: House, with_certificates: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Watches and calls to attend are made anew by times of their own, here a watch shortly before the call by which it
    goes has its place taken. A watch that breaks is the news of a death."""
    renew = 5.0
    monkeypatch.setattr(outgoing, "RENEW_SECONDS", renew)
    monkeypatch.setattr(outgoing, "RETIRED_SECONDS", renew * outgoing.RETIRED_SECONDS / trust.RENEW_SECONDS + 1.0)
    monkeypatch.setattr(outgoing, "LINGER_SECONDS", 0.5)
    monkeypatch.setattr(watching, "RENEW_SECONDS", renew)
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.05)
    caplog.set_level(logging.INFO)

    def said(start: str) -> int:
        return sum(record.getMessage().startswith(start) for record in caplog.records)

    daemons = await daemons_of(house, "oo--", Authority() if with_certificates else None)
    await house.job(daemons)
    await eventually(lambda: watched(daemons), "each watches each other one")
    caplog.clear()
    if with_certificates:
        await eventually(lambda: said("daemon attends place=") > 0, "calls are made anew")
    await asyncio.sleep(0.85 * renew)
    for daemon in daemons:
        for place in daemon._peers.watched():
            daemon._peers.watch_anew(place)
    await asyncio.sleep(3 * renew)
    assert watched(daemons) and said("peer daemon lost") == 0
    assert said("daemon attends place=") >= 10 if with_certificates else said("daemon attends place=") == 0
    generation = daemons[0].jobs.all()[0].generation
    for caller in (0, 2):  # one at which host 3 attends, and one that is passed on
        request = peer_pb2.HearRequest(job="job", generation=generation, host_index=caller)
        await daemons[caller]._peers.hear(links_of(daemons[caller])[3].host.place, request, 5.0)
