# SPDX-License-Identifier: Apache-2.0
"""Whose the name of a job is: whoever shows its secret is in nobody's way, and nobody without it is in his."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import House, Trainer, eventually, rendezvous, wired
from tests.daemon.trust.papers import Authority, papers
from tests.daemon.trust.secure import SECRET, channel, secure, trust_in
from tests.e2e.hosts import free_port
from ultima.daemon.process.server import Daemon
from ultima.daemon.trust import job_secret
from ultima.v1 import peer_pb2, peer_pb2_grpc, types_pb2
from ultima.v1.limits import WIRE_VERSION

SQUATTER = 1001
ORDERS = [order for order in itertools.permutations("s01") if order.index("s") < 2]
"""Of the squatter and the true ranks 0 and 1. Where both came before him the job has begun."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@contextlib.asynccontextmanager
async def node(house: House, daemon: Daemon, authority: Authority, name: str) -> AsyncIterator[Any]:
    """What another node of the cluster can call, which is in no job."""
    trust = trust_in(papers(house.folder, name, authority))
    async with channel(daemon, trust, "n0") as open_channel:
        yield peer_pb2_grpc.PeerServiceStub(open_channel)  # type: ignore[no-untyped-call]


def host(rank: int, **fields: Any) -> types_pb2.Host:
    lanes = [types_pb2.Lane(data_port=7, feedback_port=8)]
    life = dict(address="127.0.0.1", grpc_port=9, lanes=lanes, packet_bytes=1472, wire_version=WIRE_VERSION)
    return types_pb2.Host(**life | dict(incarnation=5, ranks=[rank]) | fields)


class Squatter:
    """A node without the secret that wants the name, by each way that there is to say it."""

    def __init__(self, stub: Any, daemon: Daemon) -> None:
        self.stub, self.daemon = stub, daemon
        self.uids = itertools.cycle((os.geteuid(), SQUATTER))
        self.held: list[Any] = []

    async def other_world(self, job: str) -> None:
        """A job of one rank, which forms at once."""
        await self.register(job, 0, 1)

    async def same_world(self, job: str) -> None:
        """The place of rank 1, as if it were the true one."""
        await self.register(job, 1, 2)

    async def conflict(self, job: str) -> None:
        """Two ranks that contradict each other, which the true job does not have."""
        await asyncio.gather(self.register(job, 5, 8), self.register(job, 6, 9))

    async def restore(self, job: str, proof: types_pb2.JobProof | None = None) -> None:
        """A job of another size that is said to have run here before, and a watch, so that it is not forgotten."""
        hosts = [
            host(0, index=0, node="n0", grpc_port=self.daemon.grpc_port),
            host(1, index=1, node="evil", state=types_pb2.HOST_STATE_UP),
            host(2, index=2, node="evil", grpc_port=10, state=types_pb2.HOST_STATE_UP),
        ]
        told = peer_pb2.RestoreRequest(
            job=job,
            world_size=3,
            bucket_bytes_max=1,
            lanes=1,
            generation=7,
            hosts=hosts,
            uid=next(self.uids),
            proof=proof,
        )
        await self.stub.Restore(told, timeout=5)
        stream = self.stub.Watch(peer_pb2.WatchRequest(incarnation=1, address="127.0.0.1", grpc_port=9))
        await stream.read()
        self.held.append(stream)

    async def restore_with_a_secret(self, job: str) -> None:
        """The same with a proof, of a secret of his own."""
        await self.restore(job, job_secret.prove(secrets.token_bytes(32), job, 7, "evil", "n0"))

    async def register(self, job: str, rank: int, world_size: int) -> None:
        request = peer_pb2.RegisterRequest(
            job=job, world_size=world_size, bucket_bytes_max=1, host=host(rank), uid=next(self.uids)
        )
        call = self.stub.Register(request, timeout=20)
        self.held.append(call)
        await asyncio.wait([asyncio.ensure_future(call.code())], timeout=0.1)


async def job_starts(daemons: list[Daemon], house: House, job: str, squat: Callable[[str], Awaitable[None]]) -> None:
    """A job with a secret forms and connects, in each order of events."""
    for number, order in enumerate(ORDERS):
        name, ranks, trainers = f"{job}-{number}", [], []
        for who in order:
            if who == "s":
                await squat(name)
                continue
            rank = int(who)
            trainers.append(await house.trainer(daemons[rank]))
            joins = trainers[-1].join(rank, 2, name, rendezvous=rendezvous(daemons[0]), secret=SECRET)
            ranks.append(asyncio.ensure_future(joins))
            await asyncio.sleep(0.05)
        try:
            answers = await asyncio.gather(*ranks)
        except grpc.aio.AioRpcError as error:
            pytest.fail(f"{order}: {error.code().name}: {error.details()}")
        assert all([h.node for h in answer.hosts] == ["n0", "n1"] for answer in answers), order
        names = [each.name for each in daemons[0].gauges.facts().jobs]
        assert len(names) == len(set(names)), f"labels of metrics that are there twice: {names}"
        for trainer in trainers:
            trainer.hang_up()


async def test_name__of_a_job_with_a_secret_is_not_another_nodes_to_take(house: House, authority: Authority) -> None:
    """Whatever user the node says that it speaks for."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    async with node(house, daemons[0], authority, "evil") as stub:
        evil = Squatter(stub, daemons[0])
        ways = (evil.other_world, evil.same_world, evil.conflict, evil.restore, evil.restore_with_a_secret)
        for squat in ways:
            await job_starts(daemons, house, squat.__name__, squat)
        for call in evil.held:
            call.cancel()


@needs_root
@pytest.mark.parametrize(
    ("at", "secret"),
    [
        pytest.param(0, b"", id="coordinator-none"),
        pytest.param(1, b"", id="other-none", marks=pytest.mark.check),
        pytest.param(0, bytes(32), id="coordinator-wrong", marks=pytest.mark.check),
        pytest.param(1, bytes(32), id="other-wrong", marks=pytest.mark.check),
    ],
)
async def test_name__of_a_job_with_a_secret_is_not_another_users_to_take(
    house: House, authority: Authority, at: int, secret: bytes
) -> None:
    """A user of one of the hosts has a job of the same name, alone or waiting for its other rank; both jobs live."""
    daemons = [await secure(house, authority, f"n{i}", allow_uids=[SQUATTER]) for i in range(2)]
    for daemon in daemons:
        config = daemon.config
        for path, mode in ((house.folder, 0o755), (config.runtime_dir, 0o755), (config.attach_socket, 0o666)):
            path.chmod(mode)
    held: list[Any] = []

    async def squat(name: str, rank: int, world_size: int) -> None:
        trainer = await house.trainer(daemons[at], uid=SQUATTER)
        joins = trainer.join(rank, world_size, name, rendezvous=rendezvous(daemons[0]), secret=secret)
        held.append(asyncio.ensure_future(joins))
        await asyncio.wait(held[-1:], timeout=0.1)

    await job_starts(daemons, house, "alone", lambda name: squat(name, 0, 1))
    alone = [task for task in held if task.done()]
    assert all(task.exception() is None for task in alone), alone
    await job_starts(daemons, house, "waiting", lambda name: squat(name, at, 2))
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_name__one_users_ranks_that_differ_in_the_secret_are_told_at_once(
    house: House, authority: Authority
) -> None:
    """Which is a mistake: on one host, on two, and whoever comes first."""
    daemons = [await secure(house, authority, f"n{i}") for i in range(2)]
    place = rendezvous(daemons[0])

    async def joins(at: int, rank: int, name: str, secret: bytes) -> Trainer:
        trainer = await house.trainer(daemons[at])
        await trainer.join(rank, 2, name, rendezvous=place, secret=secret)
        return trainer

    for number, (at, first, second) in enumerate(itertools.product((0, 1), (SECRET, b""), (SECRET, b"", bytes(32)))):
        if first == second:
            continue
        waits = asyncio.ensure_future(joins(0, 0, f"j{number}", first))
        await asyncio.sleep(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await asyncio.wait_for(joins(at, 1, f"j{number}", second), 5)
        assert "secret" in (error.value.details() or ""), (at, first, second, error.value)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)


async def test_restore__true_and_made_up_words_stand_side_by_side(house: House, authority: Authority) -> None:
    """A coordinator that came back hears of a job from a node that made it up, and then from its true host: the rank
    that shows the secret comes back into the true job, at its old number."""
    port = free_port()
    daemons = [await secure(house, authority, "n0", port=str(port)), await secure(house, authority, "n1")]
    fellows = daemons[1].jobs.fellows
    found, late = fellows.found, asyncio.Event()
    trainers = await house.job(daemons, secret=SECRET)
    generation = daemons[1].jobs.all()[0].generation
    places: list[Any] = []
    told = daemons[1]._peers._told  # type: ignore[union-attr]
    daemons[1]._peers._told = told._replace(on_found=lambda place: late.set() or places.append(place))  # type: ignore[union-attr]
    trainers[0].hang_up()
    daemons[0] = await house.restart(daemons[0])
    async with node(house, daemons[0], authority, "evil") as stub:
        evil = Squatter(stub, daemons[0])
        await evil.restore("job")
        await evil.restore_with_a_secret("job")
        await asyncio.wait_for(late.wait(), 30)
        found(places[0])
        known = daemons[0]._coordinator._records
        await eventually(lambda: len(known["job"]) == 3, "the true host has told of it too")
        back = await house.trainer(daemons[0])
        await back.join(0, 2, rendezvous=rendezvous(daemons[0]), secret=SECRET)
        assert daemons[0].jobs.all()[0].generation == generation
        await eventually(lambda: wired(daemons), "they have found each other")
        for stream in evil.held:
            stream.cancel()
