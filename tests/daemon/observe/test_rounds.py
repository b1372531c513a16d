# SPDX-License-Identifier: Apache-2.0
"""Rounds of local SGD as ranks tell them: what is believed, what is kept, and what operators are told."""

from __future__ import annotations

from typing import Any

import pytest

from ultima.daemon.base.errors import InvalidArgument, NotFound
from ultima.daemon.observe.record import JobRecord
from ultima.daemon.observe.recorder import Recorder
from ultima.daemon.observe.told_rounds import BYTES_MAX, MISSED, Rounds, checked, outcome_of
from ultima.v1 import rounds_pb2


def a_round(number: int = 1, rank: int = 0, **said: Any) -> rounds_pb2.RoundRecord:
    members = [rounds_pb2.RoundMember(rank=each, weight=2.0) for each in said.pop("inside", (0, 1))]
    facts: dict[str, Any] = {"outcome": "stepped", "weight": 4.0, "members_weight": 6.0, "op_seq": number}
    facts |= {"steps": 10 * number, "computed_share": 0.5, "took_us": 1000, "told_ns": number, "ranges": 8}
    return rounds_pb2.RoundRecord(rank=rank, number=number, members=members, **{**facts, **said})


@pytest.mark.parametrize(
    ("said", "field"),
    [({"number": -1}, "number"), ({"outcome": "won"}, "outcome"), ({"why": "x" * 501}, "why"),
     ({"inside": (0, 3)}, "members"), ({"inside": (1, 0)}, "members: not ascending"), ({"late": [1, 1]}, "late"),
     ({"ranges_missed": 9}, "ranges_missed"), ({"op_seq": -2}, "op_seq"), ({"steps": -1}, "steps"),
     ({"weight": float("nan")}, "weight"), ({"members_weight": -1.0}, "members_weight"),
     ({"computed_share": 1.5}, "computed_share")],
)  # fmt: skip
def test_checked__refuses_what_no_rank_can_have_seen_by_name(said: dict[str, Any], field: str) -> None:
    checked(a_round(), 3)
    with pytest.raises(InvalidArgument, match=field):
        checked(a_round(**said), 3)


def test_counts__a_round_without_the_rank_is_missed_and_late_if_it_was() -> None:
    rounds = Rounds()
    assert rounds.status() is None
    for told in (
        a_round(1, received_bytes=100),
        a_round(2, inside=(1,), late=[0]),
        a_round(3, inside=(1,)),
        a_round(4, outcome="void", inside=()),
        a_round(5, outcome="failed", inside=()),
        a_round(6, outcome="state", inside=()),
        a_round(6, 1, computed_share=0.25, told_ns=7),
    ):
        rounds.put(told)
    assert rounds.counts == {"stepped": 2, "void": 1, "state": 1, "failed": 1, MISSED: 2}
    told = rounds.status()
    assert told is not None
    assert (told.late_count, told.received_bytes, told.took_us, told.computed_share) == (1, 100, 7000, 0.25)
    assert (told.newest.rank, told.newest.number) == (1, 6)


def test_kept__the_newest_within_a_bound_by_rank_and_others_are_named() -> None:
    """Rank 0 fails in a round and has it later: its last word counts."""
    rounds = Rounds()
    why = "x" * 400
    for number in range(1, 1001):
        rounds.put(a_round(number, 1, why=why))
        rounds.put(a_round(number, 0, outcome="failed", why=why))
        rounds.put(a_round(number, 0, why="later"))
    low, high = rounds.numbers()
    assert high == 1000 and 1 < low < 990
    kept = sum(told.ByteSize() for number in range(low, high + 1) for told in rounds.of(number))
    assert kept <= BYTES_MAX
    assert [(told.rank, told.why) for told in rounds.of(None)] == [(0, "later"), (1, why)]
    assert [told.number for told in rounds.of(low + 1)] == [low + 1, low + 1]
    with pytest.raises(NotFound, match=f"round = 1: not kept here; rounds {low} to 1000 are"):
        rounds.of(1)


def test_events__name_the_round_and_the_reason_when_a_trouble_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, record = Recorder.__new__(Recorder), JobRecord()
    noted: list[tuple[str, str, str, int | None]] = []

    class Log:
        def note(self, kind: str, text: str, job: str, level: str, *, rank: int | None) -> None:
            assert level == "warning"
            noted.append((kind, text, job, rank))

    class Life:
        job, world_size = "llm/outer", 3

    monkeypatch.setattr(recorder, "events", Log(), raising=False)
    recorder.round_told(record, a_round(1))
    assert not record.rounds and not noted  # it has no life yet
    monkeypatch.setattr(record, "life", Life())
    void = {"outcome": "void", "inside": (), "why": "1 of 2 ranks gave"}
    failed = {"outcome": "failed", "inside": (), "why": "deadline"}
    for told in (a_round(1), a_round(2, **void), a_round(3, **void), a_round(4), a_round(5, inside=(1,), late=[0]),
                 a_round(6, inside=(1,)), a_round(7, **failed), a_round(8)):  # fmt: skip
        recorder.round_told(record, told)
    assert [outcome_of(told) for told in record.rounds.of(6)] == [MISSED]
    assert noted == [
        ("round_void", "round 2 of job llm/outer moved nobody's outer model: 1 of 2 ranks gave", "llm/outer", 0),
        ("round_missed", "round 5 of job llm/outer is without rank 0: it gave nothing in time; what it did is in a "
         "later round", "llm/outer", 0),
        ("round_failed", "rank 0 has no result of round 7 of job llm/outer: deadline", "llm/outer", 0),
    ]  # fmt: skip
    with pytest.raises(InvalidArgument):
        recorder.round_told(record, a_round(9, inside=(0, 3)))
