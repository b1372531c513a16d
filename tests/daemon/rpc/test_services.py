# SPDX-License-Identifier: Apache-2.0
"""The gRPC faces: health, reflection, and what strangers may say to PeerService."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.daemon.helpers import House, engine, eventually, local_channel, peer, rendezvous
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.engine.engine import NEVER
from ultima.daemon.jobs.watchers import BEHIND_MAX
from ultima.v1 import peer_pb2, types_pb2
from ultima.v1.limits import WIRE_VERSION

CODE = grpc.StatusCode
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    return int(answer.status)


async def test_health__on_both_faces(house: House) -> None:
    daemon = await house.daemon()
    async with local_channel(daemon.config.socket) as local, grpc.aio.insecure_channel(rendezvous(daemon)) as remote:
        for service in ("", "ultima.v1.TrainerService", "ultima.v1.PeerService", "ultima.v1.AdminService"):
            assert await health(local, service) == SERVING
            assert await health(remote, service) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(local, "ultima.v1.Nothing")
        assert caught.value.code() is CODE.NOT_FOUND


async def test_health__means_progress(house: House) -> None:
    daemon = await house.daemon()
    fake = engine(daemon)
    async with local_channel(daemon.config.socket) as channel:

        async def turns(to: int) -> None:
            async with asyncio.timeout(10):
                while await health(channel) != to:
                    await asyncio.sleep(0.05)

        fake.open_since, fake.open_deadline = fake.now(), fake.now() - 5 * 10**9
        await turns(NOT_SERVING)
        assert await health(channel, "ultima.v1.PeerService") == NOT_SERVING
        fake.open_since = fake.open_deadline = NEVER
        await turns(SERVING)


async def test_health__not_serving_while_draining(house: House) -> None:
    daemon = await house.daemon()
    fake = engine(daemon)
    fake.open_since, fake.open_deadline = fake.now(), fake.now() + 10**12
    trainer = await house.trainer(daemon)
    draining = asyncio.ensure_future(daemon.drain())
    await asyncio.sleep(0.1)
    async with local_channel(daemon.config.socket) as channel:
        assert await health(channel) == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await trainer.join()
    assert caught.value.code() is CODE.UNAVAILABLE and "going down" in (caught.value.details() or "")
    with pytest.raises(ConnectionRefusedError):
        await house.trainer(daemon)
    assert not draining.done()
    fake.open_since = fake.now()  # a newer op: those of the beginning have ended
    await asyncio.wait_for(draining, 10)


async def test_reflection__lists_the_services(house: House) -> None:
    daemon = await house.daemon()
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        async for answer in call:
            names = {service.name for service in answer.list_services_response.service}
            break
    assert {"ultima.v1.TrainerService", "ultima.v1.AdminService", "grpc.health.v1.Health"} <= names


async def test_faces__trainers_and_operators_have_no_way_in_over_tcp(house: House) -> None:
    daemon = await house.daemon()
    async with grpc.aio.insecure_channel(rendezvous(daemon)) as channel:
        for method in ("/ultima.v1.TrainerService/JoinJob", "/ultima.v1.AdminService/GetStatus"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(method)(b"", timeout=10)
            assert caught.value.code() is CODE.UNIMPLEMENTED


def host(**fields: Any) -> types_pb2.Host:
    values = {
        "address": "127.0.0.1",
        "grpc_port": 1,
        "lanes": [types_pb2.Lane(data_port=2, feedback_port=3)],
        "incarnation": 4,
        "ranks": [0],
        "packet_bytes": 1472,
        "wire_version": WIRE_VERSION,
    }
    return types_pb2.Host(**(values | fields))


def registering(**fields: Any) -> peer_pb2.RegisterRequest:
    return peer_pb2.RegisterRequest(**({"job": "j", "world_size": 1, "host": host(), "bucket_bytes_max": 1} | fields))


BAD_HOSTS = [
    (host(grpc_port=0), "grpc_port = 0"),
    (host(lanes=[]), "lanes: 0 entries: allowed: 1 to 4"),
    (host(lanes=5 * [types_pb2.Lane(data_port=2, feedback_port=3)]), "lanes: 5 entries"),
    (host(lanes=[types_pb2.Lane(data_port=70000, feedback_port=3)]), "lanes[0].data_port = 70000"),
    (host(lanes=[types_pb2.Lane(data_port=2, feedback_port=-1)]), "lanes[0].feedback_port = -1"),
    (host(incarnation=0), "incarnation = 0"),
    (host(ranks=[]), "ranks: 0 entries"),
    (host(ranks=[1, 1]), "ranks = [1, 1]"),
    (host(ranks=[-1]), "ranks[0] = -1"),
    (host(packet_bytes=10), "packet_bytes = 10"),
    (host(address="a\nb"), "address = 'a\\nb'"),
]


@pytest.mark.parametrize(("bad", "names"), BAD_HOSTS, ids=range(len(BAD_HOSTS)))
async def test_peer__impossible_hosts_are_refused(house: House, bad: types_pb2.Host, names: str) -> None:
    daemon = await house.daemon()
    async with peer(daemon) as stub:
        calls = [
            stub.Register(peer_pb2.RegisterRequest(job="j", world_size=1, host=bad, bucket_bytes_max=1), timeout=5),
            stub.Connect(peer_pb2.ConnectRequest(job="j", caller=bad), timeout=5),
            stub.Restore(peer_pb2.RestoreRequest(job="j", world_size=1, generation=1, hosts=[bad]), timeout=5),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is CODE.INVALID_ARGUMENT and names in (caught.value.details() or "")


async def test_peer__a_daemon_of_another_version_is_refused_by_name(house: House) -> None:
    """Whatever it says of a host, before anything is built on it; a daemon of version 1 says no version."""
    daemon = await house.daemon()
    async with peer(daemon) as stub:
        for version, said in ((0, 1), (1, 1), (WIRE_VERSION + 1, WIRE_VERSION + 1)):
            other = host(index=3, wire_version=version)
            calls = [
                stub.Register(registering(host=other), timeout=5),
                stub.Connect(peer_pb2.ConnectRequest(job="j", caller=other), timeout=5),
                stub.Restore(peer_pb2.RestoreRequest(job="j", world_size=1, generation=1, hosts=[other]), timeout=5),
            ]
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is CODE.FAILED_PRECONDITION
                words = f"host 3 (127.0.0.1:1) speaks wire version {said}, this daemon {WIRE_VERSION}"
                assert caught.value.details() == words
        await stub.Register(registering(), timeout=5)


async def test_peer__impossible_requests_are_refused(house: House) -> None:
    daemon = await house.daemon()
    rows = [
        ("Register", registering(job=""), "job = ''"),
        ("Register", registering(world_size=2, host=host(ranks=[0, 1])), "the one rank"),
        ("Register", registering(world_size=0), "world_size = 0"),
        ("Register", registering(world_size=2, least=1, host=host(ranks=[1])), "host.ranks = [1]: allowed: 0, 1, ..."),
        ("Register", registering(world_size=3, least=1, host=host(ranks=[0, 1])), "a multiple of local_world_size = 2"),
        ("Register", registering(world_size=2, least=2, host=host(ranks=[0, 1])), "least = 2: allowed: 1 to 1"),
        (
            "Restore",
            peer_pb2.RestoreRequest(
                job="j",
                world_size=4,
                generation=1,
                least=1,
                hosts=[host(ranks=[0, 2]), host(index=1, grpc_port=2, ranks=[1, 3])],
            ),
            "hosts[0].ranks = [0, 2]: allowed: [0, 1], the ranks of this seat",
        ),
        ("Register", registering(host=host(ranks=[1])), "rank = 1"),
        ("Register", registering(bucket_bytes_max=0), "bucket_bytes_max = 0"),
        ("Register", registering(bucket_bytes_max=2**32), "bucket_bytes_max = 4294967296"),
        ("Restore", peer_pb2.RestoreRequest(job="j", world_size=1, generation=0, hosts=[host()]), "generation = 0"),
        ("Restore", peer_pb2.RestoreRequest(job="j", world_size=1, generation=1, hosts=[host()], lanes=2), "lanes = 2"),
        (
            "Restore",
            peer_pb2.RestoreRequest(job="j", world_size=2, generation=1, hosts=[host()]),
            "each of the 2 ranks once",
        ),
        (
            "Restore",
            peer_pb2.RestoreRequest(job="j", world_size=1, generation=1, hosts=[host(index=1)]),
            "in order of their index",
        ),
    ]
    async with peer(daemon) as stub:
        for method, request, names in rows:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(stub, method)(request, timeout=5)
            assert caught.value.code() is CODE.INVALID_ARGUMENT and names in (caught.value.details() or ""), names


async def test_peer__connect_of_strangers_changes_nothing(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = await house.job(daemons)
    path = engine(daemons[1]).path(0, 0)
    job = daemons[1].jobs.all()[0]
    other = trainers[0].joined.hosts[0]
    good = peer_pb2.ConnectRequest(
        job="job",
        generation=job.generation,
        caller=other,
        to_index=1,
        connection_ids=[path.tx_cid],
        to_incarnation=job.incarnation,
        offer=1,
    )

    def changed(**fields: Any) -> peer_pb2.ConnectRequest:
        request = peer_pb2.ConnectRequest()
        request.CopyFrom(good)
        for name, value in fields.items():
            if name == "caller":
                request.caller.CopyFrom(value)
            elif name == "connection_ids":
                request.connection_ids[:] = value
            else:
                setattr(request, name, value)
        return request

    stranger = types_pb2.Host()
    stranger.CopyFrom(other)
    stranger.index = 5
    old, newer = types_pb2.Host(), types_pb2.Host()
    old.CopyFrom(other)
    old.ClearField("wire_version")  # as version 1 says it
    newer.CopyFrom(other)
    newer.wire_version = WIRE_VERSION + 1
    mine = f"this daemon {WIRE_VERSION}"
    rows = [
        (changed(generation=1), CODE.DEADLINE_EXCEEDED, "has not begun here"),
        (changed(job="other"), CODE.DEADLINE_EXCEEDED, "has not begun here"),
        (changed(to_index=0), CODE.FAILED_PRECONDITION, "to_index = 0"),
        (changed(to_incarnation=9), CODE.FAILED_PRECONDITION, "to_incarnation = 9"),
        (changed(caller=stranger), CODE.FAILED_PRECONDITION, "caller.index = 5"),
        (changed(caller=old), CODE.FAILED_PRECONDITION, f"speaks wire version 1, {mine}"),
        (changed(caller=newer), CODE.FAILED_PRECONDITION, f"speaks wire version {WIRE_VERSION + 1}, {mine}"),
        (changed(offer=0), CODE.FAILED_PRECONDITION, "offer = 0: void"),
        (changed(connection_ids=[7]), CODE.FAILED_PRECONDITION, "offer = 1: void"),
        (changed(connection_ids=[7, 8]), CODE.FAILED_PRECONDITION, "2 connection_ids"),
        (changed(connection_ids=[]), CODE.FAILED_PRECONDITION, "it is the one to offer"),
    ]
    async with peer(daemons[1]) as stub:
        for request, code, names in rows:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Connect(request, timeout=1.5)
            assert caught.value.code() is code and names in (caught.value.details() or ""), names
        assert path.connects == 1 and path.up
        answer = await stub.Connect(good, timeout=5)  # the same again changes nothing either
        assert list(answer.connection_ids) == [path.rx_cid] and path.connects == 1
        assert answer.incarnation == job.incarnation


async def test_watch__first_the_stream_then_what_is_shared_then_changes(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = await house.job(daemons)
    await house.job([daemons[0]], "private", rendezvous="")
    async with peer(daemons[0]) as stub:
        request = peer_pb2.WatchRequest(incarnation=1, address="127.0.0.1", grpc_port=daemons[1].grpc_port)
        stream = stub.Watch(request)
        assert (await stream.read()).job == ""

        async def told() -> peer_pb2.WatchResponse:
            while not (news := await stream.read()).job:
                pass  # it follows the last news, and says nothing
            return news

        news = await told()
        assert (news.job, news.host_index, news.state, list(news.ranks)) == ("job", 0, types_pb2.HOST_STATE_UP, [0])
        assert news.incarnation == daemons[0].jobs.all()[0].incarnation
        assert (await told()).word.epoch.number == 0, "and what it has to say of the job's views"
        trainers[0].hang_up()
        news = await told()  # it stays for a moment, for peers that lack some of its last op
        assert (news.job, news.state, list(news.ranks)) == ("job", types_pb2.HOST_STATE_UP, [])
        news = await told()
        assert (news.job, news.state, list(news.ranks)) == ("job", types_pb2.HOST_STATE_ABSENT, [])
        stream.cancel()
    watchers = daemons[0]._watchers
    await eventually(lambda: len(watchers) <= 1, "the stream is forgotten")


async def test_watch__one_that_falls_behind_starts_over(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    watchers = daemons[0]._watchers
    stream = watchers.stream("127.0.0.1", daemons[1].grpc_port, "127.0.0.1")
    assert (await anext(stream)).job == ""
    job = daemons[0].jobs.all()[0]
    for _ in range(BEHIND_MAX + 1):
        watchers.tell(job)
    assert (await anext(stream)).job == "job"  # as it is now; what was missed does not matter
    assert (await anext(stream)).HasField("word")
    with pytest.raises(Unavailable, match="too far behind"):
        await anext(stream)
