# SPDX-License-Identifier: Apache-2.0
"""The real engine behind the same face, and the whole way: real daemons, real trainers, real datagrams on loopback."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ultima
from tests.daemon.fake_engine import FakeEngine
from tests.daemon.helpers import ChildDaemon, House, rendezvous, status
from tests.daemon.observe.test_recorder import receipts
from tests.e2e.hosts import free_port
from ultima._native import ffi, lib
from ultima.cli.explain import decoded
from ultima.daemon.base.config import BUCKET_BYTES_UNSAID, Limits
from ultima.daemon.base.errors import InvalidArgument, NotFound, Refused, ResourceExhausted, StartupError
from ultima.daemon.base.options import Options
from ultima.daemon.engine.engine import NEVER, Engine, EngineConfig, JobConfig, NativeEngine, SessionMemory
from ultima.daemon.engine.structs import job_config
from ultima.daemon.observe.progress import judge
from ultima.daemon.trainers.memory import create_memfd, make_bell

JOB = JobConfig(
    hosts=2,
    self_index=0,
    local_ranks=1,
    packet_bytes=1472,
    world=2,
    bucket_bytes_max=1 << 20,
    rate_bytes_per_s=0,
    first_op_seq=0,
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    native = NativeEngine(EngineConfig("127.0.0.1"))
    yield native
    native.close()


def test_face__fake_and_native_are_the_same() -> None:
    wanted = {name for name in vars(Engine) if not name.startswith("_")}
    for kind in (NativeEngine, FakeEngine):
        for name in wanted:
            here, there = inspect.getattr_static(kind, name), inspect.getattr_static(Engine, name)
            if isinstance(there, property):
                assert isinstance(here, property), (kind, name)
            else:
                assert list(inspect.signature(here).parameters) == list(inspect.signature(there).parameters), (
                    kind,
                    name,
                )


def test_info__what_was_granted(engine: Engine) -> None:
    info = engine.info
    assert 0 < info.data_port != info.feedback_port > 0
    assert info.packet_bytes == 1472 and info.receive_buffer_bytes > 0
    assert info.simd in ("plain", "avx2", "avx512", "neon")
    assert info.submission_bytes > 64 * 64 and info.completion_bytes > 64 * 2048
    assert abs(engine.now() - time.monotonic_ns()) < 10**9


def test_stats__have_what_progress_needs(engine: Engine) -> None:
    stats = engine.stats()
    assert {"progress", "oldest_open_ns", "oldest_deadline_ns", "data_sent", "cpu_ns", "allocations"} <= stats.keys()
    assert stats["oldest_open_ns"] == NEVER and judge(engine.now(), stats).well


def test_open__port_in_use_is_one_sentence() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(StartupError) as caught:
            NativeEngine(EngineConfig("127.0.0.1", data_port=port))
    assert str(port) in str(caught.value) and "\n" not in str(caught.value)


def test_job__life_and_errors(engine: Engine) -> None:
    assert engine.job_bytes(JOB) > JOB.bucket_bytes_max
    number = engine.job_add(JOB)
    assert engine.next_op_seq(number) == 0
    cid = engine.peer_listen(number, 1)
    assert cid != engine.peer_listen(number, 1)
    engine.peer_connect(number, 1, "127.0.0.1", 1234, 1235, 99)
    now = engine.snapshot()
    assert now.jobs.keys() == {number} and [peer.up for peer in now.jobs[number].peers] == [False, True]
    assert now.jobs[number].next_op_seq == 0
    engine.peer_absent(number, 1)
    now = engine.snapshot()
    assert [peer.up for peer in now.jobs[number].peers] == [False, False]
    assert now.info == engine.info and now.stats.keys() == engine.stats().keys()
    for call in (
        lambda: engine.peer_listen(number, 0),
        lambda: engine.peer_listen(number, 2),
        lambda: engine.peer_listen(number + 1, 1),
        lambda: engine.job_remove(number + 1),
        lambda: engine.session_remove(5),
        lambda: engine.peer_connect(number, 1, "not an address", 1, 2, 3),
        lambda: engine.job_add(JobConfig(**{**{f: getattr(JOB, f) for f in JOB.__slots__}, "hosts": 65})),
    ):
        with pytest.raises((NotFound, InvalidArgument)) as caught:
            call()
        assert str(caught.value)
    engine.job_remove(number)
    with pytest.raises(Refused):
        engine.next_op_seq(number)
    assert not engine.snapshot().jobs


def test_job_config__every_option_reaches_its_field() -> None:
    options = Options(policy=5, quorum=3, probes=4, tau=255, eta=6, policy_seed=2**64 - 1, t_b_ns=-1, incast=2)
    config = replace(JOB, hosts=3, world=7, ranks_of=(1, 2, 4), options=options)
    raw = job_config(ffi, lib, config)
    assert list(raw.ranks_of) == [1, 2, 4] + [0] * 61 and (raw.hosts, raw.world, raw.local_ranks) == (3, 7, 1)
    for name in ("policy", "quorum", "probes", "tau", "eta", "policy_seed", "incast"):
        assert getattr(raw.options, name) == getattr(options, name), name
    assert raw.options.t_b_ns == NEVER and raw.options.algorithm == 1


def test_job__limit_is_named(engine: Engine) -> None:
    numbers = [engine.job_add(JOB) for _ in range(16)]
    with pytest.raises(ResourceExhausted):
        engine.job_add(JOB)
    for number in numbers:
        engine.job_remove(number)


def test_job_bytes__of_common_jobs_fit_the_default_limits(engine: Engine) -> None:
    """Of one user, with arenas of 256 MiB: three jobs of two lanes with 8 ranks on each of 64 hosts, and 4 GiB more."""
    limits, arena = Limits(), 256 << 20
    common = replace(JOB, hosts=64, local_ranks=8, world=512, bucket_bytes_max=BUCKET_BYTES_UNSAID)
    assert 3 * (2 * engine.job_bytes(common) + 8 * arena) + (4 << 30) <= limits.share("memory_bytes")
    alone = replace(common, hosts=1, world=8)
    assert 11 * 2 * engine.job_bytes(alone) < limits.share("memory_bytes") // 2


def test_picks__of_seed_42(engine: Engine) -> None:
    assert [engine.picks(42, op, 8, 1)[0] for op in range(16)] == [5, 0, 2, 4, 5, 6, 3, 3, 4, 0, 3, 3, 1, 4, 3, 4]
    assert [engine.picks(42, op, 8, 2) for op in range(4)] == [(5, 7), (0, 2), (2, 7), (4, 1)]
    assert sorted(engine.picks(7, 3, 40, 40)) == list(range(40))
    with pytest.raises(ValueError, match="n 9: must be 0 to world, which is 8"):
        engine.picks(42, 0, 8, 9)


def test_activate__says_why_not(engine: Engine) -> None:
    job = engine.job_add(replace(JOB, options=Options(policy=6)))
    with pytest.raises(Refused, match="op 1 of job 0: is not the next one here"):
        engine.activate(job, 1)
    with pytest.raises(Refused, match="op 0 of job 0: no rank of this host has given anything for it"):
        engine.activate(job, 0)


def test_region__only_what_is_there(engine: Engine) -> None:
    fd = create_memfd("test", 8192)
    try:
        region = engine.region_map(fd, 8192)
        engine.region_unmap(region, discard=True)
        for size in (0, 16384):
            with pytest.raises(Refused):
                engine.region_map(fd, size)
    finally:
        os.close(fd)


def test_session__more_than_local_ranks(engine: Engine) -> None:
    number = engine.job_add(JOB)
    sizes = (engine.info.submission_bytes, engine.info.completion_bytes, 65536)
    fds = [create_memfd("test", size) for size in sizes]
    regions = [engine.region_map(fd, size) for fd, size in zip(fds, sizes, strict=True)]
    bells = [os.eventfd(0, os.EFD_NONBLOCK), *make_bell()]
    memory = SessionMemory(*regions, *bells[:2])
    session = engine.session_add(number, memory, 0)
    with pytest.raises(ResourceExhausted):
        engine.session_add(number, memory, 0)
    engine.session_remove(session)
    assert engine.session_add(number, memory, 0) == session
    engine.job_remove(number)
    for region in regions:
        engine.region_unmap(region, discard=True)
    for fd in (*fds, *bells):
        os.close(fd)


# ---- the whole way ----


class Native(ChildDaemon):
    """`ultimad` as it is shipped, in a process of its own."""

    module = "ultima.daemon.process.main"


async def natives(house: House, count: int, anew: bool = False) -> list[Native]:
    """Daemons on ports that stay theirs when they are killed and started again."""
    daemons = []
    for i in range(count):
        daemons.append(await Native.start(house.folder / f"n{i}", free_port(), anew=anew))
        house.children.append(daemons[-1])
    return daemons


async def together(*calls: Callable[[], Any]) -> list[Any]:
    """Runs blocking calls in threads of their own, as ranks in processes would."""
    return list(await asyncio.gather(*(asyncio.to_thread(call) for call in calls)))


def connect(daemon: ChildDaemon, rank: int, world_size: int, where: str, **more: Any) -> ultima.Job:
    return ultima.connect(
        job="native",
        rank=rank,
        world_size=world_size,
        socket=daemon.config.socket,
        rendezvous=where,
        arena="16M",
        timeout=20,
        **more,
    )


async def reduce(jobs: list[ultima.Job], value: float, size: int = 50_000, deadline: float = 10.0) -> list[Any]:
    """One op of all `jobs`; rank r gives value + r. Returns (array, receipt or error) of each."""

    def one(job: ultima.Job) -> tuple[Any, Any]:
        array = np.full(size, value + job.rank, np.float32)
        try:
            return array, job.allreduce(array, op="avg", deadline=deadline)
        except ultima.UltimaError as error:
            return array, error

    return await together(*(lambda job=job: one(job) for job in jobs))  # type: ignore[misc]


@pytest.mark.parametrize("per_host", [1, 2])
async def test_whole_way__average_over_daemons(house: House, per_host: int) -> None:
    daemons = await natives(house, 3)
    where, world = rendezvous(daemons[0]), 3 * per_host
    jobs = await together(*(lambda r=r: connect(daemons[r % 3], r, world, where) for r in range(world)))  # type: ignore[misc]
    for step in range(5):
        for array, receipt in await reduce(jobs, step):
            assert receipt.complete, receipt
            assert np.all(array == np.float32(step + (world - 1) / 2)), array[:4]
    answer = await status(daemons[1])  # type: ignore[arg-type]
    assert answer.jobs[0].ops_complete_count == 5 and answer.jobs[0].op_p50_us > 0
    assert answer.engine.counters["malformed"] == 0 and answer.engine.counters["allocations"] == 0
    assert answer.engine.counters["replicas_differ"] == 0 and answer.jobs[0].ops_diverged_count == 0
    recorded = await receipts(daemons[1], op_seq=3)  # type: ignore[arg-type]
    assert [row.op_seq for row in recorded.receipts] == [3] and recorded.running
    await together(*(job.close for job in jobs))
    await eventually_async(lambda: no_jobs(daemons), "no job is left anywhere")
    recorded = await receipts(daemons[1])  # type: ignore[arg-type]
    assert [row.op_seq for row in recorded.receipts] == [4] and not recorded.running
    told, _, here = decoded(recorded)
    assert told.complete and here == 1 and told.peers[0].opened_s is not None
    # Every host told every other of the ops before the last: nobody had to be asked.
    assert told.agreed_op is not None and told.agreed_op <= 3 and told.differ == ()


async def no_jobs(daemons: list[Native]) -> bool:
    return not any([(await status(daemon)).jobs for daemon in daemons])  # type: ignore[arg-type]


async def eventually_async(predicate: Callable[[], Any], what: str, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not await predicate():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)


async def test_whole_way__last_op_is_whole_although_ranks_leave_at_once(house: House) -> None:
    """A rank that has its result may leave while others still miss packets of it: its host stays for them."""
    daemons = await natives(house, 2)
    where = rendezvous(daemons[0])
    for _ in range(10):
        jobs = await together(*(lambda r=r: connect(daemons[r], r, 2, where) for r in range(2)))  # type: ignore[misc]

        def last(job: ultima.Job) -> tuple[Any, Any]:
            array = np.full(700_000, job.rank, np.float32)
            with job:
                return array, job.allreduce(array, deadline=10)

        for array, receipt in await together(*(lambda job=job: last(job) for job in jobs)):  # type: ignore[misc]
            assert receipt.complete, receipt
            assert np.all(array == 0.5)


async def test_whole_way__idle_daemon_is_small(house: House) -> None:
    (daemon,) = await natives(house, 1, anew=True)
    text = Path(f"/proc/{daemon.process.pid}/status").read_text()
    resident_kb = int(text.split("VmRSS:")[1].split()[0])
    assert resident_kb < 80 * 1024


def test_suite__where_no_libcrypto_is(tmp_path: Path) -> None:
    """The extension loads all the same, has no cipher, and says so. The host's libcryptos hide behind empty files."""
    for soname in ("libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1"):
        (tmp_path / soname).touch()
    ask = "from ultima._native import lib; print([lib.ut_driver_suite(n) for n in (b'auto', b'aes-128-gcm', b'x')])"
    there = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    without = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    missing = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, env=without)
    assert missing.stdout == "[0, 0, 0]\n"
    auto, aes, none = map(int, there.stdout.strip("[]\n").split(","))
    assert auto and aes and not none
