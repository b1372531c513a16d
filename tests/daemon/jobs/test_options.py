# SPDX-License-Identifier: Apache-2.0
"""Options of a job: what is allowed, that the ranks agree, and that a change reaches every host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.daemon.helpers import HOSTS_SECONDS, House, engine, eventually, local_channel, proof, rendezvous, status
from ultima.daemon.base.errors import InvalidArgument
from ultima.daemon.base.options import (
    DEFAULTS,
    NAMES,
    InForce,
    Options,
    check_change,
    check_job,
    differing,
    from_proto,
    named,
)
from ultima.daemon.process.server import Daemon
from ultima.v1 import admin_pb2, admin_pb2_grpc, types_pb2

SAID = types_pb2.JobOptions(algorithm="ALGORITHM_RING", incast=2, t_b_ns=-1, t_c_ns=5_000_000)
IN_FORCE = Options(algorithm=2, incast=2, t_b_ns=-1, t_c_ns=5_000_000)


def test_from_proto__says_what_is_set_and_defaults_for_the_rest() -> None:
    assert from_proto(types_pb2.JobOptions()) == DEFAULTS
    assert from_proto(SAID) == IN_FORCE
    assert from_proto(IN_FORCE.to_proto()) == IN_FORCE
    assert named(IN_FORCE.to_proto()).keys() == set(NAMES), "a set that is told is told whole, zeros too"
    assert IN_FORCE.with_changes(types_pb2.JobOptions(incast=0)).incast == 0, "0 that is set is a change"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": 5}, "algorithm = 5: allowed: tar, ring, bcube, ps"),
        ({"algorithm": 0}, "algorithm = 0: allowed: tar, ring, bcube, ps"),
        ({"congestion": 9}, "congestion = 9: allowed: swift, dctcp, timely, none"),
        ({"hadamard": -1}, "hadamard = -1: allowed: off, on, auto"),
        ({"incast": 16}, "incast = 16: allowed: 1 to 15, or 0 for dynamic"),
        ({"incast": -1}, "incast = -1: allowed"),
        ({"early_percent": 0}, "early_percent = 0: allowed: 1 to 100"),
        ({"early_percent": 101}, "early_percent = 101: allowed: 1 to 100"),
        ({"t_b_ns": -2}, "t_b_ns = -2: allowed"),
        ({"t_c_ns": 3600 * 10**9 + 1}, "t_c_ns = 3600000000001: allowed: up to an hour"),
        ({"timer_start": 3}, "timer_start = 3: allowed: rendezvous, local"),
        ({"delay_target_ns": -1}, "delay_target_ns = -1: allowed: up to an hour, or 0 for automatic"),
        ({"policy": 9}, "policy = 9: allowed: none, full, solo, majority, quorum, probe, seeded, coded"),
        ({"stragglers": 64}, "stragglers = 64: allowed: 1 to 63, or 0 for none"),
        ({"code": 3}, "code = 3: allowed: groups, linear"),
        ({"policy": 0}, "policy = 0: allowed: none, full"),
        ({"quorum": -1}, "quorum = -1: allowed: 1 to the ranks of the job, or 0 for half of them, rounded up"),
        ({"probes": 1025}, "probes = 1025: allowed: 1 to the ranks of the job, or 0 for 2"),
        ({"tau": 256}, "tau = 256: allowed: 1 to 255, or 0 for 8"),
        ({"eta": -1}, "eta = -1: allowed: 1 to 255, or 0 for 4"),
    ],
)
def test_from_proto__names_what_is_out_of_range(fields: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        from_proto(types_pb2.JobOptions(**fields))  # type: ignore[arg-type]


def test_differing__names_field_and_both_values() -> None:
    assert differing(DEFAULTS, DEFAULTS) is None
    assert differing(IN_FORCE, DEFAULTS) == ("algorithm", "ring", "tar")
    assert differing(Options(incast=3), DEFAULTS) == ("incast", "3", "0")


def test_with_changes__what_is_not_set_stays() -> None:
    told = Options(policy=3, tau=2)
    assert DEFAULTS.with_changes(told.to_proto()) == told
    assert told.with_changes(types_pb2.JobOptions(tau=3)) == Options(policy=3, tau=3)
    assert named(types_pb2.JobOptions()) == {}


def test_seeded__hosts_draw_alike_and_each_life_anew() -> None:
    assert DEFAULTS.seeded(77) == DEFAULTS
    assert Options(policy=4).seeded(77) == Options(policy=4, policy_seed=77)
    assert Options(policy=4, policy_seed=5).seeded(77) == Options(policy=4, policy_seed=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(quorum=5), "quorum = 5: allowed: 1 to 4, the ranks of the job"),
        (Options(policy=6, probes=5), "probes = 5: allowed: 1 to 4, the ranks of the job"),
        (Options(policy=3, algorithm=2), "algorithm = ring: allowed: tar: the job is partial, policy = solo"),
        (Options(policy=7, hadamard=3), "hadamard = auto: allowed: off: the job is partial, policy = seeded"),
        (Options(policy=2, stragglers=1), "stragglers = 1: allowed: 0: the job is not coded, policy = full"),
        (
            Options(policy=8, children=2),
            "world_size = 4: allowed: 3, 7, 15, 31, 63 ranks, which fill a tree of 2 children each under its master",
        ),
        (Options(policy=8, children=3, exact=2), "exact = no: allowed: yes in a tree in this release"),
        (
            Options(policy=8, children=3, code=2, stragglers=3),
            "stragglers = 3: allowed: 0 to 2 of 3 children of a parent",
        ),
        (
            Options(policy=8, children=3, stragglers=1),
            "stragglers = 1: allowed: one less than a divisor of the 3 children of a parent",
        ),
        (Options(policy=8, code=2, exact=2), "exact = no: allowed: yes with a linear code in this release"),
        (Options(policy=8, code=2, stragglers=4), "stragglers = 4: allowed: 0 to 3 of 4 ranks"),
        (Options(policy=8, stragglers=2), "stragglers = 2: allowed: one less than a divisor of the 4 ranks"),
        (Options(deterministic=2, algorithm=3), "algorithm = bcube: allowed: tar, ring, ps: the job is deterministic"),
        (Options(deterministic=2, hadamard=3), "hadamard = auto: allowed: off, on: the job is deterministic"),
        (Options(deterministic=2, policy=3), "deterministic = yes: allowed: no: the job is partial, policy = solo"),
        (Options(exact=2), "exact = no: allowed: yes: the job is not coded, policy = none"),
    ],
)
def test_check_job__names_what_does_not_fit(options: Options, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_job(options, 4)
    assert str(caught.value) == message
    check_job(Options(policy=5, quorum=4, probes=4), 4)
    check_job(Options(policy=8, children=3, stragglers=2), 4)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (DEFAULTS, Options(algorithm=2), "algorithm = ring: allowed: tar: it cannot be changed while the job runs"),
        (
            DEFAULTS,
            Options(deterministic=2),
            "deterministic = yes: allowed: no: it cannot be changed while the job runs",
        ),
        (
            Options(policy=4, policy_seed=5),
            Options(policy=4, policy_seed=6),
            "policy_seed = 6: allowed: 5: it cannot be changed while the job runs",
        ),
        (
            DEFAULTS,
            Options(policy=3),
            "policy = solo: allowed: none: a job that began without a policy gets none while it runs",
        ),
        (
            Options(policy=2),
            DEFAULTS,
            "policy = none: allowed: full, solo, majority, quorum, probe, seeded: "
            "a job that began partial stays so while it runs",
        ),
        (
            Options(policy=4),
            Options(policy=8),
            "policy = coded: allowed: full, solo, majority, quorum, probe, seeded: "
            "a job that began partial stays so while it runs",
        ),
        (
            Options(policy=8),
            Options(policy=2),
            "policy = full: allowed: coded: a job that began coded stays so while it runs",
        ),
        (
            Options(policy=8, stragglers=1),
            Options(policy=8, stragglers=3),
            "stragglers = 3: allowed: 1: it cannot be changed while the job runs",
        ),
    ],
)
def test_check_change__names_what_is_fixed(before: Options, after: Options, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_change(before, after)
    assert str(caught.value) == message
    check_change(before, before)


def test_changes__are_told_with_units_and_nothing_else() -> None:
    changed = DEFAULTS.with_changes(types_pb2.JobOptions(incast=2, t_c_ns=2_000_000))
    assert changed.changes(DEFAULTS) == "incast is 2 (was dynamic), t_c is 2 ms (was measured)"
    assert DEFAULTS.changes(DEFAULTS) == "as before"


def test_in_force__each_set_has_its_ops() -> None:
    """As the engine keeps epochs: an op that is yet to open has what holds in it, however many came since."""
    told: list[int] = []
    here = InForce(DEFAULTS, lambda: told.append(1))
    one, two = Options(tau=1), Options(tau=2)
    here.take(one, 5, 0)
    assert [here.at(op) for op in (0, 4, 5, 9)] == [DEFAULTS, DEFAULTS, one, one]
    here.take(one, 7, 6)  # an epoch that changes other things
    assert (here.options, here.start, here.at(6)) == (one, 5, one)
    here.take(two, 3, 8)  # its op is past
    assert (here.start, here.at(7), here.at(8)) == (8, one, two)
    here.take(one, 8, 7)  # in the place of one under which no op was opened
    assert (here.options, here.at(8), here.at(7)) == (one, one, one)
    assert len(told) == 3
    later = [Options(tau=tau) for tau in range(3, 6)]
    for number, each in enumerate(later):
        here.take(each, 10 + 2 * number, 9)
    assert [here.at(op) for op in range(8, 16)] == [one, one, *(each for each in later for _ in range(2))]
    here.take(two, 12, 9)
    assert [here.at(op) for op in (11, 12, 15)] == [later[0], two, two]


async def tuned(daemon: Daemon, job: str = "job", **fields: Any) -> admin_pb2.TuneResponse:
    request = admin_pb2.TuneRequest(job=job, options=types_pb2.JobOptions(**fields))
    async with local_channel(daemon.config.socket) as channel:
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        who = await proof(daemon.config.attach_socket)
        return await stub.Tune(request, timeout=HOSTS_SECONDS, metadata=who)


async def tune(daemon: Daemon, job: str = "job", **fields: Any) -> types_pb2.JobOptions:
    return (await tuned(daemon, job, **fields)).options


async def refused(code: grpc.StatusCode, *words: str, daemon: Daemon, **fields: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tune(daemon, **fields)
    assert caught.value.code() is code, caught.value.details()
    for word in words:
        assert word in (caught.value.details() or "")


def run(tmp_path: Path, story: Any) -> None:
    async def tell() -> None:
        house = House(tmp_path)
        try:
            await story(house)
        finally:
            await house.close()

    asyncio.run(tell())


def in_force(daemon: Daemon) -> Options | None:
    job = daemon.jobs.all()[0]
    return job.in_force.options if job.in_force else None


def test_join__options_reach_the_engine_of_every_host(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        trainers = await house.job(daemons, options=SAID)
        for daemon, trainer in zip(daemons, trainers, strict=True):
            assert engine(daemon).jobs[0].config.options == IN_FORCE
            assert trainer.joined is not None and from_proto(trainer.joined.options) == IN_FORCE
            assert from_proto((await status(daemon)).jobs[0].options) == IN_FORCE

    run(tmp_path, story)


def test_join__ranks_that_differ_are_all_told_in_what(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        trainers = [await house.trainer(daemon) for daemon in daemons]
        said = [types_pb2.JobOptions(incast=1), types_pb2.JobOptions(incast=1), types_pb2.JobOptions(incast=2)]
        joins = [
            trainer.join(rank, 3, rendezvous=rendezvous(daemons[0]), options=options)
            for rank, (trainer, options) in enumerate(zip(trainers, said, strict=True))
        ]
        for answer in await asyncio.gather(*joins, return_exceptions=True):
            assert isinstance(answer, grpc.aio.AioRpcError)
            assert answer.code() is grpc.StatusCode.FAILED_PRECONDITION
            details = answer.details() or ""
            assert "incast differs: rank" in details and "says 1" in details and "rank 2 says 2" in details
        await house.job(daemons, options=SAID)  # a new attempt, in which they agree, is not held back by the old one

    run(tmp_path, story)


def test_join__what_the_engine_refuses_is_said_and_can_be_tried_again(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(2)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await house.job(daemons, options=types_pb2.JobOptions(incast=2))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "incast 2" in (caught.value.details() or "")
        await asyncio.sleep(0.1)
        await house.job(daemons, options=types_pb2.JobOptions(incast=1))

    run(tmp_path, story)


def test_tune__reaches_all_hosts_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        await house.job(daemons, options=SAID)
        answer = from_proto(await tune(daemons[1], hadamard="HADAMARD_AUTO", t_c_ns=0))
        wanted = Options(algorithm=2, hadamard=3, incast=2, t_b_ns=-1, t_c_ns=0)
        assert answer == wanted
        await eventually(lambda: all(in_force(daemon) == wanted for daemon in daemons), "all have heard that it holds")
        for daemon in daemons:
            assert engine(daemon).jobs[0].tuned == [wanted]

    run(tmp_path, story)


def test_tune__refuses_by_name_and_changes_nothing(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(2)]
        await house.job(daemons)
        wrong = grpc.StatusCode.INVALID_ARGUMENT
        await refused(wrong, "algorithm", "cannot be changed", daemon=daemons[0], algorithm="ALGORITHM_RING")
        await refused(wrong, "incast 7", daemon=daemons[0], incast=7)
        await refused(wrong, "early_percent = 300", daemon=daemons[0], early_percent=300)
        await refused(wrong, "options", "allowed", daemon=daemons[0])
        await refused(grpc.StatusCode.NOT_FOUND, "'other'", daemon=daemons[0], job="other", incast=1)
        assert [engine(daemon).jobs[0].tuned for daemon in daemons] == [[], []]
        assert in_force(daemons[0]) == in_force(daemons[1]) == DEFAULTS

    run(tmp_path, story)


def test_tune__from_two_hosts_at_once_ends_alike(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        await house.job(daemons)
        await asyncio.gather(tune(daemons[0], incast=1), tune(daemons[2], early_percent=77))
        await eventually(lambda: in_force(daemons[0]) == in_force(daemons[1]) == in_force(daemons[2]), "all agree")
        options = in_force(daemons[1])
        assert options is not None and (options.incast, options.early_percent) == (1, 77)

    run(tmp_path, story)


def test_tune__a_host_that_was_away_hears_of_it_when_it_comes_back(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        daemons = [await house.daemon() for _ in range(3)]
        trainers = await house.job(daemons, options=SAID)
        meeting = rendezvous(daemons[0])
        trainers[2].hang_up()
        await house.stop(daemons[2])
        await tune(daemons[0], incast=1)
        back = await house.daemon("d2", port=str(daemons[2].grpc_port))
        trainer = await house.trainer(back)
        answer = await trainer.join(2, 3, rendezvous=meeting, options=SAID)
        assert answer.options.incast == 1, "what it said at first is no contradiction to what holds since"
        assert engine(back).jobs[0].tuned[-1].incast == 1
        trainer = await house.trainer(back)
        with pytest.raises(grpc.aio.AioRpcError, match="incast differs: rank 2 says 0"):
            house.trainers[-2].hang_up()
            await eventually(lambda: not back.jobs.all() or not back.jobs.all()[0].sessions, "its old trainer is gone")
            await trainer.join(2, 3, rendezvous=meeting, options=types_pb2.JobOptions(algorithm="ALGORITHM_RING"))

    run(tmp_path, story)
