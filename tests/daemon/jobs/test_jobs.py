# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving jobs over real sockets, with engines that keep the books."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.fake_engine import JOB_BYTES
from tests.daemon.helpers import House, Trainer, engine, eventually, rendezvous, status, wired
from ultima.daemon.engine.engine import EventKind, Status
from ultima.daemon.jobs import table
from ultima.v1 import trainer_pb2, types_pb2

CODE = grpc.StatusCode


async def refused(trainer: Trainer, *args: Any, **fields: Any) -> tuple[grpc.StatusCode, str]:
    """Joins, expects to be refused, and returns how."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await trainer.join(*args, **fields)
    return caught.value.code(), caught.value.details() or ""


async def test_join__alone(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    joined = await trainer.join()
    assert [list(host.ranks) for host in joined.hosts] == [[0]]
    assert (joined.host_index, joined.next_op_seq, joined.session) == (0, 0, 0)
    assert joined.bucket_bytes_max == 65536, "no more than lies in its arena"
    config = engine(daemon).jobs[0].config
    assert (config.hosts, config.self_index, config.local_ranks, config.world) == (1, 0, 1, 1)
    session = engine(daemon).sessions[0]
    assert session.memory.arena.size == trainer.answer.reply["arena_bytes"]


async def test_join__four_hosts_are_wired(house: House) -> None:
    daemons = [await house.daemon() for _ in range(4)]
    trainers = await house.job(daemons, bucket_bytes_max=12345)
    hosts = trainers[0].joined.hosts
    assert [list(host.ranks) for host in hosts] == [[0], [1], [2], [3]]
    assert [host.grpc_port for host in hosts] == [daemon.grpc_port for daemon in daemons]
    assert {host.state for host in hosts} == {types_pb2.HOST_STATE_UP}
    assert [t.joined.host_index for t in trainers] == [0, 1, 2, 3]
    assert wired(daemons)
    for daemon in daemons:
        assert engine(daemon).jobs[0].config.bucket_bytes_max == 12345
        assert all(path.connects == 1 for path in engine(daemon).jobs[0].paths.values())


async def test_join__several_ranks_on_a_host(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    where = [1, 0, 0, 1, 0]
    trainers = [await house.trainer(daemons[at]) for at in where]
    await asyncio.gather(*(t.join(r, 5, rendezvous=rendezvous(daemons[0])) for r, t in enumerate(trainers)))
    hosts = trainers[0].joined.hosts
    assert [list(host.ranks) for host in hosts] == [[0, 3], [1, 2, 4]]
    assert [t.joined.host_index for t in trainers] == [0, 1, 1, 0, 1]
    assert len(engine(daemons[0]).sessions) == 3 and len(engine(daemons[1]).sessions) == 2
    assert engine(daemons[0]).jobs[0].config.local_ranks == 3
    assert {t.joined.session for t, at in zip(trainers, where, strict=True) if at == 0} == {0, 1, 2}
    assert wired([daemons[1], daemons[0]])


async def test_join__nobody_returns_before_all_local_ranks_are_in(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the engine would start the first op without those that are still on their way."""
    daemon = await house.daemon()
    register = daemon.jobs._register

    async def slow_for_one(job: Any, spec: Any, deadline: float) -> Any:
        membership = await register(job, spec, deadline)
        await asyncio.sleep(0.2 if spec.rank == 1 else 0)
        return membership

    monkeypatch.setattr(daemon.jobs, "_register", slow_for_one)
    trainers = [await house.trainer(daemon) for _ in range(3)]
    seen: list[int] = []

    async def one(rank: int) -> None:
        await trainers[rank].join(rank, 3)
        seen.append(len(engine(daemon).sessions))

    await asyncio.gather(*(one(rank) for rank in range(3)))
    assert seen == [3, 3, 3]


async def test_join__several_jobs_at_once(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await asyncio.gather(*(house.job(daemons, f"job-{i}", rate_bytes_per_s=1000 * (i + 1)) for i in range(3)))
    rates = sorted(job.config.rate_bytes_per_s for job in engine(daemons[0]).jobs.values())
    assert rates == [1000, 2000, 3000]
    for daemon in daemons:
        assert sorted(job.job for job in (await status(daemon)).jobs) == ["job-0", "job-1", "job-2"]
    one = await status(daemons[1], "job-1")
    assert [job.job for job in one.jobs] == ["job-1"]


async def test_join__by_rank_addresses(house: House) -> None:
    daemons = [await house.daemon() for _ in range(3)]
    addresses = [rendezvous(daemon) for daemon in daemons]
    await house.job(daemons, rendezvous="", rank_addresses=addresses)
    assert wired(daemons)


async def test_join__over_ipv6(house: House) -> None:
    daemons = [await house.daemon(bind="::1") for _ in range(2)]
    trainers = await house.job(daemons, rendezvous=f"[::1]:{daemons[0].grpc_port}")
    assert [host.address for host in trainers[1].joined.hosts] == ["::1", "::1"]
    assert wired(daemons)


async def test_join__wildcard_bind_learns_its_address(house: House) -> None:
    daemons = [await house.daemon(bind="0.0.0.0", insecure=True) for _ in range(2)]
    trainers = await house.job(daemons, rendezvous=f"127.0.0.1:{daemons[0].grpc_port}")
    assert [host.address for host in trainers[1].joined.hosts] == ["127.0.0.1", "127.0.0.1"]
    assert wired(daemons)


async def test_join__proxy_of_the_web_is_not_used(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    daemons = [await house.daemon() for _ in range(2)]
    await house.job(daemons)
    assert wired(daemons)


async def test_join__rendezvous_may_come_later(house: House) -> None:
    early = await house.daemon()
    late = await house.daemon()
    where = rendezvous(late)
    port = late.grpc_port
    await house.stop(late)
    first = await house.trainer(early)
    joining = asyncio.ensure_future(first.join(1, 2, rendezvous=where))
    await asyncio.sleep(0.5)
    assert not joining.done()
    late = await house.daemon(port=str(port))
    second = await house.trainer(late)
    await second.join(0, 2, rendezvous=where)
    await joining
    assert wired([late, early])


async def test_join__rendezvous_that_never_comes(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    code, text = await refused(trainer, 1, 2, rendezvous="127.0.0.1:1", timeout=1.5)
    assert code is CODE.DEADLINE_EXCEEDED and "rendezvous 127.0.0.1:1: cannot be reached" in text
    await eventually(lambda: not daemon.jobs.all(), "no job is left")


async def test_join__missing_ranks_are_named(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = [await house.trainer(daemon) for daemon in daemons]
    results = await asyncio.gather(
        *(
            refused(t, r, 4, rendezvous=rendezvous(daemons[0]), timeout=1.5)
            for r, t in ((0, trainers[0]), (3, trainers[1]))
        )
    )
    for code, text in results:
        assert code is CODE.DEADLINE_EXCEEDED and "ranks 1-2 of world_size 4 have not joined" in text
    for daemon in daemons:
        await eventually(lambda d=daemon: not d.jobs.all(), "no job is left")  # type: ignore[misc]
        assert not engine(daemon).jobs and not engine(daemon).sessions


async def test_join__world_size_differs(house: House) -> None:
    daemons = [await house.daemon() for _ in range(3)]
    trainers = [await house.trainer(daemon) for daemon in daemons]
    sizes = [3, 3, 4]
    results = await asyncio.gather(
        *(refused(t, r, sizes[r], rendezvous=rendezvous(daemons[0])) for r, t in enumerate(trainers))
    )
    for code, text in results:
        assert code is CODE.FAILED_PRECONDITION
        assert re.search("world_size differs: rank (2 says 4, rank [01] says 3|[01] says 3, rank 2 says 4)", text), text


@pytest.mark.parametrize(
    ("fields", "code", "names"),
    [
        ({"job": ""}, CODE.INVALID_ARGUMENT, "job = ''"),
        ({"job": "x" * 129}, CODE.INVALID_ARGUMENT, "allowed: 1 to 128 printable characters"),
        ({"job": "a\nb"}, CODE.INVALID_ARGUMENT, r"job = 'a\nb'"),
        ({"world_size": 0}, CODE.INVALID_ARGUMENT, "world_size = 0"),
        ({"world_size": 1025}, CODE.INVALID_ARGUMENT, "world_size = 1025"),
        ({"rank": 1}, CODE.INVALID_ARGUMENT, "rank = 1: allowed: 0 to 0"),
        ({"rank": -1}, CODE.INVALID_ARGUMENT, "rank = -1"),
        ({"bucket_bytes_max": -1}, CODE.INVALID_ARGUMENT, "bucket_bytes_max = -1"),
        ({"bucket_bytes_max": 2**40}, CODE.RESOURCE_EXHAUSTED, "limits.bucket_bytes"),
        ({"rate_bytes_per_s": -1}, CODE.INVALID_ARGUMENT, "rate_bytes_per_s = -1"),
        ({"rendezvous": "nowhere"}, CODE.INVALID_ARGUMENT, "rendezvous = 'nowhere'"),
        ({"rendezvous": "h:0"}, CODE.INVALID_ARGUMENT, "rendezvous = 'h:0'"),
        ({"rendezvous": "[::1:3"}, CODE.INVALID_ARGUMENT, "rendezvous"),
        ({"rank_addresses": ["127.0.0.1:1", "b"]}, CODE.INVALID_ARGUMENT, "rank_addresses: 2 entries"),
        ({"rank_addresses": ["b"]}, CODE.INVALID_ARGUMENT, "rank_addresses[0] = 'b'"),
        ({"rank_addresses": ["127.0.0.1:1"]}, CODE.INVALID_ARGUMENT, "listens on port"),
        ({"rank_addresses": ["a:1"], "rendezvous": "a:1"}, CODE.INVALID_ARGUMENT, "allowed: one of them"),
    ],
)
async def test_join__bad_fields(house: House, fields: dict[str, Any], code: grpc.StatusCode, names: str) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    got, text = await refused(trainer, **fields)
    assert got is code and names in text, text
    assert not daemon.jobs.all()


async def test_join__ticket_is_good_once(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    assert (await refused(trainer, world_size=0))[0] is CODE.INVALID_ARGUMENT
    assert (await refused(trainer))[0] is CODE.UNAUTHENTICATED
    other = await house.trainer(daemon)
    await other.join()
    assert (await refused(other, job="another"))[0] is CODE.UNAUTHENTICATED
    third = await house.trainer(daemon)
    third.answer.reply["ticket"] = "0" * 32
    assert (await refused(third))[0] is CODE.UNAUTHENTICATED


async def test_join__rank_is_taken(house: House) -> None:
    daemon = await house.daemon()
    await (await house.trainer(daemon)).join()
    code, text = await refused(await house.trainer(daemon))
    assert code is CODE.ALREADY_EXISTS and "rank = 0: already runs in job 'job' on this host" in text


async def test_join__rank_is_on_another_host(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    code, text = await refused(await house.trainer(daemons[0]), 1, 2, rendezvous=rendezvous(daemons[0]))
    assert code is CODE.ALREADY_EXISTS and "rank = 1: has its place in job 'job' on host 1" in text


async def test_join__restarted_rank_with_another_world_size(house: House) -> None:
    daemon = await house.daemon()
    pair = [await house.trainer(daemon) for _ in range(2)]
    await asyncio.gather(*(t.join(r, 2) for r, t in enumerate(pair)))
    pair[1].hang_up()
    await eventually(lambda: len(engine(daemon).sessions) == 1, "one session fewer")
    code, text = await refused(await house.trainer(daemon), 1, 3)
    assert code is CODE.FAILED_PRECONDITION and "rank 1 says 3, the job that is under way has 2" in text


async def test_join__limits_of_jobs_sessions_and_memory(house: House) -> None:
    (house.folder / "c.toml").write_text(
        f'[limits]\njobs = 2\nsessions = 6\nmemory_bytes_per_job = {JOB_BYTES + (1 << 20)}\narena_bytes = "64M"\n'
    )
    daemon = await house.daemon(config=str(house.folder / "c.toml"))
    code, text = await refused(await house.trainer(daemon, 2 << 20), job="big")
    assert code is CODE.RESOURCE_EXHAUSTED and "limits.memory_bytes_per_job" in text and "'big'" in text
    assert not engine(daemon).jobs
    await (await house.trainer(daemon)).join(job="a")
    pair = [await house.trainer(daemon) for _ in range(2)]
    await asyncio.gather(*(t.join(r, 2, job="b") for r, t in enumerate(pair)))
    code, text = await refused(await house.trainer(daemon), job="c")
    assert code is CODE.RESOURCE_EXHAUSTED and "limits.jobs = 2" in text
    pair[0].hang_up()
    await eventually(lambda: len(engine(daemon).sessions) == 2, "one session fewer")
    await (await house.trainer(daemon)).join(0, 2, job="b")
    assert len(engine(daemon).sessions) == 3


async def test_join__engine_that_refuses_leaves_nothing_behind(house: House) -> None:
    daemon = await house.daemon()
    engine(daemon).fail_session_add = True
    code, text = await refused(await house.trainer(daemon))
    assert code is CODE.RESOURCE_EXHAUSTED and "as the test wants it" in text
    assert not daemon.jobs.all() and not engine(daemon).jobs
    engine(daemon).fail_session_add = False
    await (await house.trainer(daemon)).join()


async def test_join__trainer_dies_while_it_waits(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = [await house.trainer(daemon) for daemon in daemons]
    waiting = asyncio.ensure_future(trainers[1].join(1, 3, rendezvous=rendezvous(daemons[0])))
    await eventually(lambda: bool(daemons[0]._coordinator._forming), "it waits")
    assert daemons[1].jobs.all()
    trainers[1].hang_up()
    with pytest.raises(grpc.aio.AioRpcError):
        await waiting
    await eventually(lambda: not daemons[1].jobs.all(), "no job is left")
    await eventually(lambda: not daemons[0]._coordinator._forming, "the coordinator knows")
    code, text = await refused(trainers[0], 0, 3, rendezvous=rendezvous(daemons[0]), timeout=1.5)
    assert code is CODE.DEADLINE_EXCEEDED and "ranks 1-2 of" in text


async def test_leave__gives_everything_back(house: House) -> None:
    daemon = await house.daemon()
    trainer = await house.trainer(daemon)
    await trainer.join()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        trainer.joined.session = 7
        await trainer.leave()
    assert caught.value.code() is CODE.NOT_FOUND
    trainer.joined.session = 0
    await trainer.leave()
    assert engine(daemon).removed_sessions == [0]
    assert not engine(daemon).jobs and not daemon.jobs.all()
    await eventually(lambda: not engine(daemon).regions, "memory is unmapped")


async def test_leave__then_the_name_is_used_again(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    generations = []
    for _ in range(3):
        trainers = await house.job(daemons)
        assert all(t.joined.next_op_seq == 0 for t in trainers)
        generations.append((await status(daemons[0])).jobs[0].generation)
        await asyncio.gather(*(t.leave() for t in trainers))
    assert len(set(generations)) == 3


async def test_leave__fast_rank_waits_for_the_next_life(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    slow, fast = await house.job(daemons)
    await fast.leave()
    again = await house.trainer(daemons[1])
    joining = asyncio.ensure_future(again.join(1, 2, rendezvous=rendezvous(daemons[0])))
    await asyncio.sleep(0.3)
    assert not joining.done()
    await slow.leave()
    await (await house.trainer(daemons[0])).join(0, 2, rendezvous=rendezvous(daemons[0]))
    assert (await joining).next_op_seq == 0
    assert wired(daemons)


async def test_leave__rank_that_died_may_come_back_while_its_host_stays(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = [await house.trainer(daemons[at]) for at in (0, 1, 1)]
    await asyncio.gather(*(t.join(r, 3, rendezvous=rendezvous(daemons[0])) for r, t in enumerate(trainers)))
    trainers[1].hang_up()
    await eventually(lambda: len(engine(daemons[1]).sessions) == 1, "it is dead")
    await trainers[2].leave()
    assert not engine(daemons[1]).sessions and engine(daemons[1]).jobs
    back = await house.trainer(daemons[1])
    await back.join(1, 3, rendezvous=rendezvous(daemons[0]))
    await asyncio.sleep(0.2)
    assert len(engine(daemons[1]).sessions) == 1 and engine(daemons[0]).path(0, 1).absences == 0


async def test_death__slots_are_back_at_once(house: House) -> None:
    daemons = [await house.daemon() for _ in range(3)]
    trainers = await house.job(daemons)
    trainers[1].hang_up()
    assert await eventually(lambda: engine(daemons[1]).removed_sessions == [0], "the session is removed") < 5.0
    assert await eventually(lambda: not engine(daemons[1]).jobs, "the job is removed") < 5.0
    took = await eventually(
        lambda: all(not engine(d).path(0, 1).up for d in (daemons[0], daemons[2])), "the others know"
    )
    assert took < 5.0
    rows = (await status(daemons[0])).jobs[0].hosts
    assert [row.state for row in rows] == [
        types_pb2.HOST_STATE_UP,
        types_pb2.HOST_STATE_ABSENT,
        types_pb2.HOST_STATE_UP,
    ]


async def test_death__host_stays_for_a_moment_while_others_may_miss_packets_of_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last op may be complete here and not there. Who comes back meanwhile finds the place as it was."""
    monkeypatch.setattr(table, "MOURN_SECONDS", 1.2)
    daemons = [await house.daemon(), await house.daemon()]
    trainers = await house.job(daemons)
    trainers[1].hang_up()
    await eventually(lambda: engine(daemons[1]).removed_sessions == [0], "nothing touches its memory")
    await asyncio.sleep(0.2)
    assert engine(daemons[1]).jobs and engine(daemons[0]).path(0, 1).up
    back = await house.trainer(daemons[1])
    await back.join(1, 2, rendezvous=rendezvous(daemons[0]))
    await asyncio.sleep(1.4)
    assert len(engine(daemons[1]).sessions) == 1 and engine(daemons[0]).path(0, 1).absences == 0
    back.hang_up()
    await eventually(lambda: not engine(daemons[1]).jobs, "the host is free")
    await eventually(lambda: not engine(daemons[0]).path(0, 1).up, "the other one does not wait for it")


async def test_death__one_of_two_ranks_leaves_the_host_up(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    trainers = [await house.trainer(daemons[at]) for at in (0, 0, 1)]
    await asyncio.gather(*(t.join(r, 3, rendezvous=rendezvous(daemons[0])) for r, t in enumerate(trainers)))
    engine(daemons[0]).jobs[0].next_op_seq = 17
    trainers[0].hang_up()
    await eventually(lambda: len(engine(daemons[0]).sessions) == 1, "its session is gone")
    await asyncio.sleep(0.2)
    assert engine(daemons[1]).path(0, 0).up and engine(daemons[1]).path(0, 0).absences == 0
    back = await house.trainer(daemons[0])
    joined = await back.join(0, 3, rendezvous=rendezvous(daemons[0]))
    assert joined.next_op_seq == 17 and joined.host_index == 0
    assert sorted(s.first_op_seq for s in engine(daemons[0]).sessions.values()) == [0, 17]
    assert engine(daemons[0]).path(0, 1).connects == 1


async def test_status__waits_for_the_engine_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy engine lets a caller in once a turn; with a call per job and host the answer would take as many turns."""
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    fake = engine(daemons[0])
    asked: list[int] = []
    monkeypatch.setattr(fake, "next_op_seq", asked.append)
    before = fake.snapshots
    assert len((await status(daemons[0])).jobs[0].hosts) == 2
    assert not asked and fake.snapshots == before + 1


async def test_status__shows_ops_hosts_and_limits(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    await house.job(daemons)
    fake = engine(daemons[0])
    for elapsed_us in range(1, 101):
        fake.op_done(0, elapsed_ns=elapsed_us * 1000)
    fake.op_done(0, Status.PARTIAL, 1_000_000, 500)
    fake.op_done(0, Status.FAILED, 1_000_000)
    fake.emit(EventKind.DESYNC, 0, host=1, a=1, b=1, c=2)
    fake.emit(EventKind.BAD_SUBMISSION, 0, session=0, a=9)
    fake.emit(EventKind.VIOLATION, 0, host=1)
    fake.emit(EventKind.PATH, 0, host=1, a=1)
    there_now = struct.unpack("=4Q", struct.pack("=H", socket.AF_INET) + bytes([4, 210, 192, 0, 2, 7]) + bytes(24))
    fake.emit(EventKind.PATH_MOVED, 0, host=1, a=1, **dict(zip("bcde", there_now, strict=True)))
    await eventually(lambda: fake.events_waiting == 0 and wired(daemons), "events are drained, and the path is new")
    answer = await status(daemons[0])
    job = answer.jobs[0]
    assert (job.ops_complete_count, job.ops_partial_count, job.ops_failed_count) == (100, 1, 1)
    assert (job.missing_bytes, job.op_p50_us, job.op_p99_us, job.next_op_seq) == (500, 51, 1000, 102)
    assert job.hosts[1].window_bytes == 64 << 10
    assert job.hosts[1].srtt_us == 1500 and job.hosts[1].state == types_pb2.HOST_STATE_UP
    assert job.hosts[1].violations_count == 1 and job.hosts[1].quarantine_s == 0
    assert job.hosts[0].state == types_pb2.HOST_STATE_UP and list(job.hosts[0].host.ranks) == [0]
    there = f"{job.hosts[1].host.address}:{job.hosts[1].host.grpc_port}"
    events = {event.kind: event for event in daemons[0].jobs.recorder.events.after(0)}
    assert {events[kind].host for kind in ("host_up", "desync", "protocol_violated", "path_changed")} == {there}
    assert f"dtype is float32 here and float64 on host 1 ({there})" in events["desync"].text
    assert all(f"host 1 ({there})" in events[kind].text for kind in ("host_up", "protocol_violated", "path_changed"))
    assert events["path_moved"].text == f"feedback of host 1 ({there}) of job job is at 192.0.2.7:1234 now"
    assert (events["rank_joined"].rank, events["rank_joined"].host, events["host_up"].rank) == (0, "", None)
    assert answer.version == "1.2.3" and answer.engine.simd == "plain" and answer.incarnation
    assert answer.limits["limits.jobs"] == 16 and answer.limits["hosts_per_job"] == 64
    assert answer.engine.counters["oldest_open_ns"] == 0  # never, as no op is open
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await status(daemons[0], "nope")
    assert caught.value.code() is CODE.NOT_FOUND


async def test_join__many_ranks_many_hosts(house: House) -> None:
    daemons = [await house.daemon() for _ in range(6)]
    trainers = [await house.trainer(daemons[rank % 6]) for rank in range(18)]
    await asyncio.gather(
        *(t.join(r, 18, rendezvous=rendezvous(daemons[0]), timeout=30) for r, t in enumerate(trainers))
    )
    assert wired(daemons)
    assert all(len(engine(daemon).sessions) == 3 for daemon in daemons)
    joined: trainer_pb2.JoinJobResponse = trainers[17].joined
    assert [list(h.ranks) for h in joined.hosts] == [[r, r + 6, r + 12] for r in range(6)]


async def test_join__tells_which_forms_of_few_bits_each_host_knows(house: House) -> None:
    daemons = [await house.daemon(), await house.daemon()]
    engine(daemons[1]).wires = ("int16", "int2")
    trainers = await house.job(daemons)
    for trainer in trainers:
        assert trainer.joined is not None
        assert [" ".join(host.wires) for host in trainer.joined.hosts] == ["int16 int8 int4 down_int8", "int16 int2"]
