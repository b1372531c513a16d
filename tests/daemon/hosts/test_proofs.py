# SPDX-License-Identifier: Apache-2.0
"""Nobody is aimed at a third party: what a node says of its address counts only if the node is there."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, engine, eventually, wired
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import channel, refused, secure, trust_in
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.hosts import proofs, watching
from ultima.daemon.hosts.host import Place
from ultima.daemon.hosts.proofs import Proofs
from ultima.daemon.trust.answerer import Answerer
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2

THIRD = "192.0.2.7"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Looks:
    """Stands for the network: who answers where, and where it was looked."""

    def __init__(self, **answers: str) -> None:
        self.answers, self.at = {name.replace("_", "."): node for name, node in answers.items()}, list[Place]()

    def __call__(self, place: Place) -> asyncio.Future[Answerer]:
        self.at.append(place)
        node = self.answers.get(place.address, "")

        async def look() -> Answerer:
            await asyncio.sleep(0.01)
            return Answerer(node, None if node else Unavailable("no answer"))

        return asyncio.ensure_future(look())


async def test_check__only_what_does_not_call_from_there_is_looked_at() -> None:
    looks = Looks()
    checks = Proofs(looks, lambda place: place.port == 7)
    for address, source in (("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("127.0.0.1", "127.0.0.3")):
        await checks.check(Place(address, 1, "n1"), source)
    await checks.check(Place(THIRD, 7, "n1"), "10.0.0.1")  # a watch stands there
    await checks.check(Place(THIRD, 1, ""), "10.0.0.1")  # an insecure daemon
    assert looks.at == []
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.9"):
        with pytest.raises(Unavailable, match="which is not on this host"):
            await checks.check(Place(address, 1, "n1"), "10.0.0.1")
    for address in (THIRD, "192.0.2.8"):
        with pytest.raises(Unavailable, match=r"the call comes from 10\.0\.0\.1, and node 'n1' does not answer"):
            await checks.check(Place(address, 1, "n1"), "10.0.0.1")
    assert looks.at == [Place(THIRD, 1, "n1")], "after one that failed a node is looked for nowhere for a while"


async def test_check__a_node_with_two_addresses_is_believed_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(**{"10_1_0_1": "n1", "10_1_0_2": "other"})
    checks = Proofs(looks, lambda place: False)
    own, others = Place("10.1.0.1", 1, "n1"), Place("10.1.0.2", 1, "n1")
    await asyncio.gather(*(checks.check(own, "10.0.0.1") for _ in range(8)))
    assert looks.at == [own], "calls that come together wait for one look"
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"node 'other' answers at 10\.1\.0\.2:1, not node 'n1'"):
            await checks.check(others, "10.0.0.1")
    assert looks.at == [own, others]
    monkeypatch.setattr(proofs, "FAILED_SECONDS", 0.0)
    monkeypatch.setattr(proofs, "NODES_MAX", 4)
    for number in range(9):
        with pytest.raises(Unavailable):
            await checks.check(Place(THIRD, 1, f"m{number}"), "10.0.0.1")
    assert len(checks._last) == 4 and not checks._turns


async def test_job__forms_where_each_address_has_to_be_proven(
    house: House, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As among hosts that call from another of their addresses than they tell."""
    monkeypatch.setattr(proofs, "same_machine", lambda source, address: False)
    monkeypatch.setattr(proofs, "numeric", lambda address: ipaddress.ip_address("192.0.2.1"))
    daemons = [await secure(house, authority, f"n{i}") for i in range(3)]
    await house.job(daemons)
    await eventually(lambda: wired(daemons), "paths between all")


@pytest.mark.parametrize("method", ["Register", "Connect"])
async def test_call__of_a_member_that_tells_another_address_sends_nothing_there(
    house: House, authority: Authority, method: str
) -> None:
    """A host of a job offers paths to a third party: no datagram, and one TLS handshake in a while."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    await house.job(daemons)
    job, own = daemons[1].jobs.all()[0], daemons[1].jobs.all()[0].own
    assert own is not None and daemons[1]._peers is not None
    looks = Looks()
    daemons[1]._peers.proofs._look = looks
    zero = daemons[0].jobs.all()[0].own
    assert zero is not None
    caller = types_pb2.Host()
    caller.CopyFrom(zero.to_proto())
    caller.address, before = THIRD, engine(daemons[1]).path(job.number, 0)
    async with channel(daemons[1], trust_in(papers(house.folder, "n0", authority)), "n1") as opened:
        stub: Any = peer_pb2_grpc.PeerServiceStub(opened)  # type: ignore[no-untyped-call]
        for offer in range(2, 8):
            if method == "Connect":
                lives = dict(job=job.name, generation=job.generation, to_index=1, to_incarnation=own.incarnation)
                seal = types_pb2.SealOffer(suite=b"aes-128-gcm", secret=bytes([offer] * 32))
                request: Any = peer_pb2.ConnectRequest(
                    **lives, caller=caller, connection_ids=[offer], offer=offer, seal=seal
                )
            else:
                request = peer_pb2.RegisterRequest(job=f"j{offer}", world_size=1, bucket_bytes_max=1, host=caller)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await getattr(stub, method)(request, timeout=5)
            refused(error.value, grpc.StatusCode.UNAVAILABLE, f".address = {THIRD}", "does not answer")
    assert [place.address for place in looks.at] == [THIRD]
    assert engine(daemons[1]).path(job.number, 0) is before and wired(daemons)
    assert not any(place.address == THIRD for daemon in daemons for place in daemon._peers.watched())  # type: ignore[union-attr]


async def test_watch__of_a_place_that_never_answers_ends(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """And begins again once the path to it stands."""
    monkeypatch.setattr(watching, "UNPROVEN_SECONDS", 0.2)
    daemon = await house.daemon()
    place, own = Place("127.0.0.1", 9), daemon._peers
    assert own is not None
    own.watch([place])
    await eventually(lambda: own._watches[place].done(), "it is given up")
    first = own._watches[place]
    own.watch([place])
    assert own._watches[place] is first
    own.watch([place], answered=[place])
    assert own._watches[place] is not first and not own._watches[place].done()
    own.watch([])
