# SPDX-License-Identifier: Apache-2.0
"""The attacks over the network against daemons with certificates (A3, A5, A9, A10, A11), by three sorts of attackers.

A *stranger* has no certificate that anybody here believes. A *wrong node* has one of the cluster and is in no job. One
of a *wrong job* is in another job with the very daemon that it attacks. None of them may change a path, an option, a
membership or a record, and none may make a daemon call anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.fake_engine import FakePath
from tests.daemon.helpers import House, engine, peer, rendezvous, wired
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import SECRET, channel, secure, trust_in
from tests.hostile.peer import host, restore
from tests.hostile.test_strangers import third_party
from tests.hostile.test_takeover import in_the_name_of
from ultima.daemon.base.ranges import WINDOW
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.links import Links
from ultima.daemon.process.server import Daemon
from ultima.daemon.rpc.peer_service import PeerService
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2

pytestmark = pytest.mark.check

CODE = grpc.StatusCode
ATTACKERS = ("stranger", "foreign", "plain", "wrong node", "wrong job")
TOLD_OFF = {CODE.PERMISSION_DENIED, CODE.FAILED_PRECONDITION, CODE.INVALID_ARGUMENT, CODE.NOT_FOUND}


@asynccontextmanager
async def stub_of(attacker: str, daemon: Daemon, authority: Authority, house: House) -> AsyncIterator[Any]:
    """PeerService of the daemon on node n0, as that attacker reaches it."""
    if attacker == "plain":
        async with peer(daemon) as stub:
            yield stub
        return
    if attacker in ("stranger", "foreign"):
        certificate, key = Authority().issue("n1") if attacker == "foreign" else (None, None)
        credentials = grpc.ssl_channel_credentials(authority.pem, key, certificate)
        options = (("grpc.ssl_target_name_override", "n0.lab.ultima"),)
        async with grpc.aio.secure_channel(rendezvous(daemon), credentials, options=options) as opened:
            yield peer_pb2_grpc.PeerServiceStub(opened)
        return
    node = "n2" if attacker == "wrong job" else "evil"
    async with channel(daemon, trust_in(papers(house.folder, node, authority)), "n0") as opened:
        yield peer_pb2_grpc.PeerServiceStub(opened)


def attacks(daemons: list[Daemon], job: Job, port: int) -> Iterator[tuple[str, Any]]:
    """What test_takeover.py, test_strangers.py and test_membership.py send, aimed at the job and at a third party."""
    whom = daemons[0], daemons[1]
    for offer in (0, 2, 1000, WINDOW + 1, 2**62, -1):
        for ids, doubt in (([0x5EED], False), ([], False), ([], True)):
            yield "Connect", in_the_name_of(whom[1], whom[0], offer=offer, connection_ids=ids, doubt=doubt)
    yield "Connect", in_the_name_of(whom[1], whom[0], incarnation=77, connection_ids=[])
    seal = types_pb2.SealOffer(suite=b"aes-128-gcm", secret=bytes(32))
    path = engine(daemons[0]).path(job.number, 1)
    for ids in ([path.tx_cid], [path.rx_cid], [0x5EED]):
        yield "Connect", in_the_name_of(whom[1], whom[0], connection_ids=ids, seal=seal)
        yield "Connect", in_the_name_of(whom[1], whom[0], connection_ids=ids, seal=seal, renew=True)
    yield "Activate", peer_pb2.ActivateRequest(job=job.name, generation=job.generation, op_seq=1)
    yield "Probe", peer_pb2.ProbeRequest(job=job.name, generation=job.generation, op_seq=1)
    yield "Hear", peer_pb2.HearRequest(job=job.name, generation=job.generation, host_index=1)
    others = [host([r], r, port, address=f"127.0.0.{r}") for r in range(1, 64)]
    yield "Restore", restore("scan", daemons[0].grpc_port, others)
    yield "Restore", restore(job.name, daemons[0].grpc_port, [host([1], 1, port)])
    for ranks in ([0], [1]):
        values = dict(job=job.name, world_size=2, bucket_bytes_max=65536, uid=job.uid)
        yield "Register", peer_pb2.RegisterRequest(host=host(ranks, 0, port), **values)


def with_and_without_a_name(requests: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Each as it is, in the name of the true host's node, and without a node, which stands for the caller's own."""
    for method, request in requests:
        yield method, request
        for field in ("caller", "host"):
            if field in request.DESCRIPTOR.fields_by_name:
                copy = type(request)()
                copy.CopyFrom(request)
                getattr(copy, field).node = ""
                yield method, copy


def state_of(daemons: list[Daemon], jobs: list[Job]) -> list[object]:
    """All that an attack might have changed."""
    ret: list[object] = []
    for daemon in daemons:
        fake = engine(daemon)
        for number, known in sorted(fake.jobs.items()):
            ret.append((number, known.next_op_seq, list(known.tuned), list(known.activated)))
            paths: list[tuple[int, FakePath]] = sorted(known.paths.items())
            ret += [(h, p.rx_cid, p.tx_cid, p.rx_seal, p.tx_seal, p.connects, len(p.renewals)) for h, p in paths]
        ret += [
            sorted(daemon._peers.watched()),
            sorted(daemon._coordinator._records),
            len(daemon._coordinator._forming),
        ]
    return [*ret, *((job.in_force, job.membership, job.hosts()) for job in jobs)]


async def what_went_through(house: House, attacker: str, secret: bytes) -> list[Any]:
    """The calls that were not refused as they should be, and what they changed."""
    authority = Authority()
    daemons = [await secure(house, authority, f"n{i}") for i in range(3)]
    await house.job(daemons[:2], secret=secret, options=types_pb2.JobOptions(policy="POLICY_SOLO", tau=3))
    await house.job([daemons[0], daemons[2]], "other")  # n2 is in this one with n0
    jobs = [job for daemon in daemons for job in daemon.jobs.all()]
    victim = next(job for job in daemons[0].jobs.all() if job.name == "job")
    before = state_of(daemons, jobs)
    ret: list[Any] = []
    allowed = TOLD_OFF if attacker.startswith("wrong") else {CODE.UNAVAILABLE}
    async with third_party() as (port, came), stub_of(attacker, daemons[0], authority, house) as stub:
        for method, request in with_and_without_a_name(attacks(daemons, victim, port)):
            try:
                await getattr(stub, method)(request, timeout=5)
                ret.append((method, request))
            except grpc.aio.AioRpcError as error:
                if error.code() not in allowed:
                    ret.append((method, request, error))
        await asyncio.sleep(0.2)
        ret += ["a third party was called"] * came[0]
    if state_of(daemons, jobs) != before or not wired(daemons[:2]):
        ret.append("something has changed")
    return ret


@pytest.mark.parametrize("secret", [b"", SECRET])
@pytest.mark.parametrize("attacker", ATTACKERS)
async def test_secure__no_attack_of_the_others_changes_anything(house: House, attacker: str, secret: bytes) -> None:
    assert await what_went_through(house, attacker, secret) == []


@pytest.mark.parametrize("bug", ["nobody asks whose the place is", "nobody asks who is in the job"])
async def test_secure__a_missing_check_would_be_noticed(
    house: House, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """Planted bugs: with either check taken out, the same attacks get through."""
    if "place" in bug:
        monkeypatch.setattr(Links, "check_node", lambda self, caller: None)
    else:
        monkeypatch.setattr(PeerService, "_check_member", lambda self, name, context: None)
    through = await what_went_through(house, "wrong node", b"")
    sign = "something has changed" if "place" in bug else "Probe"
    assert sign in [each if isinstance(each, str) else each[0] for each in through]
