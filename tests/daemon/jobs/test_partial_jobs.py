# SPDX-License-Identifier: Apache-2.0
"""Partial jobs in the control plane: how they are set up, what status says of their ranks, how their policy changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.fake_engine import FakeEngine, partial_receipt
from tests.daemon.helpers import House, engine, eventually, rendezvous, status
from tests.daemon.jobs.test_options import in_force, refused, run, tune, tuned
from ultima.daemon.base.options import Options, from_proto
from ultima.daemon.engine.engine import Status
from ultima.daemon.jobs import tuning
from ultima.daemon.observe.partial_stats import (
    JUDGED_FROM,
    NEVER_US,
    NOBODY,
    WINDOW_OPS,
    PartialStats,
    awaited_host,
    straggler,
)
from ultima.v1 import admin_pb2, partial_pb2, types_pb2

SOLO = types_pb2.JobOptions(policy="POLICY_SOLO", tau=3)
WRONG = grpc.StatusCode.INVALID_ARGUMENT


# ---- joining ----


def test_join__one_lane_places_and_a_seed_that_is_the_same_everywhere(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon(lanes=2), await house.daemon(lanes=2)]
        where = [1, 0, 0, 1, 0]
        trainers = [await house.trainer(daemons[at]) for at in where]
        await asyncio.gather(
            *(t.join(r, 5, rendezvous=rendezvous(daemons[0]), options=SOLO) for r, t in enumerate(trainers))
        )
        assert {t.joined.lanes for t in trainers if t.joined} == {1}
        configs = [engine(daemon).jobs[0].config for daemon in daemons]
        assert [config.ranks_of for config in configs] == [(2, 3), (2, 3)], "host 0 is the one that has rank 0"
        assert all(not engine(daemon, lane=1).jobs for daemon in daemons)
        seeds = {config.options.policy_seed for config in configs}
        assert len(seeds) == 1 and seeds != {0}
        told = trainers[0].joined
        assert told is not None and told.options.policy_seed == 0, "nobody asked for one"
        for at, daemon in enumerate(daemons):
            sessions = engine(daemon).sessions
            ranks = [rank for rank, there in enumerate(where) if there == at]
            places = {t.joined.session: ranks.index(r) for r, t in enumerate(trainers) if t.joined and where[r] == at}
            assert {number: session.memory.place for number, session in sessions.items()} == places

    run(tmp_path, story)


def test_join__a_second_life_draws_from_another_seed(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemon = await house.daemon()
        seeds = []
        for _ in range(2):
            (trainer,) = await house.job([daemon], options=SOLO)
            seeds.append(engine(daemon).jobs[0].config.options.policy_seed)
            await trainer.leave()
            await eventually(lambda: not engine(daemon).jobs, "the job has ended", 20)
        assert seeds[0] != seeds[1]

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": 3, "algorithm": 2}, "algorithm = ring: allowed: tar: the job is partial, policy = solo"),
        ({"policy": 5, "quorum": 2}, "quorum = 2: allowed: 1 to 1, the ranks of the job"),
        ({"policy": 6, "probes": 2}, "probes = 2: allowed: 1 to 1, the ranks of the job"),
        ({"policy": 9}, "policy = 9: allowed: none, full, solo, majority, quorum, probe, seeded, coded"),
    ],
)
def test_join__refused_by_name(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    async def story(house: House) -> None:
        daemon = await house.daemon()
        trainer = await house.trainer(daemon)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await trainer.join(options=types_pb2.JobOptions(**fields))
        assert (caught.value.code(), caught.value.details()) == (WRONG, message)

    run(tmp_path, story)


def test_join__ranks_that_want_different_policies_are_told(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(2)]
        trainers = [await house.trainer(daemon) for daemon in daemons]
        said = [SOLO, types_pb2.JobOptions(policy="POLICY_FULL", tau=3)]
        joins = [t.join(r, 2, rendezvous=rendezvous(daemons[0]), options=said[r]) for r, t in enumerate(trainers)]
        for answer in await asyncio.gather(*joins, return_exceptions=True):
            assert isinstance(answer, grpc.aio.AioRpcError)
            assert answer.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "policy differs: rank" in (answer.details() or "") and "says full" in (answer.details() or "")

    run(tmp_path, story)


# ---- status ----


def rows(*counts: tuple[int, int]) -> list[partial_pb2.RankStatus]:
    return [partial_pb2.RankStatus(rank=r, fresh_count=new, stale_count=old) for r, (new, old) in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "who", "why"),
    [
        ([], -1, "nobody"),
        ([(100, 0), (100, 0), (100, 0)], -1, "all alike"),
        ([(100, 0), (30, 19), (100, 0)], 1, "in less than half of what the median rank is in"),
        ([(100, 0), (50, 0), (100, 0)], -1, "in just half"),
        ([(100, 0), (100, 0), (100, 0), (0, 0), (0, 0)], 3, "of several alike the lowest"),
        ([(100, 0), (95, 5), (20, 80)], 2, "in all ops, but hardly ever in time"),
        ([(100, 0), (0, 100), (0, 100)], -1, "one rank is ahead; the median one is never in time"),
        ([(JUDGED_FROM - 1, 0), (0, 0), (JUDGED_FROM - 1, 0)], -1, "too little to judge by"),
        ([(JUDGED_FROM, 0), (0, 0), (JUDGED_FROM, 0)], 1, "enough"),
        ([(200, 0), (20, 0)], 1, "of two"),
    ],
)
def test_straggler__table(counts: list[tuple[int, int]], who: int, why: str) -> None:
    assert straggler(rows(*counts)) == who, why


def three(fakes: FakeEngine, count: int) -> None:
    """Ops in which host 0 has both its ranks, host 1 its one rank in every 4th, stale in every 8th."""
    for i in range(count):
        fakes.partial_op(
            0,
            fresh={0: 0b11} | ({1: 1} if i % 8 == 0 else {}),
            stale={1: 1} if i % 8 == 4 else {},
            initiator=1 if i % 16 == 0 else 0,
            waited_ns=1000 * i,
        )


def test_status__how_each_rank_took_part(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon(), await house.daemon()]
        where = [0, 1, 0]
        trainers = [await house.trainer(daemons[at]) for at in where]
        joins = [t.join(r, 3, rendezvous=rendezvous(daemons[0]), options=SOLO) for r, t in enumerate(trainers)]
        await asyncio.gather(*joins)
        fake = engine(daemons[0])
        (job,) = (await status(daemons[0])).jobs
        assert (job.partial_ops, job.straggler_rank, job.controller_host) == (0, -1, -1)
        assert [(r.rank, r.null_count, r.last_op_seq) for r in job.ranks] == [(0, 0, -1), (1, 0, -1), (2, 0, -1)]
        three(fake, 64)
        fake.partial_op(0, fresh={1: 1}, status=Status.FAILED)
        await eventually(lambda: fake.events_waiting == 0, "events are drained")
        (job,) = (await status(daemons[0])).jobs
        assert job.partial_ops == 64, "one that failed says nothing of who was in it"
        assert job.ops_complete_count == 64 and job.ops_failed_count == 1
        assert [(r.rank, r.fresh_count, r.stale_count, r.null_count) for r in job.ranks] == [
            (0, 64, 0, 0),
            (1, 8, 8, 48),
            (2, 64, 0, 0),
        ]
        assert [r.initiated_count for r in job.ranks] == [60, 4, 60], "of all ranks of the host that started it"
        assert [r.last_op_seq for r in job.ranks] == [63, 60, 63]
        assert (job.included_mean, job.waited_p50_us, job.straggler_rank) == (2.25, 31, 1)
        three(fake, WINDOW_OPS)
        await eventually(lambda: fake.events_waiting == 0, "events are drained")
        (job,) = (await status(daemons[0])).jobs
        assert job.partial_ops == WINDOW_OPS and job.ranks[0].fresh_count == WINDOW_OPS, "the newest only"
        assert sum((job.ranks[1].fresh_count, job.ranks[1].stale_count, job.ranks[1].null_count)) == WINDOW_OPS

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("opened_us", "elapsed_us", "who"),
    [
        ((0, 10, 600), 1000, 2),
        ((0, 600, 10), 1000, 1),
        ((0, 10, 400), 1000, NOBODY),  # less than half of the op
        ((0, 590, 600), 1000, NOBODY),  # for two
        ((0, 0, 0), 1000, NOBODY),  # for us, perhaps
        ((0, NEVER_US, 600), 1000, 2),
        ((0, NEVER_US, NEVER_US), 1000, NOBODY),
        ((600,), 1000, NOBODY),
    ],
)
def test_awaited_host__table(opened_us: tuple[int, ...], elapsed_us: int, who: int) -> None:
    receipt = partial_receipt(0, fresh={}, opened_us=opened_us, elapsed_ns=elapsed_us * 1000)
    assert awaited_host(receipt, len(opened_us)) == who


@pytest.mark.parametrize(
    ("policy", "hosts", "of_64", "who"),
    [
        (2, [(0,), (1,), (2,)], 33, 2),
        (2, [(0,), (1,), (2,)], 32, NOBODY),  # just half of the ops
        (3, [(0,), (1,), (2,)], 64, NOBODY),  # only FULL waits
        (2, [(0,), (1,), (2, 3)], 64, NOBODY),  # one of them, but which?
    ],
)
def test_status__whom_the_others_wait_for_under_full(
    policy: int, hosts: list[tuple[int, ...]], of_64: int, who: int
) -> None:
    stats, kept = PartialStats(hosts), []
    for i in range(64):
        late = 900 if i < of_64 else 0
        said: dict[str, Any] = {"policy": policy, "opened_us": (0, 5, late), "elapsed_ns": 1_000_000}
        kept.append(partial_receipt(i, fresh={0: 1, 1: 1, 2: 3}, **said))
        stats.read(newest_of(kept))
    answer = admin_pb2.JobStatus()
    stats.fill(answer)
    assert answer.straggler_rank == who


def test_coded__steps_are_counted_with_what_they_did_without() -> None:
    stats, coded = PartialStats([(0,), (1,), (2,), (3,)]), {"policy": types_pb2.POLICY_CODED, "bytes_used": 100}
    kept = [
        partial_receipt(0, fresh={0: 1, 1: 1, 2: 1, 3: 1}, **coded, exact=types_pb2.EXACT_YES, bytes_redundant=30),
        partial_receipt(1, fresh={0: 1, 2: 1, 3: 1}, **coded, exact=types_pb2.EXACT_YES, late_mask=2, unused_mask=8),
        partial_receipt(2, fresh={0: 1}, **coded, exact=types_pb2.EXACT_NO, late_mask=6, residual_squared=4),
        partial_receipt(3, fresh={0: 1}, **coded, exact=types_pb2.EXACT_NO, late_mask=6, status=Status.FAILED),
    ]
    stats.read(newest_of(kept))
    answer = admin_pb2.JobStatus()
    stats.fill(answer)
    assert answer.partial_ops == 3, "one failed"
    assert answer.coded == partial_pb2.CodedStatus(
        exact_count=2, late_count=2, unused_count=1, used_bytes=300, redundant_bytes=30, residual_max=2
    )
    assert [row.late_count for row in answer.ranks] == [0, 2, 1, 0]
    assert [row.unused_count for row in answer.ranks] == [0, 0, 0, 1]


def test_status__of_an_ordinary_job_has_no_ranks(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemon = await house.daemon()
        await house.job([daemon])
        engine(daemon).op_done(0)
        (job,) = (await status(daemon)).jobs
        assert (list(job.ranks), job.partial_ops, job.straggler_rank, job.controller_host) == ([], 0, -1, -1)

    run(tmp_path, story)


def test_read__events_that_come_late_count_each_op_once() -> None:
    """Several ops end before their events are taken, and the engine forgets the oldest."""
    stats, kept = PartialStats([(0,), (1,)]), []
    for new, forgotten in ((1, 0), (3, 0), (0, 0), (5, 6)):
        first = kept[-1].op_seq + 1 if kept else 0
        kept += [partial_receipt(first + i, fresh={0: 1}) for i in range(new)]
        del kept[:forgotten]
        stats.read(newest_of(kept))
    answer = admin_pb2.JobStatus()
    stats.fill(answer)
    assert answer.partial_ops == 4 + 3, "of the last five, two were gone before they could be read"
    assert answer.ranks[0].last_op_seq == 8 and answer.ranks[0].fresh_count == answer.ranks[1].null_count == 7


def newest_of(kept: list[Any]) -> Callable[[int], Any | None]:
    return lambda back: kept[-1 - back] if back < len(kept) else None


def test_ops_per_second__sinks_while_nothing_ends() -> None:
    now = [0.0]
    stats = PartialStats([(0,)], clock=lambda: now[0])
    assert stats.ops_per_second() == 0.0
    for i in range(40):
        now[0] = i * 0.01
        stats.read(newest_of([partial_receipt(i, fresh={0: 1})]))
    assert stats.ops_per_second() == pytest.approx(100)
    now[0] += 14.85
    assert stats.ops_per_second() == pytest.approx(1)


# ---- changing the policy ----


def test_tune__holds_on_all_hosts_from_the_same_op(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        await house.job(daemons, options=SOLO)
        for daemon in daemons:
            for _ in range(7):
                engine(daemon).partial_op(0, fresh={0: 1, 1: 1, 2: 1})
        await eventually(lambda: not any(engine(daemon).events_waiting for daemon in daemons), "events are drained")
        job = daemons[1].jobs.all()[0]
        answer = await tuned(daemons[1], policy="POLICY_MAJORITY", tau=5)
        wanted = Options(policy=4, tau=5)
        assert (from_proto(answer.options), answer.from_op_seq) == (wanted, 7), "no op is open, and the next one has it"
        await eventually(lambda: [in_force(daemon) for daemon in daemons] == [wanted] * 3, "all have it")
        for daemon in daemons:
            assert engine(daemon).jobs[0].tuned == [wanted.seeded(job.generation)]
            assert engine(daemon).jobs[0].epochs[-1].start == 7
            assert (await status(daemon)).jobs[0].options_from_op_seq == 7

    run(tmp_path, story)


def test_tune__two_at_once_end_with_one_value_everywhere(tmp_path: Path) -> None:
    """And what they do not both name, both have got."""

    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        await house.job(daemons, options=SOLO)
        one, two = tune(daemons[1], tau=5, early_percent=20), tune(daemons[2], tau=7, eta=2)
        answers = [from_proto(answer) for answer in await asyncio.gather(one, two)]
        assert [answer.tau for answer in answers] == [5, 7], "each was in force"
        await eventually(lambda: len({in_force(daemon) for daemon in daemons}) == 1, "one of them stays")
        last = in_force(daemons[0])
        assert last in answers and (last.early_percent, last.eta) == (20, 2), last

    run(tmp_path, story)


def test_tune__without_a_majority_says_whom_it_does_not_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control network is down, and data goes on: nothing is changed, and nothing comes of it later."""
    monkeypatch.setattr(tuning, "AGREE_SECONDS", 0.5)

    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        await house.job(daemons, options=SOLO)
        name = daemons[0].jobs.all()[0].hosts()[1][0].name
        said = f"within 0.5 s its hosts did not agree on the change, as the daemon of {name} is not heard"
        with monkeypatch.context() as cut:
            council = daemons[0].jobs.fellows.council
            cut.setattr(council, "heard", lambda *of: None)
            cut.setattr(council._watchers, "tell_word", lambda job: None)
            cut.setattr(daemons[0]._tuning, "_heard", lambda place: place.port != daemons[1].grpc_port)
            await refused(grpc.StatusCode.FAILED_PRECONDITION, said, daemon=daemons[0], tau=9)
        assert from_proto(await tune(daemons[1], eta=2)) == Options(policy=3, tau=3, eta=2)
        await eventually(lambda: in_force(daemons[0]) == Options(policy=3, tau=3, eta=2), "it is heard again")

    run(tmp_path, story)


def test_tune__a_job_of_one_host(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemon = await house.daemon()
        await house.job([daemon], options=SOLO)
        assert from_proto(await tune(daemon, tau=9)) == in_force(daemon) == Options(policy=3, tau=9)

    run(tmp_path, story)


def test_tune__refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(2)]
        await house.job(daemons, options=SOLO)
        await house.job(daemons, "whole")
        first = daemons[0]
        await refused(WRONG, "policy = none: allowed: full, solo, majority", daemon=first, policy="POLICY_NONE")
        await refused(WRONG, "quorum = 3: allowed: 1 to 2, the ranks of the job", daemon=first, quorum=3)
        await refused(WRONG, "probes = 3: allowed: 1 to 2, the ranks of the job", daemon=first, probes=3)
        await refused(WRONG, "hadamard = on: allowed: off: the job is partial", daemon=first, hadamard="HADAMARD_ON")
        await refused(WRONG, "tau = 300: allowed: 1 to 255", daemon=first, tau=300)
        await refused(WRONG, "policy_seed = 4: allowed: 0: it cannot", daemon=first, policy_seed=4)
        whole = "policy = solo: allowed: none: a job that began without a policy gets none while it runs"
        await refused(WRONG, whole, daemon=first, job="whole", policy="POLICY_SOLO")
        await refused(WRONG, "tau: allowed: in a job that began with a policy", daemon=first, job="whole", tau=4)
        for daemon in daemons:
            assert [engine(daemon).jobs[number].tuned for number in (0, 1)] == [[], []]

    run(tmp_path, story)


def test_tune__a_host_that_was_away_joins_under_what_holds(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        trainers = await house.job(daemons, options=SOLO)
        trainers[2].hang_up()
        await house.stop(daemons[2])
        told = from_proto(await tune(daemons[0], policy="POLICY_FULL"))
        back = await house.daemon("d2", port=str(daemons[2].grpc_port))
        trainer = await house.trainer(back)
        joined = await trainer.join(2, 3, rendezvous=rendezvous(daemons[0]), options=SOLO)
        assert from_proto(joined.options) == told and told.policy == 2
        assert engine(back).jobs[0].tuned == engine(daemons[0]).jobs[0].tuned, "with the same seed, too"

    run(tmp_path, story)
