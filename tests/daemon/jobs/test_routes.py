# SPDX-License-Identifier: Apache-2.0
"""Which way packets go around what lets none through: daemons and relays on loopback, with fake engines.

Engines keep the books of their packets' addresses; hellos go out for real, from sockets of these tests.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.daemon.fake_engine import FakeEngine
from tests.daemon.helpers import House, engine, eventually
from ultima.daemon.jobs import routes
from ultima.daemon.jobs.link import Route
from ultima.daemon.jobs.unheard import Unheard
from ultima.daemon.process.server import Daemon


@pytest.fixture(autouse=True)
def hellos(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines say hello from two sockets each; and what takes seconds elsewhere takes less here."""
    sockets: dict[tuple[int, bool], socket.socket] = {}

    def send(self: FakeEngine, feedback: bool, address: str, port: int, hello: bytes) -> None:
        key = id(self), feedback
        if key not in sockets:
            sockets[key] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sockets[key].bind(("127.0.0.1", 0))
        sockets[key].sendto(hello, (address, port))

    monkeypatch.setattr(FakeEngine, "send_hello", send)
    for name, seconds in (("LOOK_SECONDS", 0.02), ("KEEP_SECONDS", 0.1), ("SETTLE_SECONDS", 3.0)):
        monkeypatch.setattr(routes, name, seconds)
    yield
    for each in sockets.values():
        each.close()


def blocked(daemons: list[Daemon], *pairs: tuple[int, int]) -> None:
    """Each receiver has found, and all others were told, that nothing gets from one host to another."""
    for daemon in daemons:
        job = daemon.jobs.all()[0]
        for host in range(len(daemons)):
            found = [Unheard(a, b, 0, feedback) for a, b in pairs if b == host for feedback in (False, True)]
            job.unheard[host] = frozenset(found)
    for daemon in daemons:
        daemon.routes.look()  # at once: news that are still on their way say what was before


def route(daemon: Daemon, index: int) -> Route | None:
    links = daemon.jobs.all()[0].links
    assert links is not None
    return links[index].route


def kinds(daemon: Daemon) -> list[str]:
    return [event.kind for event in daemon.jobs.recorder.events.after(0)]


async def three(house: House) -> list[Daemon]:
    daemons = [await house.daemon(f"d{i}") for i in range(3)]
    await house.job(daemons)
    return daemons


async def test_routes__what_is_blocked_goes_by_the_host_that_both_reach(house: House) -> None:
    """Hosts 1 and 2 let nothing in; so the relay between them is host 0, and between 0 and them host 0 itself."""
    daemons = await three(house)
    blocked(daemons, (0, 1), (2, 1), (0, 2), (1, 2))
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    await eventually(lambda: all(route(daemons[a], b) == Route(0, False) for a, b in pairs), "all go by host 0")
    port = daemons[0].desk.port
    for a, b in pairs:
        assert engine(daemons[a]).path(0, b).address == ("127.0.0.1", port, port)
        assert engine(daemons[a]).jobs[0].relayed == ({0, 1, 2} - {a}, {0})
    assert daemons[0].desk.stats()["ways"] == 6 and daemons[1].desk.stats() == {}


async def test_routes__what_was_said_of_the_former_way_does_not_end_the_new_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side's word on the way before comes late: the relay that was just found stays."""
    monkeypatch.setattr(routes, "SETTLE_SECONDS", 60.0)
    daemons = await three(house)
    blocked(daemons, (0, 1))
    await eventually(lambda: route(daemons[0], 1) is not None and route(daemons[1], 0) is not None, "it goes by relay")
    blocked(daemons, (0, 1))
    asked = daemons[0].routes._numbers.__reduce__()[1][0] + 8
    await eventually(lambda: daemons[0].routes._numbers.__reduce__()[1][0] > asked, "it was asked for again since")
    assert route(daemons[0], 1) == Route(0, False) == route(daemons[1], 0)
    assert "path_relay_lost" not in kinds(daemons[0])


async def test_routes__a_relay_that_carries_nothing_or_is_gone_is_left_for_another(house: House) -> None:
    daemons = await three(house)
    blocked(daemons, (1, 0), (0, 1), (2, 1))  # host 0 and 1 let nothing of each other in; host 2 hears both
    await eventually(lambda: route(daemons[0], 1) == Route(2, False) == route(daemons[1], 0), "it goes by host 2")
    await house.stop(daemons[2])
    await eventually(lambda: route(daemons[0], 1) != Route(2, False) != route(daemons[1], 0), "it is left")
    await eventually(lambda: "path_relay_lost" in kinds(daemons[0]), "and told")


async def test_routes__none_where_the_daemon_says_never(house: House) -> None:
    daemons = await three(house)
    daemons[1].routes._use = "never"
    blocked(daemons, (0, 1))
    key = daemons[0].jobs.all()[0].incarnation, 1
    await eventually(lambda: daemons[0].routes._ways[key].rest_until > 0, "it was tried, and refused")
    assert route(daemons[0], 1) is None and route(daemons[1], 0) is None
