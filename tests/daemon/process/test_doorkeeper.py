# SPDX-License-Identifier: Apache-2.0
"""Connections to the two gRPC servers: who has the most loses the newest, and nobody else any."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.daemon.helpers import House, eventually, local_channel, status
from ultima.daemon.process import doorkeeper
from ultima.daemon.process.doorkeeper import local_door, network_of
from ultima.v1 import peer_pb2

ALL = 8  # connections that a door has room for in these tests
# As another user: many connections to a Unix socket that say nothing, until standard input ends.
GREEDY = """
import os, socket, sys
os.setgroups([])
os.setresgid(65533, 65533, 65533)
os.setresuid(65533, 65533, 65533)
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_network_of__one_host() -> None:
    for address, network in (
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ):
        assert network_of(address) == network


def test_raise_limit__to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert doorkeeper.raise_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_still(connections: list[socket.socket]) -> int:
    """How many of them the other side has not ended."""
    alive = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(4096):  # what the server says by itself
                pass
        except BlockingIOError:
            alive += 1
        except ConnectionError:
            pass
    return alive


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
async def test_local__a_user_with_many_loses_his_own_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "LOCAL_MAX", ALL)
    daemon = await house.daemon()
    for path, mode in ((house.folder, 0o755), (daemon.config.runtime_dir, 0o755), (daemon.config.socket, 0o666)):
        path.chmod(mode)
    ours = [socket.socket(socket.AF_UNIX) for _ in range(ALL // 2)]
    command = [sys.executable, "-c", GREEDY, str(daemon.config.socket), str(4 * ALL)]
    greedy = await asyncio.to_thread(subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert greedy.stdout is not None and await asyncio.to_thread(greedy.stdout.readline) == b"held\n"
    try:
        for connection in ours:
            connection.connect(str(daemon.config.socket))
        keeper = doorkeeper.Doorkeeper(daemon._doorkeeper()._doors[0])
        await eventually(lambda: keeper.look() == 0, "no more are left than there may be")
        assert open_still(ours) == len(ours)
        assert (await status(daemon)).pid == os.getpid()
    finally:
        await asyncio.to_thread(greedy.communicate)
        for connection in ours:
            connection.close()


def test_look__those_that_came_last_are_ended(tmp_path: Path) -> None:
    path, held = str(tmp_path / "door.sock"), []
    keeper = doorkeeper.Doorkeeper(local_door(path, ALL * doorkeeper.LOCAL_SHARE))
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as accepted:
        listener.bind(path)
        listener.listen(4 * ALL)
        for ended in (0, ALL // 2):  # the second time as many come as have no room
            for _ in range(ended or ALL):
                held.append(accepted.enter_context(socket.socket(socket.AF_UNIX)))
                held[-1].connect(path)
                accepted.enter_context(listener.accept()[0])
            assert keeper.look() == ended
        assert open_still(held[:ALL]) == ALL and open_still(held[ALL:]) == 0


def test_look__asks_once_of_each_connection(tmp_path: Path) -> None:
    """And again where the next connection has got the descriptor of one that ended."""
    path, asked = str(tmp_path / "door.sock"), []
    door = local_door(path, ALL * doorkeeper.LOCAL_SHARE)
    keeper = doorkeeper.Doorkeeper(
        dataclasses.replace(door, whose=lambda connection: asked.append(connection.fileno()))
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        for turn in (1, 2):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(path)
                with listener.accept()[0] as accepted:
                    assert [keeper.look() for _ in range(3)] == [0, 0, 0]
                    assert asked == [accepted.fileno()] * turn


async def test_peers__connections_that_say_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """One address has many; a daemon at another one joins all the same."""
    monkeypatch.setattr(doorkeeper, "PEERS_MAX", ALL)
    daemon, other = await house.daemon(), await house.daemon(bind="127.0.0.2")
    held = []
    for _ in range(4 * ALL):
        held.append(socket.socket())
        held[-1].connect((daemon.config.bind, daemon.grpc_port))
    try:
        await house.job([daemon, other])
        await eventually(lambda: open_still(held) <= ALL, "no more are left than there may be")
    finally:
        for connection in held:
            connection.close()


async def test_health__is_asked_and_not_watched(house: House) -> None:
    """Whoever waits for news would hold a call as long as he likes."""
    daemon = await house.daemon()
    async with (
        local_channel(daemon.config.socket) as near,
        grpc.aio.insecure_channel(f"{daemon.config.bind}:{daemon.grpc_port}") as far,
    ):
        for channel in (near, far):
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Watch(health_pb2.HealthCheckRequest(), timeout=10):
                    raise AssertionError("it was told something")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_peers__calls_without_a_request_are_counted_and_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that never send what they ask count as much as others, and end soon."""
    monkeypatch.setattr("ultima.daemon.trust.gate.REQUEST_SECONDS", 3.0)  # in which all of them must begin
    daemon = await house.daemon()
    gate, most = daemon.gate, 20
    monkeypatch.setattr(gate._calls, "_each", most)
    forever = asyncio.Event()

    async def nothing() -> object:
        await forever.wait()
        yield None

    place = f"{daemon.config.bind}:{daemon.grpc_port}"
    async with grpc.aio.insecure_channel(place) as channel:
        forming = channel.stream_unary(
            "/ultima.v1.PeerService/Forming",
            request_serializer=peer_pb2.FormingRequest.SerializeToString,
            response_deserializer=peer_pb2.FormingResponse.FromString,
        )
        calls = [forming(nothing()) for _ in range(most + 50)]
        codes = [await call.code() for call in calls]
        assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 50
        assert codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == most
        assert len(gate._calls) == 0
        forever.set()
    async with grpc.aio.insecure_channel(place) as channel:
        asked = channel.unary_unary(
            "/ultima.v1.PeerService/Forming",
            request_serializer=peer_pb2.FormingRequest.SerializeToString,
            response_deserializer=peer_pb2.FormingResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(peer_pb2.FormingRequest(job="job"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
