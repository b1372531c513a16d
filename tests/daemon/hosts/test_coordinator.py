# SPDX-License-Identifier: Apache-2.0
"""The coordinator: how a job forms, who is told what when it does not, and how ranks come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ultima.daemon.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
)
from ultima.daemon.base.waiting import Changes, numbers
from ultima.daemon.hosts import coordinator as module
from ultima.daemon.hosts.coordinator import Coordinator
from ultima.daemon.hosts.host import Elastic, Host, Membership, State
from ultima.daemon.hosts.registration import Record, Registration, Voucher, form
from ultima.daemon.hosts.seats import seated, take_seat


def registration(rank: int, world_size: int = 2, host: int | None = None, life: int = 1, **fields: Any) -> Registration:
    """A rank on a host of its own, unless `host` names one."""
    at = rank if host is None else host
    entry = Host(0, f"10.0.0.{at}", 29520, ((29521, 29522),), 1000 * life + at, (rank,), 1472)
    values = {"bucket_bytes_max": 1000, "left_generation": 0} | fields
    return Registration("job", rank, world_size, entry, **values)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(lambda: None)


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def formed(coordinator: Coordinator, *registrations: Registration) -> Record:
    await asyncio.gather(*(coordinator.register(r, soon()) for r in registrations))
    record = coordinator.record("job")
    assert record is not None
    return record


def up(coordinator: Coordinator, record: Record, *indexes: int, state: State = State.UP) -> None:
    for index in indexes:
        coordinator.host_is(
            record.hosts[index].place, "job", record.generation, index, record.hosts[index].incarnation, state
        )


def told(record: Record, *states: State) -> Membership:
    """What one of its hosts would say of a job."""
    return Membership(
        record.generation, record.world_size, 1, tuple(record.hosts), states or tuple(record.states), 41, True
    )


async def test_register__everyone_gets_the_same_membership(coordinator: Coordinator) -> None:
    ranks = [registration(r, 5, host) for r, host in ((3, 7), (0, 9), (1, 7), (4, 8), (2, 9))]
    ranks[2] = replace(ranks[2], bucket_bytes_max=5000)
    answers = await asyncio.gather(*(coordinator.register(r, soon()) for r in ranks))
    assert all(answer == answers[0] for answer in answers)
    first = answers[0]
    assert [(h.index, h.address, h.ranks) for h in first.hosts] == [
        (0, "10.0.0.9", (0, 2)),
        (1, "10.0.0.7", (1, 3)),
        (2, "10.0.0.8", (4,)),
    ]
    assert first.bucket_bytes_max == 5000 and first.world_size == 5
    assert first.generation > 0 and not first.under_way


async def test_register__one_rank_is_at_once(coordinator: Coordinator) -> None:
    answer = await coordinator.register(registration(0, 1), soon(0.0))
    assert [h.ranks for h in answer.hosts] == [(0,)]


@pytest.mark.parametrize(
    ("rank", "world_size", "field"),
    [(0, 0, "world_size = 0"), (0, 1025, "world_size = 1025"), (2, 2, "rank = 2"), (-1, 2, "rank = -1")],
)
async def test_register__out_of_range(coordinator: Coordinator, rank: int, world_size: int, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        await coordinator.register(registration(rank, world_size, host=1), soon())


async def test_register__deadline_names_the_missing_ranks(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GAVE_UP_SECONDS", 0.0)
    waiting = asyncio.ensure_future(coordinator.register(registration(4, 8), soon()))
    with pytest.raises(DeadlineExceeded, match=r"'job': ranks 0-1, 3, 5-7 of world_size 8 have not joined"):
        await coordinator.register(registration(2, 8), soon(0.1))
    with pytest.raises(DeadlineExceeded, match=r"ranks 0-2, 5-7 of"):  # 2 took its registration back
        await coordinator.register(registration(3, 8), soon(0.1))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(DeadlineExceeded, match=r"ranks 1-7 of"):  # and so did 4, when its caller went away
        await coordinator.register(registration(0, 8), soon(0.1))


async def test_register__ranks_that_give_up_together_do_not_miss_each_other(coordinator: Coordinator) -> None:
    ranks = [registration(r, 4) for r in (0, 2, 3)]
    results = await asyncio.gather(
        *(coordinator.register(r, soon(0.1 * i)) for i, r in enumerate(ranks, 1)), return_exceptions=True
    )
    assert all("ranks 1 of world_size 4 have not joined" in str(r) for r in results), results


async def test_register__world_size_conflict_is_told_to_every_rank(coordinator: Coordinator) -> None:
    early = [asyncio.ensure_future(coordinator.register(registration(r, 4), soon())) for r in (0, 1)]
    await asyncio.sleep(0)
    named = r"world_size differs: rank 3 says 5, rank 0 says 4"
    with pytest.raises(FailedPrecondition, match=named):
        await coordinator.register(registration(3, 5), soon())
    for task in early:
        with pytest.raises(FailedPrecondition, match=named):
            await task
    with pytest.raises(FailedPrecondition, match=named):  # late, but told all the same
        await coordinator.register(registration(2, 4), soon())


async def test_register__after_a_conflict_the_name_is_free_again(coordinator: Coordinator) -> None:
    waiting = asyncio.ensure_future(coordinator.register(registration(0, 2), soon()))
    await asyncio.sleep(0)
    with pytest.raises(FailedPrecondition):
        await coordinator.register(registration(1, 3), soon())
    with pytest.raises(FailedPrecondition):
        await waiting
    record = await formed(coordinator, registration(0, 2, life=2), registration(1, 2, life=2))
    assert record.world_size == 2


async def test_register__conflict_is_forgotten(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFLICT_SECONDS", 0.0)
    waiting = asyncio.ensure_future(coordinator.register(registration(0, 3), soon()))
    await asyncio.sleep(0)
    with pytest.raises(FailedPrecondition):
        await coordinator.register(registration(1, 2), soon())
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(DeadlineExceeded):  # rank 2 was never told, and is not any more
        await coordinator.register(registration(2, 3), soon(0.05))


async def test_register__rank_taken_by_another_host(coordinator: Coordinator) -> None:
    waiting = asyncio.ensure_future(coordinator.register(registration(0, 3, host=1), soon()))
    await asyncio.sleep(0)
    with pytest.raises(AlreadyExists, match=r"rank = 0: has joined job 'job' on 10.0.0.1 already"):
        await coordinator.register(registration(0, 3, host=2), soon())
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_register__again_voids_the_older_call(coordinator: Coordinator) -> None:
    older = asyncio.ensure_future(coordinator.register(registration(0), soon()))
    await asyncio.sleep(0)
    newer = asyncio.ensure_future(coordinator.register(registration(0), soon()))
    await asyncio.sleep(0)
    other = await coordinator.register(registration(1), soon())
    assert (await newer).generation == other.generation
    assert (await older).generation == other.generation  # the job is there, so it may know as well


async def test_register__restarted_daemon_voids_its_former_life(coordinator: Coordinator) -> None:
    old = asyncio.ensure_future(coordinator.register(registration(0, 3, host=1, life=1), soon(0.5)))
    await asyncio.sleep(0)
    new = asyncio.ensure_future(coordinator.register(registration(1, 3, host=1, life=2), soon(0.5)))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded, match=r"ranks 0 of"):
        await coordinator.register(registration(2, 3, host=2), soon(0.2))
    results = await asyncio.gather(old, new, return_exceptions=True)
    assert isinstance(results[0], FailedPrecondition | DeadlineExceeded)
    assert isinstance(results[1], DeadlineExceeded)


async def test_register__rejoin_takes_the_old_place_at_once(coordinator: Coordinator) -> None:
    record = await formed(coordinator, registration(0), registration(1))
    up(coordinator, record, 0, 1)
    up(coordinator, record, 1, state=State.ABSENT)
    back = registration(1, life=2)
    answer = await coordinator.register(back, soon(0.0))
    assert answer.under_way and answer.generation == record.generation
    assert answer.hosts[1].incarnation == back.host.incarnation
    assert answer.states == (State.UP, State.ABSENT)


async def test_register__rejoin_before_the_death_was_noticed(coordinator: Coordinator) -> None:
    record = await formed(coordinator, registration(0), registration(1))
    up(coordinator, record, 0, 1)
    answer = await coordinator.register(registration(1, life=2), soon(0.0))
    assert answer.under_way
    with pytest.raises(AlreadyExists, match="which is alive"):
        await coordinator.register(registration(0, host=5, life=2), soon(0.0))


async def test_register__rejoin_with_another_world_size(coordinator: Coordinator) -> None:
    record = await formed(coordinator, registration(0), registration(1))
    up(coordinator, record, 0, 1)
    with pytest.raises(FailedPrecondition, match=r"rank 1 says 3, the job that is under way has 2"):
        await coordinator.register(registration(1, 3, life=2), soon())


async def test_register__unconfirmed_job_forms_anew(coordinator: Coordinator) -> None:
    record = await formed(coordinator, registration(0), registration(1))
    again = asyncio.ensure_future(coordinator.register(registration(1, life=2), soon()))
    await asyncio.sleep(0.05)
    assert not again.done()
    answer = await coordinator.register(registration(0, life=2), soon())
    assert answer.generation != record.generation and not answer.under_way
    assert (await again) == answer


async def test_register__who_left_in_good_order_waits_for_the_next_life(coordinator: Coordinator) -> None:
    record = await formed(coordinator, registration(0), registration(1))
    up(coordinator, record, 0, 1)
    up(coordinator, record, 1, state=State.ABSENT)
    with pytest.raises(DeadlineExceeded, match="last run is not over: ranks 0 have not left it"):
        await coordinator.register(registration(1, life=2, left_generation=record.generation), soon(0.1))
    waiting = asyncio.ensure_future(
        coordinator.register(registration(1, life=2, left_generation=record.generation), soon())
    )
    await asyncio.sleep(0.05)
    up(coordinator, record, 0, state=State.ABSENT)
    answer = await coordinator.register(registration(0, life=2), soon())
    assert answer.generation != record.generation
    assert (await waiting).generation == answer.generation


async def test_host_is__news_of_another_life_is_ignored(coordinator: Coordinator) -> None:
    record = await formed(coordinator, registration(0), registration(1))
    up(coordinator, record, 0, 1)
    incarnation, place = record.hosts[1].incarnation, record.hosts[1].place
    for generation, index, life in ((record.generation + 1, 1, incarnation), (record.generation, 1, 77)):
        coordinator.host_is(place, "job", generation, index, life, State.ABSENT)
    coordinator.host_is(place, "job", record.generation, 9, incarnation, State.ABSENT)
    coordinator.host_is(place, "other", record.generation, 1, incarnation, State.ABSENT)
    other = record.hosts[0].place
    coordinator.host_is(other, "job", record.generation, 1, incarnation, State.ABSENT)  # not its to say
    assert record.states == [State.UP, State.UP]


async def test_place_lost__ends_what_only_lived_there(coordinator: Coordinator) -> None:
    record = await formed(coordinator, registration(0), registration(1))
    up(coordinator, record, 0, 1)
    coordinator.place_lost(record.hosts[1].place)
    assert record.states == [State.UP, State.ABSENT] and coordinator.record("job") is record
    coordinator.place_lost(record.hosts[0].place)
    assert coordinator.record("job") is None
    assert coordinator.places() == set()


async def test_restore__ranks_that_wait_find_their_place(coordinator: Coordinator) -> None:
    other = Coordinator(lambda: None)
    record = await formed(other, registration(0), registration(1))
    waiting = asyncio.ensure_future(coordinator.register(registration(0, life=2), soon()))
    await asyncio.sleep(0)
    coordinator.restore("job", told(record, State.ABSENT, State.UP), record.hosts[1].address)
    answer = await waiting
    assert answer.generation == record.generation and answer.under_way and answer.next_op_seq == 41
    assert answer.states == (State.ABSENT, State.UP)
    coordinator.restore("job", replace(told(record), generation=5), record.hosts[1].address)
    known = coordinator.record("job")
    assert known is not None and known.generation == record.generation


async def test_restore__words_of_many_hosts_take_few_places(coordinator: Coordinator) -> None:
    """With a secret nobody knows yet which of them is true; the first rank that shows it ends the others."""
    other = Coordinator(lambda: None)
    ranks = [registration(rank, 20) for rank in range(20)]
    nodes = [replace(each, host=replace(each.host, node=f"n{each.rank}"), secret=b"s" * 32) for each in ranks]
    record = await formed(other, *nodes)
    words = told(record, *[State.UP] * 20)
    for host in record.hosts[1:]:
        known = b"x" * 32 if host.index == 1 else b"s" * 32
        voucher = Voucher(host.node, 0, lambda secret, known=known: secret == known)  # type: ignore[misc]
        coordinator.restore("job", replace(words, generation=host.index), host.address, voucher)
        coordinator.restore("job", words, host.address, voucher)
    assert len(coordinator._records["job"]) == module.TELLERS_MAX
    life = replace(nodes[0], host=replace(nodes[0].host, incarnation=9))
    assert (await coordinator.register(life, soon())).generation == 2, "the first who knew the secret"
    assert sorted(each.generation for each in coordinator._records["job"]) == [1, 2]
    coordinator.restore("job", replace(words, generation=7), record.hosts[5].address, voucher)
    assert len(coordinator._records["job"]) == 2, "it is known now"


def test_form__over_the_engines_limits() -> None:
    with pytest.raises(ResourceExhausted, match="hosts_per_job = 64: the ranks have joined on 65 hosts"):
        form(registration(r, 65) for r in range(65))
    with pytest.raises(ResourceExhausted, match="ranks_per_host = 16: ranks 0-16 are on one host"):
        form(registration(r, 17, host=1) for r in range(17))


async def test_register__over_a_limit_is_told_to_every_rank(coordinator: Coordinator) -> None:
    results = await asyncio.gather(
        *(coordinator.register(registration(r, 17, host=1), soon()) for r in range(17)), return_exceptions=True
    )
    assert len(results) == 17
    assert all("ranks_per_host = 16" in str(r) for r in results), results


async def test_register__jobs_that_form_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMING_MAX", 24)
    coordinator = Coordinator(lambda: None)

    def forming(number: int, source: str) -> asyncio.Future[Membership]:
        return asyncio.ensure_future(
            coordinator.register(replace(registration(0), job=f"j{number}", source=source), soon())
        )

    tasks = [forming(i, "10.0.0.66") for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="66 has 3 already"):
        await forming(3, "10.0.0.66")
    tasks += [forming(i, f"10.0.1.{i}") for i in range(3, 24)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="24 are open already"):
        await forming(24, "10.0.0.1")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_register__job_that_never_came_up_is_forgotten(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await coordinator.register(replace(registration(0, 1), job="ghost"), soon())
    record = await formed(coordinator, registration(0), registration(1))
    up(coordinator, record, 0)
    assert coordinator.record("ghost") is not None
    monkeypatch.setattr(module, "UNCONFIRMED_SECONDS", -1.0)
    await coordinator.register(registration(0), soon())
    assert coordinator.record("ghost") is None and coordinator.record("job") is record


async def test_register__jobs_under_way_are_limited(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_MAX", 2)
    for name in ("a", "b"):
        await coordinator.register(replace(registration(0, 1), job=name), soon())
    with pytest.raises(ResourceExhausted, match="2 are under way already"):
        await coordinator.register(registration(0, 1), soon())
    assert (await coordinator.register(replace(registration(0, 1), job="b"), soon())).generation


def test_numbers__runs_are_drawn_together() -> None:
    rows = [([], ""), ([3], "3"), ([1, 0], "0-1"), ([5, 1, 2, 3, 9, 8], "1-3, 5, 8-9")]
    for values, text in rows:
        assert numbers(values) == text


async def test_changes__wakes_and_times_out() -> None:
    changes, box = Changes(), [0]
    waiting = asyncio.ensure_future(changes.until(lambda: box[0] == 2, soon()))
    for value in (1, 2):
        await asyncio.sleep(0)
        box[0] = value
        changes.notify()
    assert await waiting is True
    assert await changes.until(lambda: False, soon(0.02)) is False
    assert await changes.until(lambda: True, soon(-1)) is True


def knowing(new: Registration, *wires: str) -> Registration:
    return replace(new, host=replace(new.host, wires=wires))


async def test_wires__who_comes_back_knows_what_the_job_was_told(coordinator: Coordinator) -> None:
    """Ranks use the forms that all hosts knew at their join, so nobody comes who knows fewer, or is told of more."""
    first = [knowing(registration(0), "int16", "int8", "int4"), knowing(registration(1), "int16", "int8")]
    record = await formed(coordinator, *first)
    assert [host.wires for host in record.hosts] == [("int16", "int8", "int4"), ("int16", "int8")], "as each has said"
    up(coordinator, record, 0, 1)
    record.confirmed = True
    up(coordinator, record, 0, state=State.ABSENT)
    text = "wires = int16, int4 on 10.0.0.0: allowed: those that know int8, too"
    with pytest.raises(FailedPrecondition, match=text):
        await coordinator.register(knowing(registration(0, life=2), "int16", "int4"), soon())
    back = await coordinator.register(knowing(registration(0, life=3), "int2", "int16", "int8"), soon())
    assert [host.wires for host in back.hosts] == [("int16", "int8")] * 2


def test_wires__of_a_job_whose_hosts_come_and_go() -> None:
    rules = Elastic(1)
    came = [
        knowing(registration(at, 3, elastic=rules), *wires) for at, wires in ((0, ("int16", "int8")), (1, ("int8",)))
    ]
    record = Record(1, 3, 1, seated(came, 3), [State.UP, State.UP, State.ABSENT], elastic=rules)
    assert record.hosts[2].vacant and record.hosts[2].wires == ("int8",), "whoever takes it will know that"
    with pytest.raises(FailedPrecondition, match=r"wires = none on 10.0.0.2: allowed: those that know int8"):
        take_seat(registration(2, 3, elastic=rules), record, 0.0)
    told = take_seat(knowing(registration(2, 3, elastic=rules), "int16", "int8"), record, 0.0)
    assert told is not None and [host.wires for host in told.hosts] == [("int16", "int8"), ("int8",), ("int8",)]
