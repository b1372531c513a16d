# SPDX-License-Identifier: Apache-2.0
"""What is told of the portions of an op becomes what is told of one op, in whatever order it comes."""

from itertools import permutations

from ultima.daemon.engine.engine import NOBODY, Event, EventKind, Status
from ultima.daemon.engine.portions import OPEN_MAX, Portions, joined, portion_of


def done(op_seq: int, status: Status, missing: int = 0, host: int = NOBODY, trouble: int = 0, took: int = 5) -> Event:
    what = 4 << 8 | 1 << 16 | trouble << 24 | (0x20 + op_seq % 2) << 32
    return Event(EventKind.OP_DONE, 3, NOBODY, host, op_seq, status, took, missing, 1000, what)


def test_portions__one_when_the_last_has_come() -> None:
    assert portion_of(0) == (0, 1) and portion_of(0x31) == (1, 3)
    assert Portions[str]().add(7, 0, "whole") == ["whole"]
    for order in permutations(range(3)):
        known: Portions[int] = Portions()
        found = [known.add(9 + at, 0x30 + at, at) for at in order]
        assert found == [None, None, [0, 1, 2]], order
    known = Portions()
    for first in range(0, 2 * OPEN_MAX + 2, 2):
        assert known.add(first, 0x20, first) is None
    assert known.add(1, 0x21, 1) is None, "the oldest is forgotten"
    assert known.add(5, 0x21, 5) == [4, 5]


def test_joined__sums_and_the_worst() -> None:
    fine = joined([done(4, Status.COMPLETE, took=5), done(5, Status.COMPLETE, took=8)])
    assert (fine.op_seq, fine.a, fine.b, fine.c, fine.d, fine.host) == (4, Status.COMPLETE, 8, 0, 2000, NOBODY)
    assert fine.e == 4 << 8 | 1 << 16
    some = joined([done(4, Status.PARTIAL, 10, 1, 2), done(5, Status.PARTIAL, 30, 2, 3)])
    assert (some.a, some.c, some.host, some.e >> 24) == (Status.PARTIAL, 40, 2, 3)
    half = joined([done(4, Status.COMPLETE), done(5, Status.INSUFFICIENT, 30, 2, 3)])
    assert (half.a, half.host) == (Status.PARTIAL, 2)
    none = joined([done(4, Status.INSUFFICIENT, 20, 2, 3), done(5, Status.INSUFFICIENT, 20, 2, 3)])
    assert none.a == Status.INSUFFICIENT
    bad = joined([done(4, Status.PARTIAL, 900, 1, 2), done(5, Status.FAILED, 0, 2, 3)])
    assert (bad.a, bad.host, bad.c) == (Status.FAILED, 2, 900)
    whole = done(4, Status.PARTIAL, 10, 1, 2)
    assert joined([whole]) is whole
