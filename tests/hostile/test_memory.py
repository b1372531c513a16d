# SPDX-License-Identifier: Apache-2.0
"""A user who wants all of a host's memory, or all of its jobs, sessions and places to attach, for nothing."""

from __future__ import annotations

import asyncio
import mmap
import os
import platform
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.daemon.conftest import folder, house  # noqa: F401
from tests.daemon.fake_engine import JOB_BYTES
from tests.daemon.helpers import House, Trainer, attach, connect_as, engine, eventually
from tests.daemon.jobs.test_jobs import refused
from ultima.daemon.process.server import Daemon
from ultima.daemon.trainers.attach import SILENT_MAX

CODE = grpc.StatusCode
GREEDY, OTHER = 65533, 65534

two_users = pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() != "x86_64", reason="needs root, to act as two other users, on x86_64"
)


async def limited(house: House, text: str) -> Daemon:  # noqa: F811
    (house.folder / "c.toml").write_text(f"allow_uids = [{GREEDY}, {OTHER}]\n[limits]\n{text}\n")
    daemon = await house.daemon(config=str(house.folder / "c.toml"))
    for path, mode in ((house.folder, 0o755), (daemon.config.runtime_dir, 0o755), (daemon.config.attach_socket, 0o666)):
        path.chmod(mode)
    return daemon


async def test_memory__of_the_engine_is_counted(house: House) -> None:  # noqa: F811
    """Jobs whose arenas are tiny and whose engine memory is not: as many as the budget holds, and not one more."""
    daemon = await limited(house, f"memory_bytes_per_uid = {3 * JOB_BYTES + (2 << 20)}")
    budget, uid = daemon.jobs._budget, os.geteuid()
    for number in range(3):
        await (await house.trainer(daemon)).join(job=f"job-{number}")
    assert budget.used >= 3 * JOB_BYTES and budget.used_by_uid[uid] == budget.used
    before = budget.used
    trainer = await house.trainer(daemon)
    code, text = await refused(trainer, job="one-more", bucket_bytes_max=12345)
    assert code is CODE.RESOURCE_EXHAUSTED, text
    for words in (f"limits.memory_bytes_per_uid = {3 * JOB_BYTES + (2 << 20)}", f"{JOB_BYTES} bytes asked", "are left",
                  "a smaller bucket_bytes_max (ULTIMA_BUCKET_MAX) than 12345, or a higher limit"):  # fmt: skip
        assert words in text
    trainer.hang_up()
    await eventually(lambda: budget.used == before, "nothing of it is left")
    assert len(engine(daemon).jobs) == 3
    for other in house.trainers:
        other.hang_up()
    await eventually(lambda: budget.used == 0, "all was given back")
    assert not budget.used_by_uid and not budget.used_by_job and not daemon.jobs.all()


async def test_memory__a_bucket_that_nobody_named_is_no_larger_than_the_arena(house: House) -> None:  # noqa: F811
    daemon = await limited(house, "")
    small = await (await house.trainer(daemon, 1 << 16)).join(job="small")
    large = await (await house.trainer(daemon, 1 << 30)).join(job="large")
    named = await (await house.trainer(daemon, 1 << 16)).join(job="named", bucket_bytes_max=1 << 30)
    assert [joined.bucket_bytes_max for joined in (small, large, named)] == [1 << 16, 128 << 20, 1 << 30]


async def test_memory__of_the_owner_whoever_joins(house: House) -> None:  # noqa: F811
    """An engine that refuses, with an error of its own or with one that nobody foresaw, leaves the budget as it was."""
    daemon = await limited(house, "")
    budget, fake = daemon.jobs._budget, engine(daemon)
    trainer = await house.trainer(daemon)
    before = budget.used

    def breaks(*anything: object) -> int:
        raise ZeroDivisionError("as the test wants it")

    for name in ("job_add", "session_add"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fake, name, breaks)
            code, _ = await refused(trainer)
            assert code is CODE.INTERNAL
        trainer.hang_up()
        await eventually(lambda: budget.used == 0, "the arena is given back")
        assert not daemon.jobs.all() and not fake.jobs and not budget.used_by_job
        trainer = await house.trainer(daemon)
        assert budget.used == before


async def test_memory__kept_by_descriptor_or_mapping_is_given_back(house: House) -> None:  # noqa: F811
    """What is free by the budget is free: whoever keeps a descriptor or a mapping keeps no page of the daemon's."""
    daemon = await limited(house, "")
    trainer = await house.trainer(daemon, 1 << 20)
    await trainer.join()
    memory = engine(daemon).sessions[0].memory
    for region in (memory.arena, memory.submissions, memory.completions):
        region.address[:] = b"x" * region.size
    files = [os.dup(trainer.answer.fds[at]) for at in (0, 2, 3)]
    mapped = mmap.mmap(files[0], 1 << 20)
    sizes = [os.fstat(file).st_size for file in files]
    assert [os.fstat(file).st_blocks * 512 for file in files] == sizes
    budget = daemon.jobs._budget
    trainer.hang_up()
    await eventually(lambda: budget.used == 0, "all was given back")
    assert [os.fstat(file).st_blocks for file in files] == [0, 0, 0]
    assert mapped[:] == bytes(1 << 20)
    mapped.close()
    for file in files:
        os.close(file)


async def test_memory__of_trainers_outlives_a_daemon_that_is_stopped(house: House) -> None:  # noqa: F811
    """Their arrays lie there, and they may give them to the next daemon."""
    daemon = await limited(house, "")
    trainer = await house.trainer(daemon, 1 << 20)
    arena = mmap.mmap(trainer.answer.fds[0], 1 << 20)
    arena[:] = b"x" * (1 << 20)
    await house.stop(daemon)
    assert arena[:] == b"x" * (1 << 20)
    arena.close()


@two_users
async def test_memory__one_user_cannot_have_all(house: House) -> None:  # noqa: F811
    daemon = await limited(house, 'memory_bytes = "64M"')
    taken: list[Trainer] = []
    while len(taken) < 64:
        connection, answer = await attach(daemon.config.attach_socket, {"v": 4, "arena_bytes": 4 << 20}, GREEDY)
        if "error" in answer.reply:
            connection.close()
            break
        taken.append(Trainer(connection, answer, daemon.config.socket))
    house.trainers += taken
    assert "limits.memory_bytes_per_uid = 50331648" in answer.reply["message"]
    assert 8 <= len(taken) <= 12
    await (await house.trainer(daemon, 4 << 20, uid=OTHER)).join()


@two_users
async def test_shares__of_jobs_sessions_and_attaching(house: House) -> None:  # noqa: F811
    daemon = await limited(house, "jobs = 4\nsessions = 8\nattaching = 4")
    for number in range(3):
        await (await house.trainer(daemon, uid=GREEDY)).join(job=f"greedy-{number}")
    code, text = await refused(await house.trainer(daemon, uid=GREEDY), job="greedy-3")
    assert code is CODE.RESOURCE_EXHAUSTED and f"limits.jobs_per_uid = 3: of uid {GREEDY}, that many jobs" in text
    await (await house.trainer(daemon, uid=OTHER)).join(job="other")

    idle = [await house.trainer(daemon, uid=GREEDY) for _ in range(2)]  # and one that was just refused
    connection, answer = await attach(daemon.config.attach_socket, {"v": 4, "arena_bytes": 4096}, GREEDY)
    connection.close()
    assert f"limits.attaching_per_uid = 3: of uid {GREEDY}, that many processes" in answer.reply["message"]
    (await house.trainer(daemon, uid=OTHER)).hang_up()
    for trainer in idle:
        trainer.hang_up()


@two_users
async def test_shares__of_sessions(house: House) -> None:  # noqa: F811
    daemon = await limited(house, "sessions = 4")
    three = [await house.trainer(daemon, uid=GREEDY) for _ in range(3)]
    await asyncio.gather(*(trainer.join(rank, 3, job="greedy") for rank, trainer in enumerate(three)))
    code, text = await refused(await house.trainer(daemon, uid=GREEDY), job="more")
    assert code is CODE.RESOURCE_EXHAUSTED
    assert f"limits.sessions_per_uid = 3: of uid {GREEDY}, that many trainers" in text
    assert [job.name for job in daemon.jobs.all()] == ["greedy"]
    await (await house.trainer(daemon, uid=OTHER)).join(job="other")


@two_users
async def test_shares__of_connections_that_say_nothing(house: House) -> None:  # noqa: F811
    daemon = await limited(house, "hello_seconds = 60")
    silent = [connect_as(daemon.config.attach_socket, GREEDY)]
    silent += [await in_turn(daemon.config.attach_socket) for _ in range(SILENT_MAX + 20)]
    await (await house.trainer(daemon, uid=OTHER)).join()
    for connection in silent:
        connection.close()


async def in_turn(path: Path) -> socket.socket:
    """One more, which the daemon gets to see before the next."""
    await asyncio.sleep(0)
    return connect_as(path, GREEDY)
