# SPDX-License-Identifier: Apache-2.0
"""What is told of the portions of an op becomes what is told of one op, in whatever order it comes."""

from itertools import permutations

from ultima.daemon.engine.portions import OPEN_MAX, Portions, portion_of


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
