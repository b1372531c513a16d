# SPDX-License-Identifier: Apache-2.0
"""Several engines as one: which lane an op takes, what each is told, and what all of them tell is told once."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemon.fake_engine import FakeEngine
from tests.daemon.helpers import House, engine, eventually, rendezvous, status, wired
from ultima._native import ffi, lib
from ultima.daemon.base.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, StartupError
from ultima.daemon.base.options import Options
from ultima.daemon.engine.engine import (
    NEVER,
    EngineConfig,
    EventKind,
    JobConfig,
    JobSnapshot,
    PeerStats,
    Snapshot,
    Status,
)
from ultima.daemon.engine.epochs import EngineEpoch
from ultima.daemon.engine.host_engine import HostEngine, HostSnapshot, add_up, global_seq, local_seq, next_seq
from ultima.daemon.engine.joins import NativeJoins
from ultima.daemon.observe.progress import judge_all

JOB = JobConfig(2, 0, 1, 1472, 2, 1000, 0, 0)


def test_seq__each_op_has_one_place_and_comes_back() -> None:
    for lanes in (1, 2, 3, 4):
        for op_seq in range(50):
            lane, local = op_seq % lanes, op_seq // lanes
            assert global_seq(local, lane, lanes) == op_seq
            # The lanes' first ops from here on: none is left out, none comes twice.
            firsts = [global_seq(local_seq(op_seq, i, lanes), i, lanes) for i in range(lanes)]
            assert sorted(firsts) == list(range(op_seq, op_seq + lanes)), (op_seq, lanes)


def test_seq__is_that_of_the_core() -> None:
    """The core gives receipts the job's numbers, trainers and engines count by them."""
    native: Any = SimpleNamespace(_ffi=ffi, _lib=lib)
    for lanes in (1, 2, 3, 4):
        for lane in range(lanes):
            for local in (0, 1, 77, 2**32 - 1, 2**32):
                told = ffi.new("ut_receipt *", {"op_seq": local, "agreed_seq": (local - 1) % 2**32})
                receipt = NativeJoins.receipt_of_job(native, told, lane, lanes)
                assert receipt.op_seq == global_seq(local, lane, lanes) and told.op_seq == local
                assert receipt.agreed_seq == (receipt.op_seq - lanes) % 2**32


def test_next_seq__is_what_follows_the_newest_op_of_all_lanes() -> None:
    assert next_seq([0, 0]) == 0
    assert next_seq([1, 0]) == 1, "op 0 was seen"
    assert next_seq([1, 1]) == 2
    assert next_seq([0, 1]) == 2, "op 1 was seen, and op 0 not yet: a rank that comes back may not be given it"
    assert next_seq([5, 3]) == 9
    for lanes in (1, 2, 3, 4):
        for op_seq in range(40):
            assert next_seq([local_seq(op_seq, lane, lanes) for lane in range(lanes)]) == op_seq, (
                "a job that joins again"
            )


def two(lanes: int = 2) -> tuple[HostEngine, list[FakeEngine]]:
    made = HostEngine([EngineConfig("127.0.0.1", 100 + 2 * i, 101 + 2 * i) for i in range(lanes)], FakeEngine)
    return made, [fake for fake in made.engines if isinstance(fake, FakeEngine)]


def test_job_add__each_lane_gets_its_first_op_and_its_share_of_the_rate() -> None:
    lanes, fakes = two()
    assert lanes.job_add(JobConfig(2, 0, 1, 1472, 2, 1000, 1001, 7), 2) == 0
    configs = [fake.jobs[0].config for fake in fakes]
    assert [config.first_op_seq for config in configs] == [4, 3], "op 7 is number 3 of lane 1, op 8 number 4 of lane 0"
    assert [config.rate_bytes_per_s for config in configs] == [501, 501]
    assert lanes.next_op_seq(0) == 7
    fakes[0].jobs[0].next_op_seq = 5
    assert lanes.next_op_seq(0) == lanes.snapshot().next_op_seq(0) == 9
    assert lanes.job_bytes(JOB, 2) == 2 * lanes.job_bytes(JOB, 1)


def test_send_at_most__is_of_the_host_and_each_lane_is_told() -> None:
    lanes, fakes = two()
    lanes.send_at_most(10_000_000)
    assert [fake.rate_bytes_per_s for fake in fakes] == [10_000_000] * 2, "not a share of it: they share a clock"


def test_job_add__of_one_lane_uses_the_first_and_numbers_are_told_apart() -> None:
    lanes, fakes = two()
    alone, both = lanes.job_add(JOB, 1), lanes.job_add(JOB, 2)
    assert [sorted(fake.jobs) for fake in fakes] == [[0, 1], [0]]
    assert len(lanes.peer_listen(alone, 1)) == 1 and len(lanes.peer_listen(both, 1)) == 2
    fakes[1].emit(EventKind.OP_DONE, 0, op_seq=3, a=1)
    fakes[0].emit(EventKind.OP_DONE, 0, op_seq=3, a=1)
    assert {(event.job, event.op_seq) for event in lanes.events()} == {(both, 7), (alone, 3)}
    lanes.job_remove(alone)
    assert [sorted(fake.jobs) for fake in fakes] == [[1], [0]]
    with pytest.raises(NotFound):
        lanes.next_op_seq(alone)


def test_job_add__what_one_lane_refuses_no_lane_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, fakes = two()

    def refuse(config: JobConfig) -> int:
        raise ResourceExhausted("no more")

    monkeypatch.setattr(fakes[1], "job_add", refuse)
    with pytest.raises(ResourceExhausted):
        lanes.job_add(JOB, 2)
    assert fakes[0].jobs == {}


def test_events__in_the_order_of_time_and_one_of_a_split_op() -> None:
    lanes, fakes = two(3)
    job = lanes.job_add(JOB, 3)

    def ends(lane: int, op_seq: int, at_ns: int, missing: int = 0, portion: int = 0) -> None:
        status = Status.PARTIAL if missing else Status.COMPLETE
        said = {"a": int(status), "b": 10 + at_ns, "c": missing, "d": 1000, "e": portion << 32}
        fakes[lane].emit(EventKind.OP_DONE, 0, op_seq=op_seq, at_ns=at_ns, **said)

    for fake in fakes:
        fake.event_join = partial(NativeJoins.event_join, SimpleNamespace(_ffi=ffi, _lib=lib))  # type: ignore
    ends(0, 1, at_ns=5)
    ends(2, 3, at_ns=2, portion=0x32)
    ends(0, 3, at_ns=6, missing=70, portion=0x30)
    assert [(event.op_seq, event.at_ns) for event in lanes.events()] == [(3, 5)]
    ends(2, 0, at_ns=7)
    ends(1, 3, at_ns=8, missing=30, portion=0x31)
    alone, whole = lanes.events()
    assert (whole.op_seq, whole.job, whole.a, whole.b) == (9, job, Status.PARTIAL, 18)
    assert (whole.c, whole.d, alone.op_seq, lanes.events()) == (100, 3000, 2, [])


def test_events__portions_of_a_job_that_went_wait_for_nobody() -> None:
    """The number is another job's then."""
    lanes, fakes = two()
    for lane in range(2):
        job = lanes.job_add(JOB, 2)
        fakes[lane].emit(EventKind.OP_DONE, 0, op_seq=0, a=1, e=(0x20 + lane) << 32)
        assert lanes.events() == []
        lanes.job_remove(job)


def test_check_path__ids_and_ports_for_each_lane() -> None:
    lanes, _ = two()
    job = lanes.job_add(JOB, 2)
    lanes.check_path(job, (1, 2), lanes.ports, "host 1")
    for cids, ports in (((1,), lanes.ports), ((1, 2, 3), lanes.ports), ((1, 2), lanes.ports[:1])):
        text = rf"host 1: {len(cids)} connection_ids, {len(ports)} lanes: allowed: 2, one per lane"
        with pytest.raises(FailedPrecondition, match=text):
            lanes.check_path(job, cids, ports, "host 1")


def test_epoch__its_options_reach_every_lane() -> None:
    lanes, fakes = two()
    job = lanes.job_add(JOB, 2)
    lanes.options_fit(job, Options(incast=1))
    assert [fake.jobs[0].tuned for fake in fakes] == [[]] * 2, "only asked"
    lanes.epoch(job, EngineEpoch(1, 1, 0, 3, 3, (0, 0, 0, 0), 2, Options(incast=1)))
    assert [fake.jobs[0].tuned for fake in fakes] == [[Options(incast=1)]] * 2
    with pytest.raises(InvalidArgument, match="incast 2"):
        lanes.options_fit(job, Options(incast=2))


def test_peer__each_lane_has_its_own_ports_and_ids() -> None:
    lanes, fakes = two()
    job = lanes.job_add(JOB, 2)
    ours = lanes.peer_listen(job, 1)
    assert ours == tuple(fake.path(0, 1).rx_cid for fake in fakes) and len(set(ours)) == 2
    lanes.peer_connect(job, 1, "10.0.0.1", ((7, 8), (9, 10)), (70, 90))
    assert [fake.path(0, 1).address for fake in fakes] == [("10.0.0.1", 7, 8), ("10.0.0.1", 9, 10)]
    assert [fake.path(0, 1).tx_cid for fake in fakes] == [70, 90]
    now = lanes.snapshot()
    assert now.peer_stats(job, 1).up and now.peer_stats(job, 1).sent_bytes == 20
    lanes.peer_absent(job, 1)
    assert [fake.path(0, 1).up for fake in fakes] == [False, False]
    assert not lanes.snapshot().peer_stats(job, 1).up and now.peer_stats(job, 1).up
    assert [fake.snapshots for fake in fakes] == [2, 2]


def test_peer_stats__of_several_lanes() -> None:
    """Bytes and counts are added, of times the longest holds, and one lane without a window says that there is none."""
    first = PeerStats(True, 10, 100, 200, 1, 64, 9, 1, 2)
    second = PeerStats(True, 30, 10, 20, 0, 36, 7, 1, 1)
    none = replace(second, up=False, window_bytes=NEVER)

    def together(*paths: PeerStats) -> PeerStats:
        info: Any = None
        lanes = [Snapshot(info, {}, {0: JobSnapshot(0, (path,))}) for path in paths]
        return HostSnapshot(lanes, {7: [0] * len(lanes)}).peer_stats(7, 0)

    assert together(first) == first
    assert together(first, second) == PeerStats(True, 30, 110, 220, 1, 100, 9, 2, 3)
    assert together(first, none) == PeerStats(False, 30, 110, 220, 1, NEVER, 9, 2, 3)


def test_stats__sums_but_for_what_is_an_instant() -> None:
    first = {"data_sent": 3, "oldest_open_ns": 50, "oldest_deadline_ns": NEVER, "send_errno": 0, "send_queued_max": 6,
             "send_pace": 4}  # fmt: skip
    second = {"data_sent": 4, "oldest_open_ns": NEVER, "oldest_deadline_ns": NEVER, "send_errno": 90,
              "send_queued_max": 5, "send_pace": 8}  # fmt: skip
    together = {"data_sent": 7, "oldest_open_ns": 50, "oldest_deadline_ns": NEVER, "send_errno": 90,
                "send_queued_max": 6, "send_pace": 8}  # fmt: skip
    assert add_up([first, second]) == together


def test_judge_all__a_lane_that_hangs_is_not_hidden_by_an_older_op_of_another() -> None:
    """The oldest op of all has no deadline; the second lane's is long overdue."""
    well = {"oldest_open_ns": 1, "oldest_deadline_ns": NEVER}
    hung = {"oldest_open_ns": 2, "oldest_deadline_ns": 10}
    assert judge_all(5 * 10**9, [well, well]).well
    for each in ([well, hung], [hung, well]):
        verdict = judge_all(5 * 10**9, each)
        assert not verdict.well and "past its deadline" in verdict.reason


def test_open__a_port_that_is_taken_closes_what_was_opened() -> None:
    opened: list[FakeEngine] = []

    def open_engine(config: EngineConfig) -> FakeEngine:
        if opened:
            raise StartupError("taken")
        opened.append(FakeEngine(config))
        return opened[0]

    with pytest.raises(StartupError, match="taken"):
        HostEngine([EngineConfig("127.0.0.1")] * 2, open_engine)
    assert opened[0].closed


async def test_attach__has_rings_for_each_lane_and_one_arena(house: House) -> None:
    daemon = await house.daemon(lanes=3)
    trainer = await house.trainer(daemon)
    assert trainer.answer.reply["lanes"] == 3 and len(trainer.answer.fds) == 2 + 3 * 3
    await trainer.join()
    memory = [engine(daemon, lane).sessions[0].memory for lane in range(3)]
    assert len({id(each.arena) for each in memory}) == 1 and len({each.complete_fd for each in memory}) == 1
    assert len({id(each.submissions) for each in memory} | {id(each.completions) for each in memory}) == 6
    assert len({each.submit_fd for each in memory}) == 3
    assert trainer.joined is not None and trainer.joined.lanes == 3
    trainer.hang_up()
    await eventually(lambda: not any(engine(daemon, lane).regions for lane in range(3)), "all memory is given back")


async def test_join__hosts_with_different_lanes_use_the_least(house: House) -> None:
    daemons = [await house.daemon(lanes=count) for count in (3, 2, 4)]
    trainers = await house.job(daemons)
    assert [trainer.joined.lanes for trainer in trainers if trainer.joined] == [2, 2, 2]
    for lane in range(2):
        await eventually(lambda lane=lane: wired(daemons, lane=lane), f"lane {lane} is wired")  # type: ignore[misc]
    for daemon in (daemons[0], daemons[2]):
        assert engine(daemon, 2).jobs == {}, "a lane that not all hosts have is left alone"
    ids = {engine(d, lane).path(0, peer).rx_cid for d in daemons[:1] for lane in range(2) for peer in (1, 2)}
    assert len(ids) == 4
    assert (await status(daemons[0])).jobs[0].lanes == 2 and len((await status(daemons[0])).engine.lanes) == 3


@pytest.mark.parametrize("stands_at", [5, 6, 7, 8])
async def test_rejoin__after_a_death_each_lane_goes_on_with_its_own_next_op(house: House, stands_at: int) -> None:
    """Odd and even: with the newest op in either lane, the rank that comes back and its lanes agree on what is next."""
    daemons = [await house.daemon(lanes=2) for _ in range(2)]
    trainers = await house.job(daemons)
    for op_seq in range(stands_at):
        for daemon in daemons:
            engine(daemon, op_seq % 2).op_done(0, Status.COMPLETE)
    await eventually(
        lambda: all(d.jobs.all()[0].stats.count[Status.COMPLETE] == stands_at for d in daemons), "all told"
    )
    trainers[1].hang_up()
    await house.stop(daemons[1])
    back = await house.daemon("d1", lanes=2, port=str(daemons[1].grpc_port))
    trainer = await house.trainer(back)
    answer = await trainer.join(1, 2, rendezvous=rendezvous(daemons[0]))
    wanted = [local_seq(stands_at, lane, 2) for lane in range(2)]
    assert wanted == [-(-stands_at // 2), stands_at // 2]
    assert [engine(back, lane).jobs[0].config.first_op_seq for lane in range(2)] == wanted
    # The rank begins with the view that has its host again: at once, or a few ops later as these are quick.
    first = answer.next_op_seq
    assert first >= stands_at
    starts = [local_seq(first, lane, 2) for lane in range(2)]
    assert [engine(back, lane).sessions[0].first_op_seq for lane in range(2)] == starts
    assert [engine(back, lane).jobs[0].epochs[-1].start for lane in range(2)] == starts
    await eventually(lambda: wired([daemons[0], back]) and wired([daemons[0], back], lane=1), "both lanes are wired")


async def test_rejoin__with_fewer_lanes_than_the_job_began_with_is_refused_by_name(house: House) -> None:
    daemons = [await house.daemon(lanes=2) for _ in range(2)]
    trainers = await house.job(daemons)
    trainers[1].hang_up()
    await house.stop(daemons[1])
    back = await house.daemon("d1", lanes=1, port=str(daemons[1].grpc_port))
    trainer = await house.trainer(back)
    with pytest.raises(Exception, match=r"engine\.lanes = 1 on 127\.0\.0\.1: the job that is under way began with 2"):
        await trainer.join(1, 2, rendezvous=rendezvous(daemons[0]))


async def test_events__of_all_lanes_are_heard_in_any_order(house: House) -> None:
    daemon = await house.daemon(lanes=2)
    await house.job([daemon])
    order = [0] * 20 + [1] * 30
    random.Random(7).shuffle(order)
    for lane in order:
        engine(daemon, lane).op_done(0)
        await asyncio.sleep(0)
    job = daemon.jobs.all()[0]
    await eventually(lambda: job.stats.count[Status.COMPLETE] == 50, "every op is counted once")
