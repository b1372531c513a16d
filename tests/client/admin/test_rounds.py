# SPDX-License-Identifier: Apache-2.0
"""A round of local SGD in words, from what ranks told their daemon."""

from __future__ import annotations

from ultima.admin.round_view import round_lines, status_line
from ultima.v1 import rounds_pb2


def test_round_lines__say_who_was_in_with_what_weight_and_what_is_left_of_each_rank_here() -> None:
    members = [rounds_pb2.RoundMember(rank=0, weight=1), rounds_pb2.RoundMember(rank=1, weight=2, partly=True)]
    told = rounds_pb2.RoundRecord(
        rank=0, number=17, fragment=1, outcome="stepped", members=members, late=[2, 3], ranges=40, weight=3,
        members_weight=7, digest=0x5F1C, op_seq=70, steps=340, computed_share=0.9634, received_bytes=3 << 20,
        took_us=1_250_000,
    )  # fmt: skip
    other = rounds_pb2.RoundRecord()
    other.CopyFrom(told)
    other.rank, other.ranges_missed, other.received_bytes = 1, 8, 0
    late = rounds_pb2.RoundRecord()
    late.CopyFrom(other)
    late.rank, late.ranges_missed = 2, 40
    answer = rounds_pb2.GetRoundsResponse(job="llm/outer", rounds=[told, other, late])
    assert round_lines(answer) == [
        "Round 17, fragment 1: stepped, op 70, 1.250 s",
        "Weights: rank 0 1, rank 1 2; in all 3. Divided by that of all members, 7.",
        "Of rank 1 some packets did not come: what they held is in a later round.",
        "Ranks 2-3 gave nothing in time: what was done there is in a later round.",
        "Outer model and momentum of the fragment: 00005f1c.",
        "Rank 0: 340 steps so far, computed 96.3 % of the time, received 3 MiB.",
        "Rank 1: 340 steps so far, computed 96.3 % of the time; 8 of 40 ranges are left for the next round.",
        "Rank 2: 340 steps so far, computed 96.3 % of the time; nothing of it is in the round, all is left for the "
        "next one.",
    ]
    other.digest = 1
    lines = round_lines(rounds_pb2.GetRoundsResponse(rounds=[told, other]))
    assert any("DIFFER" in line for line in lines)


def test_round_lines__say_why_nobody_moved_and_who_has_no_result() -> None:
    void = rounds_pb2.RoundRecord(rank=0, number=3, outcome="void", why="1 of 2 ranks gave", op_seq=9, took_us=10)
    failed = rounds_pb2.RoundRecord(rank=1, number=3, outcome="failed", why="the deadline came", op_seq=-1)
    lines = round_lines(rounds_pb2.GetRoundsResponse(rounds=[void, failed]))
    assert lines[0] == "Round 3, fragment 0: void, op 9, 0.000 s"
    assert lines[1] == "Nobody's outer model moved: 1 of 2 ranks gave. What ranks did is in a later round."
    assert lines[2] == "Rank 1 has no result of it: the deadline came. It takes the outer model from another rank."


def test_status_line__counts_rounds_and_names_the_newest() -> None:
    newest = rounds_pb2.RoundRecord(number=12, outcome="stepped", took_us=2_500_000, told_ns=10**9)
    told = rounds_pb2.RoundsStatus(stepped_count=9, missed_count=2, void_count=1, computed_share=0.952, newest=newest)
    assert status_line(told, 4 * 10**9) == (
        "rounds: 11 stepped, 2 of them without a rank here, 1 void; the newest, 12: stepped, 2.5 s, 3 s ago; computed "
        "95.2 % of the time"
    )
