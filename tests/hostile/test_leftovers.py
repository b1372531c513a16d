# SPDX-License-Identifier: Apache-2.0
"""Everything that a daemon refuses on its local sockets, many times over: nothing of it may stay behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.conftest import folder, house  # noqa: F401
from tests.daemon.helpers import HOSTS_SECONDS, House, attach, engine, eventually, local_channel, proof
from ultima.daemon.process.server import Daemon
from ultima.v1 import admin_pb2, admin_pb2_grpc, trainer_pb2, trainer_pb2_grpc, types_pb2

ROUNDS = 5


def holdings(daemon: Daemon) -> dict[str, Any]:
    """All that a refusal could leave in a daemon, counted."""
    jobs, attached, coordinator = daemon.jobs, daemon.attach, daemon._coordinator
    budget = jobs._budget
    return {
        "budget": (budget.used, dict(budget.used_by_uid), dict(budget.used_by_job)),
        "jobs": (len(jobs._jobs), len(jobs._by_number), len(jobs._at), len(engine(daemon).jobs)),
        "sessions": len(engine(daemon).sessions),
        "regions": len(engine(daemon).regions),
        "trainers": (attached.trainers, len(attached._tickets), len(attached._connections), attached._silent.total()),
        "forming": (len(coordinator._forming), len(coordinator._records)),
        "tokens": len(daemon.tokens),
        "waiters": len(jobs._changes._waiters),
        "tasks": len(jobs._tasks),
    }


def descriptors() -> int:
    """Of this process, in which the daemon is."""
    return len(os.listdir("/proc/self/fd"))


HELLOS: list[bytes] = [
    b"",
    b"\xff",
    b"null",
    b'{"v": 4}',
    b'{"v": 4, "arena_bytes": 0}',
    b'{"v": 4, "arena_bytes": 1099511627777}',
    b'{"v": 4, "arena_bytes": 3000000}',  # over the budget of all
    b'{"v": 4, "who": 7}',
    b"x" * 5000,
]
JOINS: list[dict[str, Any]] = [
    {"job": ""},
    {"world_size": 0},
    {"rank": 5, "world_size": 2},
    {"bucket_bytes_max": -1},
    {"bucket_bytes_max": 2**40},
    {"rate_bytes_per_s": -1},
    {"rendezvous": "nonsense"},
    {"rank_addresses": ["a:1", "b:2"]},
    {"options": types_pb2.JobOptions(quorum=9, policy=types_pb2.POLICY_QUORUM)},
    {"world_size": 2, "timeout": 0.3},  # nobody else comes
    {"world_size": 3, "job": "held"},  # of which there are other numbers
    {"job": "held"},  # taken
    {"job": "large"},  # more memory than a job may have, as the engine says below
]


async def refused_attach(daemon: Daemon, hello: bytes) -> None:
    connection, answer = await attach(daemon.config.attach_socket, hello)
    assert "ticket" not in answer.reply and "token" not in answer.reply
    answer.close()
    connection.close()


async def refused_call(call: Awaitable[Any]) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call


async def refused_join(house: House, daemon: Daemon, fields: dict[str, Any]) -> None:  # noqa: F811
    others = daemon.attach.trainers
    trainer = await house.trainer(daemon)
    house.trainers.remove(trainer)
    await refused_call(trainer.join(**fields))
    trainer.hang_up()
    await eventually(lambda: daemon.attach.trainers <= others, "its memory is there for the next one")


async def refused_admin(daemon: Daemon) -> None:
    who = daemon.config.attach_socket
    async with local_channel(daemon.config.socket) as channel:
        admin: Any = admin_pb2_grpc.AdminServiceStub(channel)
        trainer: Any = trainer_pb2_grpc.TrainerServiceStub(channel)
        options = types_pb2.JobOptions(incast=16)
        for request in (admin_pb2.TuneRequest(job="none", options=options), admin_pb2.TuneRequest(job="held"),
                        admin_pb2.TuneRequest(job="held", options=options)):  # fmt: skip
            await refused_call(admin.Tune(request, timeout=HOSTS_SECONDS))
            await refused_call(admin.Tune(request, timeout=HOSTS_SECONDS, metadata=await proof(who)))
        for receipts in (admin_pb2.GetReceiptsRequest(job="none"), admin_pb2.GetReceiptsRequest(op_seq=99)):
            await refused_call(admin.GetReceipts(receipts, timeout=HOSTS_SECONDS, metadata=await proof(who)))
        await refused_call(trainer.JoinJob(trainer_pb2.JoinJobRequest(ticket="x"), timeout=HOSTS_SECONDS))
        await refused_call(trainer.LeaveJob(trainer_pb2.LeaveJobRequest(ticket="x"), timeout=HOSTS_SECONDS))


@pytest.fixture
async def daemon(house: House, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:  # noqa: F811
    """With a job that goes on meanwhile, and limits that the attempts run into."""
    (folder / "c.toml").write_text(
        '[limits]\nmemory_bytes = "3M"\nmemory_bytes_per_uid = "3M"\nmemory_bytes_per_job = "2M"\n'
        'arena_bytes = "4M"\nattaching = 3\nticket_seconds = 0.5\nhello_seconds = 0.5\n'
    )
    daemon = await house.daemon(config=str(folder / "c.toml"))
    await (await house.trainer(daemon)).join(job="held")
    fake = engine(daemon)
    bytes_of = fake.job_bytes
    monkeypatch.setattr(fake, "job_bytes", lambda config: bytes_of(config) * (1 if config.world > 1 else 9))
    return daemon


async def test_refused__leaves_nothing_behind(house: House, daemon: Daemon) -> None:  # noqa: F811
    async def everything() -> None:
        for hello in HELLOS:
            await refused_attach(daemon, hello)
        for fields in JOINS:
            await refused_join(house, daemon, fields)
        await refused_admin(daemon)

    before = holdings(daemon)
    await everything()  # whatever is made once and kept, such as gRPC's own threads
    await eventually(lambda: holdings(daemon) == before, f"as before: {before}, not {holdings(daemon)}")
    fds, tasks = await settled(descriptors), await settled(lambda: len(asyncio.all_tasks()))
    for _ in range(ROUNDS):
        await everything()
    await eventually(lambda: holdings(daemon) == before, f"as before: {before}, not {holdings(daemon)}")
    await eventually(lambda: descriptors() <= fds, f"descriptors: {fds} before, now {descriptors()}")
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, f"tasks: {tasks} before, now {asyncio.all_tasks()}")
    trainer = await house.trainer(daemon)  # and it still serves
    await refused_call(trainer.join(job="held", world_size=2))


async def test_refused__trainers_that_die_on_their_way_in(house: House, daemon: Daemon) -> None:  # noqa: F811
    """Half of them before the answer, half while they wait for others."""
    before = holdings(daemon)
    for number in range(2 * ROUNDS):
        trainer = await house.trainer(daemon)
        house.trainers.remove(trainer)
        joining = asyncio.ensure_future(trainer.join(0, 2, job=f"job-{number}", timeout=20))
        if number % 2:
            await eventually(lambda: len(daemon.jobs._jobs) == 2, "it is on its way")
        trainer.hang_up()
        await refused_call(joining)
    await eventually(lambda: holdings(daemon) == before, f"as before: {before}, not {holdings(daemon)}")


async def settled(count: Callable[[], int]) -> int:
    """What a number comes down to when it changes no more for a while."""
    least, still = count(), 0
    while still < 20:
        await asyncio.sleep(0.02)
        still, least = (still + 1, least) if count() >= least else (0, count())
    return least
