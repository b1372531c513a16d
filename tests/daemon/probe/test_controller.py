# SPDX-License-Identifier: Apache-2.0
"""RNA's controller alone: what it asks, whom it believes, and when. The test answers its probes, in whatever order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.daemon.helpers import eventually
from tests.daemon.probe.stage import PROBE, stage, sums
from ultima.base.reference import picks
from ultima.daemon.base.errors import DeadlineExceeded, FailedPrecondition, Refused, Unavailable
from ultima.daemon.engine.engine import EventKind
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs.readiness import EXPIRED, READY, UNKNOWN_RANK
from ultima.daemon.probe.controller import Calls, has_role
from ultima.v1 import types_pb2

# docs/papers.md, section 2.6: the first two draws for t = 0, 1, ... of seed 42 and 8 ranks.
PICKS = [(5, 7), (0, 2), (2, 7), (4, 1), (5, 3), (6, 5), (3, 6), (3, 4)]
ORDER = [picks(42, t, 8, 8) for t in range(2)]


# ---- whom it asks ----


def test_picks__are_those_of_the_specification() -> None:
    assert [tuple(picks(42, t, 8, 2)) for t in range(8)] == PICKS
    firsts = [picks(42, t, 8, 1)[0] for t in range(16)]
    assert firsts == [5, 0, 2, 4, 5, 6, 3, 3, 4, 0, 3, 3, 1, 4, 3, 4]
    for world in (1, 2, 7, 64, 1024):
        assert sorted(picks(42, 3, world, world)) == list(range(world))


async def test_draw__two_ranks_from_the_seed_and_the_next_two_for_the_next_op() -> None:
    async with stage() as s:
        for t, drawn in enumerate(PICKS):
            asked = await s.probes(2 * t + 2)
            assert [(a.op_seq, a.rank) for a in asked[2 * t :]] == [(t, rank) for rank in drawn]
            asked[2 * t].say(READY)
            await s.quiet()
            assert s.activated == [(PICKS[i][0], i) for i in range(t + 1)]
            s.tell(EventKind.ACTIVATED, t)
        assert s.job.probes.decided == 8


@pytest.mark.parametrize(("q", "count"), [(1, 1), (3, 3), (8, 8), (0, 2)])
async def test_draw__as_many_as_the_job_says(q: int, count: int) -> None:
    async with stage(options=replace(PROBE, probes=q)) as s:
        assert len({asked.rank for asked in await s.probes(count)}) == count == len(s.asked)


async def test_draw__one_rank_alone() -> None:
    async with stage(hosts=1) as s:
        (asked,) = await s.probes(1)
        asked.say(READY)
        await s.quiet()
        assert s.activated == [(0, 0)]


async def test_draw__skips_the_dead() -> None:
    async with stage() as s:
        order = ORDER[0]
        dead = [rank for rank in order if rank != s.job.own.index][:4]  # type: ignore[union-attr]
        s.dies(*dead)
        assert [a.rank for a in await s.probes(2)] == [rank for rank in order if rank not in dead][:2]


# ---- races ----


async def test_race__both_ready_at_once_and_one_wins() -> None:
    async with stage() as s:
        first, second = await s.probes(2)
        second.say(READY)
        first.say(READY)
        await s.quiet()
        assert s.activated == [(PICKS[0][0], 0)], "the one that was drawn first, and only that one"


async def test_race__the_loser_is_taken_back_and_its_late_answer_is_not_heard() -> None:
    """A reply to number 7 after number 8 opened is ignored (docs/papers.md, section 3.5)."""
    async with stage() as s:
        first, second = await s.probes(2)
        second.say(READY)
        await s.quiet()
        assert s.activated == [(PICKS[0][1], 0)]
        assert first.answer.cancelled()
        s.tell(EventKind.ACTIVATED, 0)
        await s.probes(4)
        first.say(READY)
        await s.quiet()
        assert s.activated == [(PICKS[0][1], 0)]
        assert sums(s.job) == (1, 1, 0)


async def test_race__another_controller_was_quicker() -> None:
    """The own engine hears that the op has started, while nobody was ready here."""
    async with stage() as s:
        first, second = await s.probes(2)
        s.tell(EventKind.ACTIVATED, 0)
        asked = await s.probes(4)
        assert first.answer.cancelled() and second.answer.cancelled()
        assert [(a.op_seq, a.rank) for a in asked[2:]] == [(1, rank) for rank in PICKS[1]]
        assert s.activated == [] and s.job.probes.decided == 0


async def test_race__activate_finds_that_it_has_started() -> None:
    async with stage() as s:
        s.on_activate = lambda host, op_seq: False
        (await s.probes(2))[0].say(READY)
        await s.probes(4)
        assert s.job.probes.decided == 0 and s.job.probes.denied == 0
        assert {a.op_seq for a in s.asked[2:]} == {1}


# ---- who is not there ----


@pytest.mark.parametrize("way", ["unavailable", "unknown", "deadline", "nonsense"])
async def test_gone__both_are_replaced_at_once(way: str) -> None:
    async with stage() as s:
        order = ORDER[0]
        for asked in (await s.probes(2))[:2]:
            if way == "unavailable":
                asked.fail(Unavailable("nobody there"))
            elif way == "deadline":
                asked.fail(DeadlineExceeded("it took too long"))
            else:
                asked.say(UNKNOWN_RANK if way == "unknown" else 0)
        asked_now = await s.probes(4)
        assert [a.rank for a in asked_now] == list(order[:4])
        assert s.job.probes.gone == 2 and s.job.probes.redrawn == 2 and s.job.probes.timed_out == 0
        asked_now[3].say(READY)
        await s.quiet()
        assert s.activated == [(order[3], 0)]


async def test_gone__a_call_that_breaks_on_a_mistake_of_our_own_is_logged_and_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stage() as s:
        (await s.probes(2))[0].fail(ZeroDivisionError("a bug"))
        await s.probes(3)
        assert "probe failed" in caplog.text and "a bug" in caplog.text


async def test_gone__host_that_dies_unheard_while_it_is_asked() -> None:
    """Its call may hang until the keepalive; the watch tells first."""
    async with stage() as s:
        first, second = await s.probes(2)
        s.dies(first.rank)
        asked = await s.probes(3)
        assert first.answer.cancelled() and second.open and len(asked) == 3


async def test_gone__nobody_answers_and_nobody_is_asked_again_and_again() -> None:
    async with stage() as s:
        for i in range(8):
            (await s.probes(i + 1))[i].fail(Unavailable("nobody there"))
        await s.quiet()
        await asyncio.sleep(0.05)
        assert len(s.asked) == 8, "each once, and then it waits"
        s.dies(3)
        await s.probes(10)
        assert s.job.probes.timed_out == 0, "others are alive now: worth another draw at once"


async def test_gone__everybody_until_the_time_is_up() -> None:
    async with stage(hosts=2, timeout=0.5) as s:
        for asked in await s.probes(2):
            asked.fail(Unavailable("nobody there"))
        await s.probes(4)
        assert s.job.probes.timed_out == 1


async def test_gone__own_ranks_that_have_died_are_not_asked() -> None:
    async with stage(options=replace(PROBE, probes=8)) as s:
        await s.probes(8)
        s.job.sessions.clear()
        s.job.joining[0] = None  # type: ignore[assignment]  # another life of it is on the way
        s.tell(EventKind.ACTIVATED, 0)
        await s.probes(15)
        assert sorted(a.rank for a in s.asked[8:]) == [1, 2, 3, 4, 5, 6, 7]


# ---- time ----


async def test_timeout__draws_go_on_through_all_ranks_before_one_comes_again() -> None:
    async with stage(timeout=0.02) as s:
        asked = await s.probes(11)
        order = ORDER[0]
        assert [a.rank for a in asked[:11]] == [*order, *order[:3]]
        assert not any(a.open for a in asked[:8]), "what was asked in an earlier draw is taken back"
        assert s.job.probes.timed_out >= 4 and s.job.probes.redrawn >= 9


async def test_timeout__of_the_one_that_is_to_start_the_op() -> None:
    async with stage(timeout=0.5) as s:
        hang = asyncio.Event()

        async def never(host: Host, op_seq: int) -> bool:
            await hang.wait()
            return True

        assert s.controller is not None
        s.controller._calls = Calls(s._probe, never)
        (await s.probes(2))[0].say(READY)
        await eventually(lambda: s.job.probes.denied == 1, "it gives up")
        await s.probes(3)


# ---- lies and misunderstandings ----


async def test_lie__ready_but_nothing_there() -> None:
    async with stage() as s:
        order = ORDER[0]

        def deny(host: int, op_seq: int) -> bool:
            if host == order[0]:
                raise FailedPrecondition("nobody has given anything")
            return True

        s.on_activate = deny
        (await s.probes(2))[0].say(READY)
        asked = await s.probes(3)
        assert s.activated == [(order[0], 0)] and s.job.probes.denied == 1
        assert asked[1].open and asked[2].rank == order[2], "only the liar is replaced"
        asked[2].say(READY)
        await s.quiet()
        assert s.activated == [(order[0], 0), (order[2], 0)] and s.job.probes.decided == 1


async def test_lie__the_second_of_two_ready_ones_is_taken_when_the_first_denies() -> None:
    async with stage() as s:
        refusals: list[Refused] = [FailedPrecondition("overtaken")]

        def deny_once(host: int, op_seq: int) -> bool:
            if refusals:
                raise refusals.pop()
            return True

        s.on_activate = deny_once
        for asked in await s.probes(2):
            asked.say(READY)
        await s.quiet()
        assert s.activated == [(PICKS[0][0], 0), (PICKS[0][1], 0)]


async def test_lie__everybody_always_does_not_make_it_spin() -> None:
    async with stage() as s:

        def deny(host: int, op_seq: int) -> bool:
            raise FailedPrecondition("nothing here")

        s.on_activate = deny
        for i in range(8):
            (await s.probes(i + 1))[i].say(READY)
        await s.quiet()
        assert len(s.asked) == len(s.activated) == 8 and s.job.probes.denied == 8


async def test_lie__started_but_never_was() -> None:
    """It goes ahead by one, and comes back to the same op with the next draws when the time is up."""
    async with stage(timeout=1.0) as s:
        order = ORDER[0]
        (await s.probes(2))[0].say(READY)
        asked = await s.probes(4)
        assert [a.op_seq for a in asked[2:4]] == [1, 1]
        asked[2].say(READY)  # the same for op 1: this one is not followed any further
        await s.quiet()
        assert s.activated == [(order[0], 0), (PICKS[1][0], 1)] and len(s.asked) == 4
        asked = await s.probes(6)
        assert [(a.op_seq, a.rank) for a in asked[4:6]] == [(0, order[2]), (0, order[3])]


async def test_expired__follows_the_others_when_it_was_away() -> None:
    """Of a controller that comes back: its own engine is at 0, the job at 50. The tree then takes its engine along."""
    async with stage() as s:
        (await s.probes(2))[1].say(EXPIRED, 50)
        asked = await s.probes(4)
        assert [a.op_seq for a in asked[2:]] == [50, 50]
        assert asked[0].answer.cancelled()
        asked[2].say(READY)
        await s.quiet()
        assert [op_seq for _, op_seq in s.activated] == [50]
        s.tell(EventKind.ACTIVATED, 50)
        assert {a.op_seq for a in (await s.probes(6))[4:]} == {51}


async def test_expired__is_not_led_away() -> None:
    async with stage(timeout=1.0) as s:
        (await s.probes(2))[0].say(EXPIRED, 10**6)
        (await s.probes(4))[2].say(EXPIRED, 10**9)
        await s.quiet()
        assert {a.op_seq for a in s.asked[2:]} == {10**6}, "followed once, and not again"
        await eventually(lambda: s.asked[-1].op_seq == 0, "it is back where its engine is")


async def test_expired__at_an_op_that_is_not_past_counts_as_no_answer() -> None:
    async with stage() as s:
        (await s.probes(2))[0].say(EXPIRED, 0)
        assert {a.op_seq for a in await s.probes(3)} == {0} and s.job.probes.gone == 1


# ---- the role ----


async def test_role__ends_when_a_lower_host_is_back() -> None:
    async with stage(own=2) as s:
        assert s.controller is not None and s.job.links is not None
        await s.quiet()
        assert s.controller.task.done() and not s.asked, "hosts 0 and 1 are up: it is not ours"
        s.job.links[0].state = s.job.links[1].state = State.ABSENT
        s.begin()
        await s.probes(2)
        s.job.links[1].state = State.UP
        s.poke()
        await eventually(s.controller.task.done, "given back")
        assert not s.open()


async def test_role__a_host_whose_ranks_have_left_does_not_count() -> None:
    async with stage(own=1) as s:
        assert s.job.links is not None
        s.job.links[0].leaving = True
        assert has_role(s.job, s.engine)
        s.job.sessions.clear()
        assert not has_role(s.job, s.engine), "nor do we without any"


async def test_role__takes_over_where_its_own_engine_is() -> None:
    async with stage(own=1) as s:
        await s.quiet()
        assert s.job.links is not None and not s.asked
        s.tell(EventKind.ACTIVATED, 6)
        s.job.links[0].state = State.ABSENT
        s.begin()
        asked = await s.probes(2)
        assert [(a.op_seq, a.rank) for a in asked] == [(7, 3), (7, 4)]


@pytest.mark.parametrize("policy", [types_pb2.POLICY_SOLO, types_pb2.POLICY_SEEDED])
async def test_role__the_policy_in_force_at_the_op_decides(policy: int) -> None:
    async with stage() as s:
        in_force = s.job.in_force
        assert in_force is not None and s.controller is not None
        in_force.take(replace(PROBE, policy=policy), 2, 0)
        for op_seq in (0, 1):
            assert has_role(s.job, s.engine)
            asked = await s.probes(2 * op_seq + 2)
            asked[2 * op_seq].say(READY)
            await s.quiet()
            assert [a.op_seq for a in s.asked if a.open] == ([1, 1] if op_seq == 0 else []), "not of op 2"
            s.tell(EventKind.ACTIVATED, op_seq)
        await eventually(s.controller.task.done, "op 2 is under another policy")
        assert len(s.asked) == 4 and not has_role(s.job, s.engine)
        in_force.take(replace(PROBE, probes=3), 4, 2)
        s.tell(EventKind.ACTIVATED, 2)
        assert not has_role(s.job, s.engine), "op 3 is still under the other one"
        s.tell(EventKind.ACTIVATED, 3)
        assert has_role(s.job, s.engine)
        s.begin()
        assert [a.op_seq for a in (await s.probes(7))[4:]] == [4, 4, 4]


async def test_role__q_changes_at_its_op() -> None:
    async with stage() as s:
        assert s.job.in_force is not None
        s.job.in_force.take(replace(PROBE, probes=5), 1, 0)
        assert len(await s.probes(2)) == 2
        s.tell(EventKind.ACTIVATED, 0)
        assert len(await s.probes(7)) == 7


async def test_role__the_job_ends_while_probes_are_open() -> None:
    async with stage() as s:
        assert s.controller is not None
        await s.probes(2)
        s.job.over = True
        s.poke()
        await eventually(s.controller.task.done, "it ends with the job")
        assert not s.open()
