# SPDX-License-Identifier: Apache-2.0
"""Whom a daemon forwards packets for: two hosts that both asked and say where they are, as long as they are there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemon.helpers import eventually
from ultima.daemon.base.errors import FailedPrecondition, NotFound, PermissionDenied
from ultima.daemon.engine.forwarder import NativeRelay
from ultima.daemon.engine.relaying import hello
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs import relay_desk
from ultima.daemon.jobs.link import Link
from ultima.daemon.jobs.relay_desk import RelayDesk
from ultima.daemon.process import relay_port
from ultima.daemon.rpc.relays import members
from ultima.v1 import peer_pb2

RELAY = "127.0.0.1"
CIDS = {1: (11,), 2: (22,)}


def host(index: int) -> Host:
    return Host(index, f"127.0.0.{index + 1}", 29520, ((29521, 29522),), 70 + index, (index,), 1472)


class Links(dict[int, Link]):
    def values(self) -> list[Link]:  # type: ignore[override]
        return [*super().values()]


class Sockets:
    """What host |index| has."""

    def __init__(self, index: int) -> None:
        self.both = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for each in self.both:
            each.bind((f"127.0.0.{index + 1}", 0))
            each.setblocking(False)
        self.ports = tuple(each.getsockname()[1] for each in self.both)

    def say(self, answer: peer_pb2.RelayResponse, number: int, key: bytes = b"") -> None:
        for feedback in (False, True):
            data = hello(key or answer.key, answer.ends[0], feedback, number)
            self.both[feedback].sendto(data, (RELAY, answer.port))


@pytest.fixture
async def stage() -> AsyncIterator[SimpleNamespace]:
    links = Links({index: Link(host(index), State.UP) for index in (1, 2, 3)})
    job = SimpleNamespace(name="j", generation=9, incarnation=5, over=False, own=host(0), links=links, forwarded={})
    desk = RelayDesk(lambda: [job], lambda: NativeRelay(RELAY, 0, 10**9))  # type: ignore[list-item]
    sockets = {index: Sockets(index) for index in (1, 2)}

    def ask(here: int, there: int, cids: tuple[int, ...] | None = None) -> peer_pb2.RelayResponse:
        to = job.own if there == 0 else links[there].host
        mine = CIDS[here] if cids is None else cids
        return desk.answer(job, links[here].host, to, mine, links[here].host.address)  # type: ignore[arg-type]

    yield SimpleNamespace(job=job, desk=desk, links=links, sockets=sockets, ask=ask)
    desk.close()
    for each in sockets.values():
        for one in each.both:
            one.close()


async def ready(stage: Any) -> None:
    for here, there in ((1, 2), (2, 1)):
        stage.sockets[here].say(stage.ask(here, there), number=1)
    await eventually(lambda: stage.ask(1, 2).ready and stage.ask(2, 1).ready, "both are known")


def packet(cid: int) -> bytes:
    return bytes(4) + cid.to_bytes(4, "big") + bytes(56)


async def came(sockets: Sockets, feedback: bool = False) -> bytes:
    found: list[bytes] = []

    def look() -> bool:
        try:
            found.append(sockets.both[feedback].recv(9216))
        except BlockingIOError:
            return False
        return True

    await eventually(look, "a packet comes")
    return found[0]


async def test_desk__forwards_once_both_have_asked_and_said_hello(stage: Any) -> None:
    first = stage.ask(1, 2)
    assert not first.ready and not first.other and (first.seen[0].data_port, first.seen[0].feedback_port) == (0, 0)
    stage.sockets[1].say(first, number=1)
    await eventually(lambda: stage.ask(1, 2).seen[0].feedback_port == stage.sockets[1].ports[1], "it is seen")
    assert not stage.ask(1, 2).ready, "the other one has not asked"
    assert not stage.ask(2, 1).ready, "and has not said where it is"
    await ready(stage)
    told = stage.ask(1, 2)
    assert (told.other[0].data_port, told.other[0].feedback_port) == stage.sockets[2].ports
    assert told.other_address == "127.0.0.3" and told.key != stage.ask(2, 1).key and len(told.key) == 32
    stage.sockets[1].both[1].sendto(packet(11), (RELAY, told.port))
    assert await came(stage.sockets[2], feedback=True) == packet(11)
    stage.sockets[2].both[0].sendto(packet(22), (RELAY, told.port))
    assert await came(stage.sockets[1]) == packet(22)
    stage.desk.look()
    assert stage.job.forwarded == {(1, 2): 64, (2, 1): 64}


async def test_desk__a_hello_under_another_key_or_said_before_moves_nobody(stage: Any) -> None:
    """Somebody at the same address, behind the same NAT, cannot have a host's packets."""
    await ready(stage)
    told, other = stage.ask(1, 2), Sockets(1)
    other.say(told, number=5, key=bytes(32))
    await eventually(lambda: stage.desk.forged == 2, "both are refused")
    other.say(told, number=1)  # a copy of the host's own
    await eventually(lambda: stage.desk.forged == 4, "both are refused")
    assert (stage.ask(2, 1).other[0].data_port, stage.ask(2, 1).other[0].feedback_port) == stage.sockets[1].ports
    other.say(told, number=2)  # it is the host: its NAT has given it other ports
    await eventually(lambda: stage.ask(2, 1).other[0].feedback_port == other.ports[1], "it is followed")
    for each in other.both:
        each.close()


@pytest.mark.parametrize("how", ["gone", "another life", "silent", "over"])
async def test_desk__ends_with_what_it_was_for(stage: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await ready(stage)
    link = stage.links[1]
    if how == "gone":
        link.state = State.ABSENT
    elif how == "another life":
        link.host = replace(link.host, incarnation=99)
    elif how == "over":
        stage.job.over = True
    else:
        clock = asyncio.get_running_loop().time
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + relay_desk.LEASE_SECONDS + 1)
        stage.ask(2, 1)
    stage.desk.look()
    assert len(stage.desk) == (0 if how == "over" else 1) and stage.desk.stats()["ways"] == 0
    monkeypatch.undo()


async def test_desk__new_ids_of_a_path_take_the_place_of_the_old_ones(stage: Any) -> None:
    await ready(stage)
    assert stage.ask(1, 2, cids=(33,)).ready and stage.desk.stats()["ways"] == 2
    port = stage.ask(2, 1).port
    stage.sockets[1].both[0].sendto(packet(11), (RELAY, port))
    stage.sockets[1].both[0].sendto(packet(33), (RELAY, port))
    assert await came(stage.sockets[2]) == packet(33)
    assert stage.desk.stats()["refused"] == 1


async def test_desk__one_of_the_two_may_be_the_relay_itself(stage: Any) -> None:
    own = stage.job.own
    answer = stage.desk.answer(stage.job, own, stage.links[1].host, (44,), own.address)
    here = Sockets(0)
    here.say(answer, number=1)
    stage.sockets[1].say(stage.ask(1, 0), number=1)
    await eventually(lambda: stage.ask(1, 0).ready, "both are known")
    here.both[0].sendto(packet(44), (RELAY, answer.port))
    assert await came(stage.sockets[1]) == packet(44)
    stage.desk.look()
    assert len(stage.desk) == 2
    for each in here.both:
        each.close()


def test_desk__says_so_where_it_forwards_nothing() -> None:
    desk = RelayDesk(lambda: [], None)
    with pytest.raises(FailedPrecondition, match=r"relay\.serve = false"):
        desk.answer(None, host(1), host(2), (1,), "127.0.0.2")  # type: ignore[arg-type]


async def test_members__only_a_host_of_the_job_from_its_own_place(stage: Any) -> None:
    asked = dict(job="j", generation=9, host_index=1, to_index=2)

    def found(source: str = "127.0.0.2", node: str = "", **other: Any) -> tuple[Any, Link]:
        return members([stage.job], peer_pb2.RelayRequest(**(asked | other)), source, node)

    stage.links[1].host = replace(stage.links[1].host, address="10.0.0.1")
    assert found(source="10.0.0.1") == (stage.job, stage.links[1])
    for other in (dict(job="k"), dict(generation=8), dict(host_index=7), dict(to_index=7), dict(to_index=1)):
        with pytest.raises(NotFound, match="is not here with hosts"):
            found(source="10.0.0.1", **other)
    with pytest.raises(PermissionDenied, match=r"host_index = 1: is at 10\.0\.0\.1, the call comes from 10\.0\.0\.9"):
        found(source="10.0.0.9")
    with pytest.raises(PermissionDenied, match="host_index = 1: is the place of another node than 'n7'"):
        found(node="n7")


@pytest.mark.parametrize(("speed", "rate"), [("10000\n", 625 * 10**6), ("-1\n", 62_500_000), (None, 62_500_000)])
def test_rate__half_of_what_the_interface_carries(speed: str | None, rate: int, tmp_path: Any) -> None:
    relay = SimpleNamespace(rate_bytes_per_s=0)
    config: Any = SimpleNamespace(relay=relay, bind="127.0.0.1")
    if speed is not None:
        (tmp_path / "lo").mkdir()
        (tmp_path / "lo" / "speed").write_text(speed)
    assert relay_port.rate(config, tmp_path) == rate
    relay.rate_bytes_per_s = 1234
    assert relay_port.rate(config, tmp_path) == 1234
