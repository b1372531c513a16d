# SPDX-License-Identifier: Apache-2.0
"""PROBE between daemons: probes and activations over gRPC, and the role when hosts go and come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.fake_engine import FakeEngine
from tests.daemon.helpers import House, engine, eventually, peer, proof, rendezvous, status
from ultima.base.reference import picks
from ultima.daemon.engine.engine import EventKind
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs import vanishing
from ultima.daemon.jobs.job import Job
from ultima.daemon.process.server import Daemon
from ultima.v1 import admin_pb2, admin_pb2_grpc, peer_pb2, types_pb2

CODE = grpc.StatusCode
# Under this one nobody asks but the test.
QUIET = types_pb2.JobOptions(policy=types_pb2.POLICY_SOLO)
PROBE = types_pb2.JobOptions(policy=types_pb2.POLICY_PROBE, policy_seed=42)
READY, EXPIRED = peer_pb2.ProbeResponse.RESULT_READY, peer_pb2.ProbeResponse.RESULT_EXPIRED
UNKNOWN_RANK = peer_pb2.ProbeResponse.RESULT_UNKNOWN_RANK


@pytest.fixture(autouse=True)
def lost_hosts_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test says that a host is lost whose daemon would answer, if it were asked."""

    async def gone(*_: object) -> bool:
        return False

    monkeypatch.setattr(vanishing, "alive", gone)


class Word:
    """What the engines do among themselves: an op that starts on one host starts on all that it can reach."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self.daemons = list(daemons)
        self.apart: set[int] = set()
        """Hosts on the other side of a partition."""
        self.started: list[tuple[int, int]] = []
        """Host and op of each start."""
        for index, daemon in enumerate(self.daemons):
            engine(daemon).on_activate = lambda job, op_seq, index=index: self._spread(index, job, op_seq)  # type: ignore[misc]

    def _spread(self, initiator: int, job: int, op_seq: int) -> None:
        self.started.append((initiator, op_seq))
        for index, daemon in enumerate(self.daemons):
            fake = daemon.engine.engines[0] if daemon.engine.engines else None
            if isinstance(fake, FakeEngine) and (index in self.apart) == (initiator in self.apart) and job in fake.jobs:
                fake.op_begins(job, op_seq, initiator)

    def end(self, *hosts: int) -> None:
        """The open op ends on these hosts, or all."""
        for index in hosts or range(len(self.daemons)):
            if self.daemons[index].engine.engines:
                engine(self.daemons[index]).op_ends(0)

    async def reached(self, count: int) -> None:
        """Waits until so many ops have been started."""
        await eventually(lambda: len(self.started) >= count, f"{count} ops have started: {self.started}")


def give(*daemons: Daemon) -> None:
    for daemon in daemons:
        engine(daemon).give(0)


def job_of(daemon: Daemon) -> Job:
    return daemon.jobs.all()[0]


def has_role(daemon: Daemon) -> bool:
    return bool(daemon.initiators._controllers)


@contextlib.asynccontextmanager
async def probing(
    house: House, count: int, options: types_pb2.JobOptions = PROBE, **flags: object
) -> AsyncIterator[tuple[list[Daemon], Word]]:
    """A job over `count` daemons whose trainers never leave."""
    daemons = [await house.daemon(**flags) for _ in range(count)]
    await house.job(daemons, options=options)
    yield daemons, Word(daemons)


async def probe(daemon: Daemon, op_seq: int, rank: int, timeout: float = 10.0, **fields: Any) -> Any:
    """PeerService.Probe."""
    wanted = {"job": "job", "generation": job_of(daemon).generation if daemon.jobs.all() else 1} | fields
    async with peer(daemon) as stub:
        return await stub.Probe(peer_pb2.ProbeRequest(op_seq=op_seq, rank=rank, **wanted), timeout=timeout)


async def activate(daemon: Daemon, op_seq: int, **fields: Any) -> Any:
    """PeerService.Activate."""
    wanted = {"job": "job", "generation": job_of(daemon).generation} | fields
    async with peer(daemon) as stub:
        return await stub.Activate(peer_pb2.ActivateRequest(op_seq=op_seq, **wanted), timeout=10)


# ---- ops ----


async def test_ops__each_is_started_once_by_a_rank_that_was_drawn(house: House) -> None:
    async with probing(house, 4) as (daemons, word):
        for op_seq in range(30):
            give(*daemons)
            await word.reached(op_seq + 1)
            word.end()
        assert [op_seq for _, op_seq in word.started] == list(range(30))
        for host, op_seq in word.started:
            assert host in picks(42, op_seq, 4, 2)
        assert [has_role(daemon) for daemon in daemons] == [True, False, False, False]
        (told,) = (await status(daemons[0])).jobs
        assert told.probes.decided_count == 30 and told.probes.ready_count >= 30
        assert told.probes.decision_p50_us > 0 and told.probes.timed_out_count == told.probes.denied_count == 0
        for daemon in daemons:
            (told,) = (await status(daemon)).jobs
            assert told.controller_host == 0


async def test_ops__nobody_waits_for_a_rank_that_was_not_drawn(house: House) -> None:
    """Ranks 0 and 1 of 4 are never ready; whenever both are drawn, the next draw finds one that is."""
    async with probing(house, 4, probe_seconds=0.05) as (daemons, word):
        for op_seq in range(16):
            give(daemons[2], daemons[3])
            await word.reached(op_seq + 1)
            word.end()
        assert {host for host, _ in word.started} == {2, 3}
        hopeless = sum(set(picks(42, op_seq, 4, 2)) == {0, 1} for op_seq in range(16))
        assert hopeless and job_of(daemons[0]).probes.timed_out >= hopeless


async def test_ops__ranks_of_one_host_are_told_apart(house: House) -> None:
    """Five ranks on two hosts, in no order; each op is started by the host of the one rank that is ready."""
    daemons = [await house.daemon(probe_seconds=0.05), await house.daemon(probe_seconds=0.05)]
    where = [1, 0, 0, 1, 0]
    trainers = [await house.trainer(daemons[at]) for at in where]
    await asyncio.gather(
        *(t.join(r, 5, rendezvous=rendezvous(daemons[0]), options=PROBE) for r, t in enumerate(trainers))
    )
    by_host = [daemons[1], daemons[0]]  # of rank 0, which is host 0, and of rank 1
    word = Word(by_host)
    for op_seq in range(10):
        rank = op_seq % 5
        host = 0 if rank in (0, 3) else 1
        place = [r for r in range(5) if where[r] == where[rank]].index(rank)
        engine(by_host[host]).give(0, place)
        await word.reached(op_seq + 1)
        word.end()
        assert word.started[-1] == (host, op_seq)


async def test_ops__what_was_given_while_one_ran_starts_the_next(house: House) -> None:
    async with probing(house, 2) as (daemons, word):
        give(*daemons)
        await word.reached(1)
        give(*daemons)
        await asyncio.sleep(0.05)
        assert len(word.started) == 1, "op 0 is not over"
        word.end()
        await word.reached(2)


# ---- probes and activations as calls ----


async def test_probe__answers_when_there_is_a_gradient(house: House) -> None:
    async with probing(house, 2, options=QUIET) as (daemons, word):
        waiting = asyncio.ensure_future(probe(daemons[1], 0, 1))
        await eventually(lambda: job_of(daemons[1]).readiness._waiting == 1, "it waits")
        give(daemons[1])
        answer = await waiting
        assert answer.result == READY and answer.next_op_seq == 0
        here, generation = daemons[1].initiators, job_of(daemons[1]).generation
        again = [here.activate("job", generation, 0) for _ in range(2)]  # before the engine has told of it
        assert [*again, (await activate(daemons[1], 0)).started] == [True, False, False], "an op starts once"
        assert word.started == [(1, 0)]
        answer = await probe(daemons[1], 0, 1)
        assert answer.result == EXPIRED and answer.next_op_seq == 1


async def test_probe__of_a_rank_that_is_not_here(house: House) -> None:
    async with probing(house, 2) as (daemons, _):
        assert (await probe(daemons[1], 5, 0)).result == UNKNOWN_RANK
        assert (await probe(daemons[1], 5, 7)).result == UNKNOWN_RANK


async def test_probe__open_when_the_rank_dies(house: House) -> None:
    """Answered then, not at the deadline: both where the job goes on here and where it ends with that rank."""
    daemons = [await house.daemon(), await house.daemon()]
    trainers = [await house.trainer(daemons[at]) for at in (0, 1, 1)]
    await asyncio.gather(
        *(t.join(r, 3, rendezvous=rendezvous(daemons[0]), options=QUIET) for r, t in enumerate(trainers))
    )
    readiness = job_of(daemons[1]).readiness
    for rank in (1, 2):
        waiting = asyncio.ensure_future(probe(daemons[1], 9, rank, timeout=100))
        await eventually(lambda: readiness._waiting == 1, "it waits")
        trainers[rank].hang_up()
        assert (await asyncio.wait_for(waiting, 20)).result == UNKNOWN_RANK


async def test_probe__that_is_given_up_leaves_nothing(house: House) -> None:
    async with probing(house, 2, options=QUIET) as (daemons, _):
        readiness = job_of(daemons[1]).readiness
        waiting = asyncio.ensure_future(probe(daemons[1], 9, 1, timeout=100))
        await eventually(lambda: readiness._waiting == 1, "it waits")
        waiting.cancel()
        await eventually(lambda: readiness._waiting == 0, "it is gone")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await probe(daemons[1], 9, 1, timeout=0.1)
        assert caught.value.code() is CODE.DEADLINE_EXCEEDED
        await eventually(lambda: readiness._waiting == 0, "and so is that one")


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"generation": 12}, CODE.NOT_FOUND, "generation 12"),
        ({"job": "other"}, CODE.NOT_FOUND, "'other'"),
        ({"job": ""}, CODE.INVALID_ARGUMENT, "job"),
        ({"rank": -1}, CODE.INVALID_ARGUMENT, "rank = -1"),
        ({"rank": 1024}, CODE.INVALID_ARGUMENT, "rank = 1024"),
    ],
)
async def test_probe__bad_input(house: House, fields: dict[str, Any], code: CODE, words: str) -> None:
    async with probing(house, 1) as (daemons, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await probe(daemons[0], 0, **{"rank": 0} | fields)
        assert caught.value.code() is code and words in str(caught.value.details())


async def test_probe__a_job_without_a_policy_has_no_controller(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    for call in (probe(daemons[0], 0, 0), activate(daemons[0], 0)):
        with pytest.raises(grpc.aio.AioRpcError, match="policy = none") as caught:
            await call
        assert caught.value.code() is CODE.FAILED_PRECONDITION
    assert not has_role(daemons[0])
    (told,) = (await status(daemons[0])).jobs
    assert told.controller_host == -1 and not told.HasField("probes")


async def test_activate__is_refused_where_there_is_nothing_or_it_is_not_time(house: House) -> None:
    async with probing(house, 1) as (daemons, _):
        for op_seq in (0, 3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await activate(daemons[0], op_seq)
            assert caught.value.code() is CODE.FAILED_PRECONDITION


async def test_lie__a_daemon_that_is_mistaken_is_passed_over(house: House) -> None:
    """Host 3 believes that its rank is ready; its engine knows better."""
    async with probing(house, 4) as (daemons, word):
        engine(daemons[3]).emit(EventKind.READY, 0, op_seq=0, a=1)
        engine(daemons[2]).emit(EventKind.READY, 0, op_seq=0, a=1)
        stats = job_of(daemons[0]).probes
        await eventually(lambda: stats.denied >= 1, "one of the liars is found out")
        give(daemons[0], daemons[1])
        await word.reached(1)
        assert word.started[0][0] in (0, 1) and stats.denied == 2


# ---- the role ----


async def test_role__the_next_host_takes_it_when_the_controller_dies(house: House) -> None:
    async with probing(house, 4) as (daemons, word):
        for op_seq in range(5):
            give(*daemons)
            await word.reached(op_seq + 1)
            word.end()
        await house.stop(daemons[0])
        await eventually(lambda: has_role(daemons[1]), "host 1 has the role")
        for op_seq in range(5, 10):
            give(*daemons[1:])
            await word.reached(op_seq + 1)
            word.end(1, 2, 3)
        assert [op_seq for _, op_seq in word.started] == list(range(10)), "the id goes on"
        assert all(host != 0 for host, _ in word.started[5:])
        for daemon in daemons[1:]:
            assert (await status(daemon)).jobs[0].controller_host == 1
        assert [has_role(daemon) for daemon in daemons[2:]] == [False, False]


async def test_role__all_but_one_host_dead(house: House) -> None:
    async with probing(house, 3) as (daemons, word):
        for daemon in list(daemons[:2]):
            await house.stop(daemon)
        await eventually(lambda: has_role(daemons[2]), "the last one has the role")
        for op_seq in range(3):
            give(daemons[2])
            await word.reached(op_seq + 1)
            word.end(2)
        assert word.started == [(2, 0), (2, 1), (2, 2)]


def part(daemons: Sequence[Daemon], word: Word, host: int) -> None:
    """Nothing passes between `host` and the others any more, and both sides notice."""
    word.apart.add(host)
    for other in range(len(daemons)):
        if other != host:
            for here, there in ((host, other), (other, host)):
                daemons[here].jobs.fellows.lost(Place(daemons[there].config.bind, daemons[there].grpc_port), True)


async def mend(daemons: Sequence[Daemon], word: Word, host: int) -> None:
    """The partition is over, and both sides find each other again."""
    word.apart.clear()
    links = job_of(daemons[host]).links
    assert links is not None
    for link in links.values():
        links.call(link, give_up=False)
    await eventually(lambda: all(link.up() for link in links.values()), "connected again")


@pytest.mark.parametrize("alone", [0, 3])
async def test_role__the_controller_is_cut_off_and_comes_back(house: House, alone: int) -> None:
    """Both sides go on by themselves, one of them faster; afterwards the ops are one sequence again."""
    async with probing(house, 3, probe_seconds=0.1) as (daemons, word):
        give(*daemons)
        await word.reached(1)
        word.end()
        part(daemons, word, 0)
        await eventually(lambda: has_role(daemons[0]) and has_role(daemons[1]), "one on each side")
        for _ in range(2):
            before = len(word.started)
            give(daemons[1], daemons[2])
            await word.reached(before + 1)
            word.end(1, 2)
        for _ in range(alone):
            before = len(word.started)
            give(daemons[0])
            await word.reached(before + 1)
            word.end(0)
        assert [op for host, op in word.started if host == 0 and op] == [1 + i for i in range(alone)]
        await mend(daemons, word, 0)
        await eventually(lambda: not has_role(daemons[1]), "host 0 has the role")
        newest = 3 if alone == 0 else 1 + alone
        for i in range(3):
            before = len(word.started)
            give(*daemons)
            await word.reached(before + 1)
            word.end()
            assert word.started[-1][1] == newest + i, word.started
            assert len(word.started) == before + 1
        assert {engine(daemon).jobs[0].next_op_seq for daemon in daemons} == {newest + 3}


async def test_role__two_controllers_for_a_moment_start_each_op_once(house: House) -> None:
    """Host 1 thinks that host 0 is gone, and nobody else does."""
    async with probing(house, 3) as (daemons, word):
        daemons[1].jobs.fellows.lost(Place(daemons[0].config.bind, daemons[0].grpc_port), True)
        await eventually(lambda: has_role(daemons[1]) and has_role(daemons[0]), "two have it")
        for op_seq in range(12):
            give(*daemons)
            await word.reached(op_seq + 1)
            word.end()
        begun = {op_seq for _, op_seq in word.started}
        assert begun == set(range(12))
        for daemon in daemons:
            assert engine(daemon).jobs[0].next_op_seq == 12


async def test_role__changes_with_the_policy(house: House) -> None:
    async with probing(house, 2) as (daemons, word):
        async with tuner(daemons[1]) as tune:
            await tune(types_pb2.JobOptions(policy=types_pb2.POLICY_SOLO))
            await eventually(lambda: not has_role(daemons[0]), "SOLO needs none")
            give(*daemons)
            await asyncio.sleep(0.1)
            assert not word.started and not any(has_role(daemon) for daemon in daemons)
            assert (await status(daemons[1])).jobs[0].controller_host == -1
            await tune(types_pb2.JobOptions(policy=types_pb2.POLICY_PROBE, probes=1))
        await word.reached(1)
        assert has_role(daemons[0]) and word.started[0] == (picks(42, 0, 2, 1)[0], 0)


@contextlib.asynccontextmanager
async def tuner(daemon: Daemon) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"unix:{daemon.config.socket}") as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)

        async def tune(options: types_pb2.JobOptions) -> Any:
            request = admin_pb2.TuneRequest(job="job", options=options)
            return await stub.Tune(request, timeout=20, metadata=await proof(daemon.config.attach_socket))

        yield tune


# ---- ends ----


async def test_end__of_a_job_while_it_probes(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async with probing(house, 3) as (daemons, _):
        stats, readiness = job_of(daemons[0]).probes, [job_of(daemon).readiness for daemon in daemons]
        await eventually(lambda: stats.sent == 2, "two are asked")
        for trainer in house.trainers:
            trainer.hang_up()
        await eventually(lambda: not any(daemon.jobs.all() for daemon in daemons), "the job is over")
        await eventually(lambda: not any(has_role(daemon) for daemon in daemons), "nobody has the role")
        await eventually(lambda: not any(ready._waiting for ready in readiness), "nobody waits for an answer")
        assert stats.sent == stats.ready + stats.expired + stats.gone
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text and "task failed" not in caplog.text


async def test_end__of_the_controllers_daemon_while_it_probes(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async with probing(house, 3) as (daemons, _):
        await eventually(lambda: job_of(daemons[0]).probes.sent == 2, "two are asked")
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert any(name.startswith("controller") for name in names)
        for daemon in daemons:
            await house.stop(daemon)
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not [name for name in left if "controller" in name or "probe" in name], left
    assert "never retrieved" not in caplog.text and "task failed" not in caplog.text
