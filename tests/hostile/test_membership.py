# SPDX-License-Identifier: Apache-2.0
"""Memberships that nobody could have, from a coordinator that the trainer itself names (A1, A15), or a stranger."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.daemon.helpers import House, engine, eventually, peer
from tests.hostile.peer import host, hostile_peer, membership, restore
from ultima.daemon.hosts.membership import membership as checked
from ultima.daemon.jobs import links
from ultima.daemon.process.server import Daemon
from ultima.v1 import peer_pb2, types_pb2
from ultima.v1.limits import WIRE_VERSION

LANE = types_pb2.Lane(data_port=2, feedback_port=3)


def both_here(own: types_pb2.Host) -> list[types_pb2.Host]:
    """A1: this host has both ranks, and another has none, so that world and hosts are the same number."""
    own.ranks[:] = [0, 1]
    return [own, host([], 1)]


def changed(**fields: Any) -> Callable[[types_pb2.Host], list[types_pb2.Host]]:
    """The other host, changed."""
    return lambda own: [own, host(**({"ranks": [1], "index": 1} | fields))]


def own_changed(**fields: Any) -> Callable[[types_pb2.Host], list[types_pb2.Host]]:
    def make(own: types_pb2.Host) -> list[types_pb2.Host]:
        for name, value in fields.items():
            setattr(own, name, value)
        return [own, host([1], 1)]

    return make


ROWS: list[tuple[dict[str, Any], str]] = [
    ({"hosts": both_here}, "hosts[1].ranks: 0 entries"),
    ({"hosts": []}, "hosts: 0 entries: allowed: 1 to 64"),
    ({"hosts": [host([0], 0)] * 65}, "hosts: 65 entries: allowed: 1 to 64"),
    ({"hosts": changed(ranks=[0])}, "rank 0 is there twice"),
    ({"hosts": changed(ranks=[2])}, "allowed: each of the 2 ranks once"),
    ({"hosts": changed(ranks=[1, 2])}, "allowed: each of the 2 ranks once"),
    ({"hosts": changed(ranks=list(range(17)))}, "hosts[1].ranks: 17 entries: allowed: 1 to 16"),
    ({"hosts": changed(ranks=[-1])}, "hosts[1].ranks[0] = -1"),
    ({"hosts": changed(index=0)}, "hosts[1].index = 0: allowed: 1"),
    ({"hosts": changed(index=-5)}, "hosts[1].index = -5"),
    ({"hosts": changed(state=77)}, "hosts[1].state = 77: allowed: 0, 1, 2, 3"),
    ({"hosts": changed(grpc_port=0)}, "hosts[1].grpc_port = 0"),
    ({"hosts": changed(grpc_port=2**31 - 1)}, "hosts[1].grpc_port = 2147483647"),
    ({"hosts": changed(lanes=[])}, "hosts[1].lanes: 0 entries: allowed: 1 to 4"),
    ({"hosts": changed(lanes=[LANE] * 5)}, "hosts[1].lanes: 5 entries"),
    ({"hosts": changed(lanes=[types_pb2.Lane(data_port=-1, feedback_port=3)])}, "lanes[0].data_port = -1"),
    ({"hosts": changed(incarnation=0)}, "hosts[1].incarnation = 0"),
    ({"hosts": changed(packet_bytes=31)}, "hosts[1].packet_bytes = 31: allowed: 96 to 9216"),
    ({"hosts": changed(packet_bytes=1473)}, "packet_bytes = 1473: allowed: a multiple of 8"),
    ({"hosts": changed(packet_bytes=-8)}, "packet_bytes = -8"),
    ({"hosts": changed(wires=["int8"] * 17)}, "hosts[1].wires: 17 entries: allowed: up to 16"),
    ({"hosts": changed(wires=["int8", "Int8"])}, "hosts[1].wires[1] = 'Int8': allowed: 1 to 16 lower-case letters"),
    ({"hosts": changed(wires=["a" * 17])}, "hosts[1].wires[0] = 'aaaa"),
    ({"hosts": changed(wire_version=0)}, f"host 1 (127.0.0.1:1) speaks wire version 1, this daemon {WIRE_VERSION}"),
    ({"hosts": changed(wire_version=-1)}, f"host 1 (127.0.0.1:1) speaks wire version -1, this daemon {WIRE_VERSION}"),
    ({"hosts": changed(address="example.org")}, "hosts[1].address = 'example.org': allowed: the numeric address"),
    ({"hosts": changed(address="1" * 100_000)}, "hosts[1].address = '1111"),
    ({"hosts": changed(address="0.0.0.0")}, "hosts[1].address = '0.0.0.0'"),
    ({"hosts": own_changed(incarnation=5)}, "another life of this host"),
    ({"hosts": own_changed(grpc_port=9)}, "other ports of this host"),
    ({"generation": 0}, "generation = 0"),
    ({"generation": -1}, "generation = -1"),
    ({"bucket_bytes_max": 0}, "bucket_bytes_max = 0"),
    ({"bucket_bytes_max": 2**32}, "bucket_bytes_max = 4294967296"),
    ({"bucket_bytes_max": -(2**63)}, "bucket_bytes_max = -9223372036854775808"),
    ({"next_op_seq": -1}, "next_op_seq = -1"),
    ({"next_op_seq": 2**63 - 1}, "next_op_seq = 9223372036854775807"),
    ({"next_op_seq": 2**63 - 1, "under_way": True}, "next_op_seq = 9223372036854775807"),
    ({"lanes": 0}, "lanes = 0: allowed: 1 to 1"),
    ({"lanes": -1}, "lanes = -1"),
    ({"lanes": 2}, "lanes = 2: allowed: 1 to 1"),
    ({"options": types_pb2.JobOptions(algorithm=99)}, "algorithm = 99"),
    ({"options": types_pb2.JobOptions(incast=-7)}, "incast = -7"),
    ({"options": types_pb2.JobOptions(quorum=3)}, "quorum = 3"),
]


def inventory(daemon: Daemon) -> dict[str, Any]:
    """All that a refused call might leave behind."""
    budget = daemon.jobs._budget
    return {
        "jobs": [job.name for job in daemon.jobs.all()],
        "numbers": dict(daemon.jobs._by_number),
        "engine": [sorted(fake.jobs) for fake in daemon.engine.engines],  # type: ignore[attr-defined]
        "memory": {name: value for name, value in vars(budget).items() if isinstance(value, int)},
        "per": {name: dict(value) for name, value in vars(budget).items() if isinstance(value, dict)},
        "forming": len(daemon._coordinator._forming),
        "waiting": len(daemon._coordinator._quota_waiting),
        "watched": daemon._peers.watched(),
    }


def tasks() -> int:
    return len(asyncio.all_tasks())


GRPC_SECONDS = (
    30.0  # for it to close sockets of channels that are closed: it looks every 5 s where nothing else goes on
)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.check
async def test_form__an_answer_that_cannot_be_leaves_nothing_behind(house: House) -> None:
    """A hostile coordinator answers with every absurd field: each is refused by name, and nothing of it stays."""
    daemon = await house.daemon()
    row: dict[str, Any] = {}
    async with hostile_peer(Register=lambda request: membership(request, **row)) as bad:
        before: tuple[Any, ...] = ()
        for attempt, names in [*ROWS[:1], *ROWS]:
            row = attempt
            trainer = await house.trainer(daemon)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await trainer.join(0, 2, rendezvous=bad.place)
            said = caught.value.details() or ""
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION, said
            assert names in said and len(said) < 500, said
            if "of this host" not in names and "wire version" not in names:
                assert f"rendezvous {bad.place}: its answer is not valid" in said
            trainer.hang_up()
            house.trainers.remove(trainer)
            await eventually(lambda: not daemon.attach._trainers, "the trainer is forgotten")
            if not before:  # after the first, which brings what every such call brings
                await asyncio.sleep(0.2)
                before = (inventory(daemon), tasks(), descriptors())
        await eventually(lambda: inventory(daemon) == before[0], f"{before} is {inventory(daemon)}")
        await eventually(lambda: tasks() <= before[1], "tasks are left")
        await eventually(lambda: descriptors() <= before[2], "descriptors are left", GRPC_SECONDS)
        assert not inventory(daemon)["jobs"]


@pytest.mark.parametrize("error", [ZeroDivisionError, OverflowError, ValueError])
async def test_form__whatever_fails_in_it_takes_all_back(
    house: House, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A15: an exception that nobody foresaw, after the engine has the job."""
    daemon = await house.daemon()
    before = inventory(daemon)

    def begin(*_: Any) -> None:
        raise error("as a hostile number would")

    with monkeypatch.context() as patched:
        patched.setattr(links.Links, "begin", begin)
        trainer = await house.trainer(daemon)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await trainer.join()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert inventory(daemon)["per"].get("job", {}) == before["per"].get("job", {})
    assert not engine(daemon).jobs and not daemon.jobs.all() and not daemon.jobs._by_number
    trainer.hang_up()
    await eventually(lambda: inventory(daemon) == before, f"{inventory(daemon)} is left")
    again = await house.trainer(daemon)
    await again.join()  # and the name is free


async def test_refused__calls_leave_nothing_behind(house: House) -> None:
    """A batch of calls that are refused, of every kind, by a stranger: jobs, quotas, tasks and descriptors stay."""
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    await trainer.join()
    bad = host([0], 0, port=0)
    async with peer(daemon) as stub, hostile_peer() as other:
        calls = [
            lambda: stub.Register(registering(host=bad), timeout=5),
            lambda: stub.Register(registering(world_size=2, job="late"), timeout=0.2),
            lambda: stub.Restore(restore("r", daemon.grpc_port, [bad]), timeout=5),
            lambda: stub.Restore(restore("r", other.port, []), timeout=5),
            lambda: stub.Connect(connecting(generation=-1), timeout=0.2),
            lambda: stub.Connect(connecting(caller=bad), timeout=5),
            lambda: stub.Probe(probing(rank=-1), timeout=5),
        ]
        before: tuple[Any, ...] = ()
        for _ in range(6):
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError):
                    await call()
            if not before:
                await asyncio.sleep(0.3)
                before = (inventory(daemon), tasks(), descriptors())
        await eventually(lambda: inventory(daemon) == before[0], f"{before} is {inventory(daemon)}")
        await eventually(lambda: tasks() <= before[1], "tasks are left")
        await eventually(lambda: descriptors() <= before[2], "descriptors are left", GRPC_SECONDS)
        assert daemon._coordinator.record("r") is None and other.calls == []


def registering(**fields: Any) -> Any:
    values = {"job": "j", "world_size": 1, "host": host([0]), "bucket_bytes_max": 1}
    return peer_pb2.RegisterRequest(**(values | fields))


def connecting(**fields: Any) -> Any:
    return peer_pb2.ConnectRequest(**({"job": "job", "caller": host([0]), "offer": 1, "connection_ids": [1]} | fields))


def probing(**fields: Any) -> Any:
    return peer_pb2.ProbeRequest(**({"job": "job"} | fields))


def test_membership__what_is_right_is_taken() -> None:
    request = registering(world_size=2, host=host([0], port=9))
    taken = checked(membership(request), 2, "")
    assert [one.ranks for one in taken.hosts] == [(0,), (1,)] and taken.lanes == 1
