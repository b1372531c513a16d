# SPDX-License-Identifier: Apache-2.0
"""A daemon where elastic jobs meet, after it was started anew: it is told of them before newcomers begin others."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.hosts.test_coordinator import registration, soon
from ultima.daemon.base.errors import DeadlineExceeded, PermissionDenied
from ultima.daemon.hosts import seating
from ultima.daemon.hosts.coordinator import Coordinator
from ultima.daemon.hosts.former import NAME, Former
from ultima.daemon.hosts.host import Elastic, Membership, State
from ultima.daemon.hosts.seats import seated

RULES = Elastic(1)


def coordinator(path: Path | None, seconds: float) -> Coordinator:
    return Coordinator(lambda: None, former=Former(path, soon(seconds)))


def told(*states: State) -> Membership:
    """A job of two hosts and a free seat, as a host of it tells of it."""
    hosts = seated([registration(rank, 3, elastic=RULES) for rank in (0, 1)], 3)
    return Membership(77, 3, 1, tuple(hosts), states, 41, True, elastic=RULES)


def test_former__keeps_names_and_reads_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / NAME
    Former(path, 0.0).keep({"b", "a"})
    assert json.loads(path.read_text()) == ["a", "b"]
    again = Former(path, 5.0)
    assert [again.told_until(job, 4.0) for job in ("a", "b", "c")] == [5.0, 5.0, None]
    assert again.told_until("a", 5.0) is None, "it is over"
    again.keep(())
    assert json.loads(path.read_text()) == []
    for text in ("", "{", "7", "[7, null]", '{"a": 1}', "\0"):
        path.write_text(text)
        assert Former(path, 5.0).told_until("a", 4.0) is None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text('["a"]')
    path.unlink()
    path.symlink_to(elsewhere)
    assert Former(path, 5.0).told_until("a", 4.0) is None, "a link is none of ours"
    Former(tmp_path / "no folder" / NAME, 5.0).keep({"a"})


async def test_register__waits_to_be_told_of_a_job_that_met_here_before(tmp_path: Path) -> None:
    path = tmp_path / NAME
    first = coordinator(path, 0.0)
    await asyncio.gather(*(first.register(registration(rank, 2, elastic=RULES), soon()) for rank in (0, 1)))
    assert json.loads(path.read_text()) == ["job"]
    second = coordinator(path, 60.0)
    newcomer = asyncio.ensure_future(second.register(registration(2, 3, elastic=RULES), soon(60.0)))
    await asyncio.sleep(0.05)
    assert not newcomer.done() and second.record("job") is None
    second.restore("job", told(State.UP, State.UP, State.ABSENT), "10.0.0.1")
    got = await asyncio.wait_for(newcomer, 10)
    assert (got.generation, got.under_way, got.elastic) == (77, True, RULES)
    assert [host.index for host in got.hosts if host.place == registration(2, 3).host.place] == [2], "the free seat"


async def test_register__begins_anew_when_nobody_tells(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text('["job"]')
    got = await coordinator(path, 0.05).register(registration(0, 1, elastic=RULES), soon())
    assert not got.under_way and got.generation != 77


async def test_restore__a_seat_whose_host_is_gone_is_free(tmp_path: Path) -> None:
    here = coordinator(None, 0.0)
    here.restore("job", told(State.UP, State.ABSENT, State.ABSENT), "10.0.0.1")
    for host, seat in ((5, 1), (6, 2)):
        new = registration(0, 3, host=host, elastic=RULES)
        got = await here.register(new, soon())
        assert [each.index for each in got.hosts if each.place == new.host.place] == [seat]
    record = here.record("job")
    assert record is not None and record.states[0] is State.UP


async def test_restore__only_a_host_of_the_job_tells_of_it() -> None:
    with pytest.raises(PermissionDenied, match="which tells of job 'job'"):
        coordinator(None, 0.0).restore("job", told(State.UP, State.UP, State.ABSENT), "10.9.9.9")


async def test_restore__of_a_fixed_job_host_0_is_the_daemon_itself() -> None:
    here, fixed = coordinator(None, 0.0), replace(told(State.UP, State.UP, State.UP), elastic=None)
    here.restore("job", fixed, "10.0.0.1")
    assert here.record("job").states[0] is State.ABSENT


async def test_restore__tells_a_daemon_that_knows_the_job_of_seats_that_others_gave() -> None:
    """Its hosts may meet at several. What it knows better, a seat whose host is there, it keeps."""
    here = coordinator(None, 0.0)
    here.restore("job", told(State.UP, State.UP, State.ABSENT), "10.0.0.1")
    record, news = here.record("job"), told(State.UP, State.UP, State.UP)
    assert record is not None
    other, third = (registration(0, 3, host=host).host for host in (8, 9))
    hosts = (news.hosts[0], replace(other, index=1, ranks=(1,)), replace(third, index=2, ranks=(2,)))
    here.restore("job", replace(news, hosts=hosts, generation=78), "10.0.0.1")
    assert record.states[2] is State.ABSENT, "of another life"
    here.restore("job", replace(news, hosts=hosts), "10.0.0.1")
    assert [host.place for host in record.hosts] == [news.hosts[0].place, news.hosts[1].place, third.place]
    assert record.states == [State.UP] * 3


async def test_restore__a_seat_given_here_to_one_host_and_elsewhere_to_another_is_that_ones_who_has_come() -> None:
    """The host that was given it here registers again, and gets another one; nobody has two."""
    here = coordinator(None, 0.0)
    here.restore("job", told(State.UP, State.UP, State.ABSENT), "10.0.0.1")
    record, new = here.record("job"), registration(0, 3, host=5, elastic=RULES)
    assert record is not None
    got = await here.register(new, soon())
    assert (got.hosts[2].incarnation, record.states[2]) == (1005, State.CONNECTING)
    same, other = (replace(registration(0, 3, host=at, life=7).host, index=2, ranks=(2,)) for at in (5, 8))
    for host, kept in ((same, 1005), (other, 7008)):
        here.restore("job", replace(told(State.UP, State.UP, State.UP), hosts=(*record.hosts[:2], host)), "10.0.0.1")
        assert record.hosts[2].incarnation == kept
    assert record.states[2] is State.UP
    record.states[1] = State.ABSENT
    again = await here.register(replace(new, host=replace(new.host, incarnation=9), taken=frozenset((2,))), soon())
    assert [host.incarnation for host in again.hosts] == [record.hosts[0].incarnation, 9, 7008]
    moved = replace(again.hosts[1], index=2, ranks=(2,))
    record.states[2] = State.ABSENT
    here.restore("job", replace(told(State.UP, State.ABSENT, State.UP), hosts=(*again.hosts[:2], moved)), "10.0.0.1")
    assert record.hosts[1].vacant and record.hosts[2] == moved and record.states[1:] == [State.ABSENT, State.UP]


async def test_register__a_host_that_is_told_that_its_seat_is_anothers_gets_none_of_those() -> None:
    here = coordinator(None, 0.0)
    here.restore("job", told(State.UP, State.UP, State.ABSENT), "10.0.0.1")
    new = registration(0, 3, host=5, elastic=RULES)
    await here.register(new, soon())
    record = here.record("job")
    assert record is not None and record.hosts[2].incarnation == 1005
    with pytest.raises(DeadlineExceeded, match="waits as a spare"):
        await here.register(replace(new, host=replace(new.host, incarnation=9), taken=frozenset((2,))), soon(0.05))
    assert record.hosts[2].vacant and record.states[2] is State.ABSENT, "somebody else may have it"


async def test_register__a_seat_that_was_refused_is_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who had it may have left: nobody tells that to a daemon that believed the seat to be free."""
    monkeypatch.setattr(seating, "REFUSED_SECONDS", 0.1)
    monkeypatch.setattr(seating, "SETTLE_SECONDS", 0.05)
    here = coordinator(None, 0.0)
    here.restore("job", told(State.UP, State.UP, State.ABSENT), "10.0.0.1")
    new, began = replace(registration(0, 3, host=5, elastic=RULES), taken=frozenset((2,))), time.monotonic()
    got = await here.register(new, soon(20))
    assert got.hosts[2].place == new.host.place and time.monotonic() - began > 0.1


async def test_place_lost__frees_the_seat_of_a_host_that_was_yet_to_come_in(tmp_path: Path) -> None:
    one = coordinator(tmp_path / NAME, 0.0)
    one.restore("job", told(State.UP, State.UP, State.ABSENT), "10.0.0.1")
    came = registration(2, 3, elastic=RULES)
    await one.register(came, soon())
    record = one.record("job")
    assert record is not None and record.states[2] is State.CONNECTING
    one.place_lost(came.host.place)
    assert record.states[2] is State.CONNECTING, "a daemon that cannot be watched may be coming all the same"
    one.place_lost(came.host.place, coming=True)
    assert record.states == [State.UP, State.UP, State.ABSENT]
