# SPDX-License-Identifier: Apache-2.0
"""What the control plane may rely on, told once and run twice: on the real engine, and on the tests' fake of it.

All tests of jobs, paths and probes stand on the fake. Where it is more patient than the engine, or refuses with another
error, they prove nothing about daemons. A scenario knows nothing but the face (`Engine`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.daemon.fake_engine import FakeEngine
from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument, NotFound, Refused, ResourceExhausted
from ultima.daemon.base.options import Options
from ultima.daemon.engine.engine import NEVER, Engine, EngineConfig, JobConfig, NativeEngine, SessionMemory
from ultima.daemon.trainers.memory import create_memfd, make_bell
from ultima.v1.limits import BUCKET_BYTES_MAX, HOSTS_MAX, JOBS_MAX, LOCAL_RANKS_MAX, PACKET_BYTES_MIN

JOB = JobConfig(
    hosts=3,
    self_index=1,
    local_ranks=2,
    packet_bytes=1472,
    world=4,
    bucket_bytes_max=1 << 20,
    rate_bytes_per_s=0,
    first_op_seq=7,
)
PARTIAL = replace(JOB, options=Options(policy=3))


@pytest.fixture(params=[FakeEngine, NativeEngine], ids=["fake", "native"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine = request.param(EngineConfig("127.0.0.1"))
    yield made
    made.close()


@contextmanager
def memory_of(engine: Engine, place: int = 0) -> Iterator[SessionMemory]:
    """What a trainer at that place shares; unmapped when it is over."""
    with ExitStack() as undo:
        regions = []
        for size in (engine.info.submission_bytes, engine.info.completion_bytes, 65536):
            fd = create_memfd("test", size)
            undo.callback(os.close, fd)
            regions.append(engine.region_map(fd, size))
            undo.callback(engine.region_unmap, regions[-1], False)
        bells = [os.eventfd(0, os.EFD_NONBLOCK), *make_bell()]
        for bell in bells:
            undo.callback(os.close, bell)
        yield SessionMemory(*regions, *bells[:2], place)


def test_info__a_fresh_engine_is_idle(engine: Engine) -> None:
    assert 0 < engine.info.data_port != engine.info.feedback_port > 0
    assert engine.info.packet_bytes == 1472 and engine.info.submission_bytes < engine.info.completion_bytes
    assert engine.stats()["oldest_open_ns"] == engine.stats()["oldest_deadline_ns"] == NEVER
    assert engine.poll_event() is None
    now = engine.snapshot()
    assert not now.jobs and now.info == engine.info and now.stats.keys() == engine.stats().keys()


def test_job__begins_at_its_first_op_and_is_forgotten(engine: Engine) -> None:
    assert engine.job_bytes(JOB) > 0
    first, second = engine.job_add(JOB), engine.job_add(replace(JOB, first_op_seq=0))
    assert first != second and (engine.next_op_seq(first), engine.next_op_seq(second)) == (7, 0)
    now = engine.snapshot()
    assert now.jobs.keys() == {first, second} and len(now.jobs[first].peers) == 3 and now.jobs[first].next_op_seq == 7
    assert engine.receipt(first, 0) is None
    engine.job_remove(first)
    with pytest.raises(NotFound):
        engine.next_op_seq(first)
    assert engine.job_add(JOB) == first, "a number is free again when its job is removed"


def test_job__as_many_as_the_limit_says(engine: Engine) -> None:
    numbers = [engine.job_add(JOB) for _ in range(JOBS_MAX)]
    assert len(set(numbers)) == JOBS_MAX
    with pytest.raises(ResourceExhausted):
        engine.job_add(JOB)


BAD_JOBS: list[dict[str, Any]] = [
    {"hosts": 0},
    {"hosts": HOSTS_MAX + 1, "world": HOSTS_MAX + 1},
    {"self_index": 3},
    {"local_ranks": 0},
    {"local_ranks": LOCAL_RANKS_MAX + 1, "world": LOCAL_RANKS_MAX + 3},
    {"packet_bytes": PACKET_BYTES_MIN - 8},
    {"packet_bytes": 1473},
    {"packet_bytes": 1480},
    {"world": 2},
    {"bucket_bytes_max": 0},
    {"bucket_bytes_max": BUCKET_BYTES_MAX + 1},
    {"ranks_of": (1, 1, 2)},
    {"ranks_of": (1, 2, 2)},
    {"ranks_of": (2, 2, 0)},
    {"options": Options(incast=3)},
    {"options": Options(quorum=5)},
    {"options": Options(policy=3, algorithm=2)},
    {"options": Options(policy=3, hadamard=2)},
]


@pytest.mark.parametrize("wrong", BAD_JOBS, ids=str)
def test_job__what_nobody_may_ask_for(engine: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        engine.job_add(replace(JOB, **wrong))
    assert not engine.snapshot().jobs


@pytest.mark.parametrize("options", [Options(incast=3), Options(probes=5), Options(policy=3, hadamard=3)], ids=str)
def test_options_fit__says_what_no_epoch_of_the_job_can_have(engine: Engine, options: Options) -> None:
    number = engine.job_add(PARTIAL if options.partial else JOB)
    with pytest.raises(InvalidArgument):
        engine.options_fit(number, options)
    engine.options_fit(number, replace(options, incast=2, probes=4, hadamard=1))


def test_options_fit__a_partial_job_stays_one(engine: Engine) -> None:
    whole, partial = engine.job_add(JOB), engine.job_add(PARTIAL)
    engine.options_fit(partial, Options(policy=4, tau=3))
    for number, options in ((whole, Options(policy=3)), (partial, Options())):
        with pytest.raises(InvalidArgument):
            engine.options_fit(number, options)


def test_unknown_numbers__are_not_found(engine: Engine) -> None:
    number = engine.job_add(JOB)
    calls: list[Callable[[], Any]] = [
        lambda: engine.options_fit(number + 1, Options()),
        lambda: engine.job_remove(number + 1),
        lambda: engine.next_op_seq(number + 1),
        lambda: engine.activate(number + 1, 0),
        lambda: engine.peer_listen(number + 1, 0),
        lambda: engine.peer_listen(number, 1),
        lambda: engine.peer_listen(number, 3),
        lambda: engine.peer_connect(number, 3, "127.0.0.1", 1, 2, 3),
        lambda: engine.peer_absent(number, 1),
        lambda: engine.peer_absent(number, 3),
        lambda: engine.session_remove(0),
    ]
    for index, call in enumerate(calls):
        with pytest.raises(NotFound) as caught:
            call()
        assert str(caught.value), index
    assert engine.receipt(number + 1, 0) is None


def test_paths__an_id_for_each_listening_and_one_connect(engine: Engine) -> None:
    number = engine.job_add(JOB)
    ids = {engine.peer_listen(number, host) for host in (0, 2, 0)}
    assert len(ids) == 3 and all(0 < cid < 2**32 for cid in ids)
    with pytest.raises(InvalidArgument):
        engine.peer_connect(number, 0, "not an address", 1, 2, 3)
    assert not any(peer.up for peer in engine.snapshot().jobs[number].peers)
    engine.peer_connect(number, 0, "127.0.0.1", 1234, 1235, 99)
    assert [peer.up for peer in engine.snapshot().jobs[number].peers] == [True, False, False]
    engine.peer_absent(number, 0)
    engine.peer_absent(number, 0)
    engine.peer_absent(number, 2)
    assert not any(peer.up for peer in engine.snapshot().jobs[number].peers)
    engine.peer_listen(number, 0)
    engine.peer_connect(number, 0, "127.0.0.1", 1234, 1235, 100)
    assert [peer.up for peer in engine.snapshot().jobs[number].peers] == [True, False, False]


def test_sessions__one_for_each_place(engine: Engine) -> None:
    number = engine.job_add(JOB)
    with memory_of(engine, 0) as first, memory_of(engine, 1) as second:
        one = engine.session_add(number, first, 7)
        other = engine.session_add(number, second, 7)
        assert one != other
        with pytest.raises(ResourceExhausted):
            engine.session_add(number, replace(first, place=0), 7)
        with pytest.raises(NotFound):
            engine.session_add(number + 1, first, 7)
        engine.session_remove(one)
        with pytest.raises(NotFound):
            engine.session_remove(one)
        assert engine.session_add(number, first, 7) == one
        engine.job_remove(number)
        with pytest.raises(NotFound):
            engine.session_remove(other)


def test_regions__only_what_is_there(engine: Engine) -> None:
    fd = create_memfd("test", 8192)
    try:
        engine.region_unmap(engine.region_map(fd, 8192), discard=True)
        for size in (0, 16384):
            with pytest.raises(Refused):
                engine.region_map(fd, size)
    finally:
        os.close(fd)


def test_activate__says_why_not(engine: Engine) -> None:
    number = engine.job_add(PARTIAL)
    with pytest.raises(FailedPrecondition, match="next"):
        engine.activate(number, 8)
    with pytest.raises(FailedPrecondition, match="given anything"):
        engine.activate(number, 7)
    engine.activate(number, 6)  # it has started, long ago


def test_picks__are_the_same_draws(engine: Engine) -> None:
    assert [engine.picks(42, op, 8, 2) for op in range(4)] == [(5, 7), (0, 2), (2, 7), (4, 1)]
    assert sorted(engine.picks(7, 3, 40, 40)) == list(range(40))
    with pytest.raises(ValueError, match="must be 0 to world"):
        engine.picks(42, 0, 8, 9)
