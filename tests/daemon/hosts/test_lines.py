# SPDX-License-Identifier: Apache-2.0
"""Jobs with hosts that only go out. Each daemon of such a host listens at an address of loopback of its own, and its
calls come from 127.0.0.1, where nobody listens on its port: so no connection to it comes about."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, engine, eventually, wired
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import channel, refused, secure, trust_in
from ultima.daemon.hosts import lines as lines_module
from ultima.daemon.hosts import outgoing
from ultima.daemon.hosts.host import Place, State
from ultima.daemon.process.server import Daemon
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for to no purpose takes less here."""
    monkeypatch.setattr(outgoing, "LINGER_SECONDS", 0.5)
    monkeypatch.setattr(lines_module, "TICKET_SECONDS", 2.0)


async def daemons_of(house: House, outward: str, authority: Authority | None) -> list[Daemon]:
    """One for each letter: "o" can be dialled, "-" only goes out."""
    found = []
    for index, kind in enumerate(outward):
        bind = "127.0.0.1" if kind == "o" else f"127.0.0.{index + 2}"
        if authority is None:
            found.append(await house.daemon(f"n{index}", bind=bind))
        else:
            found.append(await secure(house, authority, f"n{index}", bind=bind))
    return found


def links_of(daemon: Daemon) -> Any:
    links = daemon.jobs.all()[0].links
    assert links is not None
    return links


def watched(daemons: list[Daemon]) -> bool:
    """Whether each daemon's watch of each other one stands."""
    return all(
        daemon._peers.stands(link.host.place) for daemon in daemons for link in links_of(daemon).values() if link.up()
    )


@pytest.mark.parametrize("with_certificates", [True, False])
async def test_lines__a_job_of_hosts_that_only_go_out_forms_and_lives(house: House, with_certificates: bool) -> None:
    """Two of them, so that calls between them are passed on; a rank that dies is heard of by all."""
    daemons = await daemons_of(house, "oo--", Authority() if with_certificates else None)
    trainers = await house.job(daemons)
    assert wired(daemons)
    for daemon in daemons:
        flags = [host.outward for host, _ in daemon.jobs.all()[0].hosts()]
        assert flags == [False, False, True, True]
    await eventually(lambda: watched(daemons), "each watches each other one")
    await eventually(lambda: [len(d.lines) for d in daemons] == [2, 2, 0, 0], "both attend at all that can be dialled")
    trainers[3].hang_up()
    for daemon in daemons[:3]:
        await eventually(lambda d=daemon: links_of(d)[3].state is State.ABSENT, "its host is gone, for all others")
    assert wired(daemons[:3])
    for trainer in trainers[:3]:
        await trainer.leave()
    await eventually(lambda: not any(len(d.lines) for d in daemons), "nobody attends without a job")
    await eventually(lambda: not list(daemons[0].config.runtime_dir.glob("line*")), "and all doors are shut")


async def test_lines__of_those_that_pass_bytes_on_one_may_die(house: House) -> None:
    """Hosts that only go out go on: what one daemon passed on goes by another one."""
    daemons = await daemons_of(house, "oo--", Authority())
    await house.job(daemons)
    await eventually(lambda: watched(daemons), "each watches each other one")
    await house.stop(daemons[0])
    left = daemons[1:]
    for daemon in left:
        await eventually(lambda d=daemon: links_of(d)[0].state is State.ABSENT, "host 0 is gone")
    await eventually(lambda: watched(left), "the others watch one another", 20.0)
    place = links_of(left[1])[3].host.place
    request = peer_pb2.HearRequest(job="job", generation=left[1].jobs.all()[0].generation, host_index=2)
    assert len((await left[1]._peers.hear(place, request, 5.0)).lanes) == 1


async def test_lines__one_that_can_be_dialled_attends_nowhere(house: House) -> None:
    daemons = await daemons_of(house, "oo", Authority())
    await house.job(daemons)
    assert [len(daemon.lines) for daemon in daemons] == [0, 0]
    assert not any(host.outward or host.natted for host, _ in daemons[0].jobs.all()[0].hosts())


async def test_lines__one_that_says_where_it_is_found_attends_nowhere(house: House) -> None:
    """Its calls come from 127.0.0.1, where it does not listen, as those of a daemon behind a relay do."""
    own = "127.0.0.3"
    daemons = [await house.daemon("n0", bind="127.0.0.1"), await house.daemon("n1", bind=own, advertise=own)]
    await house.job(daemons)
    assert [host.outward for host, _ in daemons[0].jobs.all()[0].hosts()] == [False, False]
    assert len(daemons[0].lines) == 0


async def test_lines__calls_come_from_where_they_were_made(house: House) -> None:
    """A call by a line is one of the daemon that made it, not of this host: rights by address depend on it."""
    daemons = await daemons_of(house, "o--", None)
    await house.job(daemons)
    seen: list[str] = []
    before = daemons[2].gate._arrived

    def arrived(context: Any) -> Any:
        found = before(context)
        seen.append(found.peer())
        return found

    daemons[2].gate._arrived = arrived  # type: ignore[method-assign]
    generation = daemons[0].jobs.all()[0].generation
    for caller in (0, 1):
        request = peer_pb2.HearRequest(job="job", generation=generation, host_index=caller)
        await daemons[caller]._peers.hear(links_of(daemons[caller])[2].host.place, request, 5.0)
    assert seen == ["ipv4:127.0.0.1:0"] * 2, "the address of the calls, not that of the daemon's own end (127.0.0.4)"
    assert engine(daemons[2]).jobs


async def test_lines__another_node_gets_no_bytes_and_passes_none(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who attends is the node of its certificate. A ticket is of use to nobody else, and a host is called by line only
    for members of a job with it."""
    authority = Authority()
    daemons = await daemons_of(house, "o--", authority)
    await house.job(daemons)
    await eventually(lambda: watched(daemons), "each watches each other one")
    victim: Place = links_of(daemons[0])[2].host.place
    evil = trust_in(papers(house.folder, "evil", authority))
    async with channel(daemons[0], evil, "n0") as open_channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(open_channel)
        # In the place of another node's host: it is another place, and nothing is led there.
        attends = stub.Attend(peer_pb2.AttendRequest(grpc_port=victim.port, stays=True))
        assert (await attends.read()).source == "127.0.0.1"
        request = peer_pb2.HearRequest(job="job", generation=daemons[0].jobs.all()[0].generation, host_index=0)
        await daemons[0]._peers.hear(victim, request, 5.0)
        # A ticket of another one, and one that nobody has given.
        attendee = lines_module._Attendee()
        monkeypatch.setitem(daemons[0].lines._attending, victim, attendee)
        connection = daemons[0].lines._connection(victim, attendee)
        waits = asyncio.ensure_future(connection.__aenter__())
        await asyncio.sleep(0)
        asked = attendee.asked.get_nowait()
        assert asked is not None
        to = types_pb2.PlaceOfHost(address=victim.address, grpc_port=victim.port, node=victim.node)
        for first, code in (
            (peer_pb2.CarryRequest(ticket=asked.ticket), grpc.StatusCode.NOT_FOUND),
            (peer_pb2.CarryRequest(ticket=bytes(16)), grpc.StatusCode.NOT_FOUND),
            (peer_pb2.CarryRequest(to=to), grpc.StatusCode.PERMISSION_DENIED),
            (peer_pb2.CarryRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            call = stub.Carry(iter([first]), timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call.read()
            refused(error.value, code)
        with pytest.raises(Exception, match="opens no connection"):
            await waits
        attends.cancel()
