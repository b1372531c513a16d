# SPDX-License-Identifier: Apache-2.0
"""What somebody may do who can reach a daemon's TCP port and is in no job (A5, A11)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, eventually, peer
from tests.hostile.peer import ADDRESS, host, restore
from ultima.daemon.hosts import coordinator as coordinators
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs import watchers
from ultima.v1 import peer_pb2, types_pb2

CODE = grpc.StatusCode


@contextlib.asynccontextmanager
async def third_party() -> AsyncIterator[tuple[int, list[int]]]:
    """Somebody who has nothing to do with it: a TCP port, and how often it was connected to."""
    came = [0]

    def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came[0] += 1
        writer.close()

    server = await asyncio.start_server(count, ADDRESS, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_restore__makes_nobody_call_anybody(house: House) -> None:
    """A5: records whose hosts are third parties. None of them is called, and the record ends by itself."""
    daemon = await house.daemon()
    async with third_party() as (port, came), peer(daemon) as stub:
        for i in range(8):
            others = [host([r], r, port, address=f"127.0.{i}.{r}") for r in range(1, 64)]
            await stub.Restore(restore(f"scan{i}", daemon.grpc_port, others), timeout=5)
        await asyncio.sleep(1.0)
        assert came == [0] and not daemon._peers.watched()
        loop = asyncio.get_running_loop()
        record = daemon._coordinator.record("scan0")
        assert record is not None
        loop.call_soon(daemon._coordinator._look_at_restored, "scan0", record)  # as the clock will
        await eventually(lambda: daemon._coordinator.record("scan0") is None, "the record is forgotten")


async def test_restore__of_other_daemons_and_by_nobody_is_refused(house: House) -> None:
    """A record must name this daemon as its host 0, and come from one of its hosts."""
    daemon = await house.daemon()
    elsewhere = host([1], 1, address="192.0.2.7")
    only = restore("r", daemon.grpc_port, [elsewhere])
    only.hosts[0].address = "192.0.2.8"
    rows = [
        (restore("r", 1, [elsewhere]), "hosts[0] = 127.0.0.1:1: allowed: this daemon"),
        (only, "hosts[0] = 192.0.2.8"),
        (restore("r", daemon.grpc_port, [host([1], 1, state=77)]), "hosts[1].state = 77"),
        (restore("r", daemon.grpc_port, [host([1], i) for i in range(1, 65)]), "hosts: 65 entries"),
    ]
    async with peer(daemon) as stub:
        for request, names in rows:
            code, said = await refused(stub.Restore(request, timeout=5))
            assert code in (CODE.FAILED_PRECONDITION, CODE.INVALID_ARGUMENT) and names in said, said
    assert daemon._coordinator.record("r") is None


async def test_restore__one_address_leaves_only_its_share(house: House) -> None:
    """No address fills the table of records that all need."""
    daemon = await house.daemon()
    most = coordinators.RESTORED_MAX // 8
    async with peer(daemon) as stub:
        for i in range(most):
            await stub.Restore(restore(f"r{i}", daemon.grpc_port, [host([1], 1)]), timeout=5)
        code, said = await refused(stub.Restore(restore("more", daemon.grpc_port, [host([1], 1)]), timeout=5))
        assert code is CODE.RESOURCE_EXHAUSTED and f"{ADDRESS} has {most} already" in said
    await house.job([daemon], "mine", rendezvous="")  # and others form their jobs as before


async def test_watch__tells_a_stranger_nothing(house: House) -> None:
    """A3: an empty address told all jobs with generation and incarnation, which is all that a Connect needs."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    async with peer(daemons[0]) as stub:
        for request in (peer_pb2.WatchRequest(grpc_port=1), peer_pb2.WatchRequest(address="192.0.2.1", grpc_port=9)):
            stream = stub.Watch(request)
            assert (await stream.read()).job == ""
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.read(), 0.3)
            stream.cancel()
        code, said = await refused(stub.Watch(peer_pb2.WatchRequest(grpc_port=-1)).read())
        assert code is CODE.INVALID_ARGUMENT and "grpc_port = -1" in said


async def test_watch__one_address_has_only_its_share(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A11: 1,024 watchers on one connection kept every other daemon from watching."""
    monkeypatch.setattr(watchers, "WATCHERS_MAX", 24)
    daemon = await house.daemon()
    async with peer(daemon) as stub:
        streams = [stub.Watch(peer_pb2.WatchRequest(grpc_port=5)) for _ in range(3)]
        for stream in streams:
            await stream.read()
        code, said = await refused(stub.Watch(peer_pb2.WatchRequest(grpc_port=5)).read())
        assert code is CODE.RESOURCE_EXHAUSTED and "has 3 already: allowed: 3 each" in said
        for stream in streams:
            stream.cancel()
        await eventually(lambda: not len(daemon._watchers), "all streams are forgotten")


async def test_register__one_address_forms_only_its_share(house: House) -> None:
    """A11: 64 forming names kept everybody from forming a job. The ranks of this host are not even counted."""
    daemon = await house.daemon()
    share = coordinators.FORMING_MAX // 8
    async with peer(daemon) as stub:

        def forming(i: int) -> Any:
            request = peer_pb2.RegisterRequest(job=f"f{i}", world_size=2, host=host([0]), bucket_bytes_max=1)
            return asyncio.ensure_future(_call(stub.Register(request, timeout=60)))

        waiting = [forming(i) for i in range(share)]
        await eventually(lambda: len(daemon._coordinator._forming) == share, "the share is used")
        code, said = await refused(forming(share))
        assert code is CODE.RESOURCE_EXHAUSTED and f"has {share} already" in said
        await house.job([daemon, daemon], "mine", rendezvous="")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await eventually(lambda: not daemon._coordinator._forming, "nothing forms")
    assert not len(daemon._coordinator._quota_forming) and not len(daemon._coordinator._quota_waiting)


async def _call(call: Any) -> Any:
    return await call


async def test_deadline__a_caller_does_not_wait_longer_than_the_daemon_allows(house: House) -> None:
    """A11: a call with a deadline of years held its place for years."""
    daemon = await house.daemon(join_seconds=0.3)
    async with peer(daemon) as stub:
        request = peer_pb2.RegisterRequest(job="j", world_size=2, host=host([0]), bucket_bytes_max=1)
        calls = [
            stub.Register(request, timeout=10**6),
            stub.Connect(peer_pb2.ConnectRequest(job="j", caller=host([0]), offer=1), timeout=10**6),
        ]
        for call in calls:
            code, _ = await asyncio.wait_for(refused(call), 10)
            assert code is CODE.DEADLINE_EXCEEDED
    trainer = await house.trainer(daemon)
    code, _ = await asyncio.wait_for(refused(trainer.join(0, 2, timeout=10**6)), 10)
    assert code is CODE.DEADLINE_EXCEEDED


async def test_handshake__half_open_connections_are_hung_up_on(house: House) -> None:
    """A connection that never says anything is closed, and in the meantime keeps nobody out."""
    daemon = await house.daemon()
    silent = [socket.create_connection((ADDRESS, daemon.grpc_port)) for _ in range(200)]
    try:
        async with peer(daemon) as stub:
            stream = stub.Watch(peer_pb2.WatchRequest(grpc_port=5))
            await asyncio.wait_for(stream.read(), 10)
            stream.cancel()

        def closed(line: socket.socket) -> bool:
            line.settimeout(15)
            try:
                while line.recv(4096):
                    pass  # the server's own greeting
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True
            return True

        assert await asyncio.to_thread(closed, silent[0]) and await asyncio.to_thread(closed, silent[-1])
    finally:
        for line in silent:
            line.close()


async def test_news__of_a_host_counts_only_from_its_own_place(house: House) -> None:
    """A peer that is watched says that another host of the job has died."""
    daemons = [await house.daemon() for _ in range(3)]
    await house.job(daemons)
    jobs = [daemon.jobs.all()[0] for daemon in daemons]
    link = jobs[0].links[2]  # type: ignore[index]
    record = daemons[0]._coordinator.record("job")
    assert record is not None
    await eventually(lambda: record.states[2] == types_pb2.HOST_STATE_UP, "the coordinator knows that host 2 is up")
    news = peer_pb2.WatchResponse(
        job="job",
        generation=jobs[0].generation,
        host_index=2,
        state=types_pb2.HOST_STATE_ABSENT,
        incarnation=link.host.incarnation,
    )
    daemons[0].jobs.fellows.heard(Place(ADDRESS, daemons[1].grpc_port), news)
    assert link.up()
    record = daemons[0]._coordinator.record("job")
    assert record is not None and record.states[2] == types_pb2.HOST_STATE_UP
    for state in (77, -1):
        news.state = state  # type: ignore[assignment]
        daemons[0].jobs.fellows.heard(Place(ADDRESS, daemons[2].grpc_port), news)
    assert link.up()
    daemons[0].jobs.fellows.heard(Place(ADDRESS, daemons[2].grpc_port), _absent(news))
    assert not link.up()


def _absent(news: peer_pb2.WatchResponse) -> peer_pb2.WatchResponse:
    news.state = types_pb2.HOST_STATE_ABSENT
    return news
