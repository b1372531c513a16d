# SPDX-License-Identifier: Apache-2.0
"""Parts from several holders at once, some of whom vanish or lie."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from ultima.state.fetching import AT_ONCE, FALSE_MAX, Fetch
from ultima.state.listing import PART_BYTES, Arrays, Listing, digest

PARTS = 3 * AT_ONCE + 2
STATE = {"w": np.random.default_rng(5).integers(0, 256, PARTS * PART_BYTES - 100, np.uint8)}
ARRAYS = Arrays(STATE, writable=False)
LISTING = ARRAYS.listing()
WRITTEN = LISTING.written()
ROOT = digest(WRITTEN)


class Holders:
    """Rank 1 is honest. Each other number does what a method of its name says."""

    def __init__(self) -> None:
        self.asked: dict[int, list[int]] = {}
        self.gate = threading.Barrier(2)

    def read(self, rank: int, root: bytes, parts: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        assert root == ROOT
        if not parts:
            yield -1, (b"false" if rank == 4 else WRITTEN)
            return
        first = rank not in self.asked
        self.asked.setdefault(rank, []).extend(parts)
        if first and len(parts) == AT_ONCE and rank != 1:
            self.gate.wait(10)  # both have their first parts before anybody asks for more
        if first and rank == 1:
            self.gate.wait(10)
        for count, number in enumerate(parts):
            if rank == 2 and count == 3:
                raise ConnectionError("gone")
            if rank == 3:
                yield number, bytes(PART_BYTES)
            elif rank == 5:
                return
            else:
                yield number, ARRAYS.part(number)


def fetched(fetch: Fetch, ranks: Sequence[int]) -> bytes | None:
    listing = fetch.listing(ROOT, ranks)
    assert listing == LISTING
    data = fetch.run(listing, ROOT, ranks, lambda: True)
    return None if data is None else bytes(data)


def test_fetch__a_holder_that_vanishes_is_made_up_for() -> None:
    holders = Holders()
    fetch = Fetch(holders.read, None, ARRAYS.part)
    assert fetched(fetch, [1, 2]) == STATE["w"].tobytes()
    assert fetch.parts == PARTS and fetch.again == AT_ONCE - 3 and fetch.false == ()
    assert fetch.sources == {1: ARRAYS.size - 3 * PART_BYTES, 2: 3 * PART_BYTES}
    assert len(holders.asked[2]) == AT_ONCE, "who is gone is asked no more"


def test_fetch__false_parts_are_taken_from_others_and_who_sent_them_is_named() -> None:
    holders = Holders()
    fetch = Fetch(holders.read, None, ARRAYS.part)
    assert fetched(fetch, [1, 3]) == STATE["w"].tobytes()
    assert fetch.false == (3,) and fetch.sources == {1: ARRAYS.size} and fetch.again == AT_ONCE
    assert len(holders.asked[3]) <= AT_ONCE and FALSE_MAX < AT_ONCE


def test_fetch__a_holder_that_gives_nothing_is_asked_once() -> None:
    holders = Holders()
    fetch = Fetch(holders.read, None, ARRAYS.part)
    assert fetched(fetch, [1, 5]) == STATE["w"].tobytes()
    assert len(holders.asked[5]) == AT_ONCE


def test_fetch__a_false_list_is_taken_from_another_rank() -> None:
    fetch = Fetch(Holders().read, None, ARRAYS.part)
    assert fetch.listing(ROOT, [4, 1]) == LISTING and fetch.false == (4,)
    assert Fetch(Holders().read, None, ARRAYS.part).listing(ROOT, [4]) is None


def test_fetch__goes_on_where_it_stood_when_new_holders_come() -> None:
    holders = Holders()
    holders.gate = threading.Barrier(1)
    fetch = Fetch(holders.read, None, ARRAYS.part)
    assert fetched(fetch, [2]) is None and fetch.parts == 3
    holders.asked.clear()
    assert fetched(fetch, [1]) == STATE["w"].tobytes()
    assert len(holders.asked[1]) == PARTS - 3, "what has come is not fetched again"


def test_fetch__what_is_here_already_is_not_fetched() -> None:
    """Only the parts that differ travel."""
    mine = {"w": STATE["w"].copy()}
    mine["w"][PART_BYTES + 5] ^= 1
    arrays = Arrays(mine, writable=True)
    holders = Holders()
    holders.gate = threading.Barrier(1)
    fetch = Fetch(holders.read, arrays.listing(), arrays.part)
    assert fetched(fetch, [1]) == STATE["w"].tobytes()
    assert holders.asked[1] == [1] and fetch.sources == {1: PART_BYTES}


def test_fetch__ends_when_it_is_not_wanted_any_more() -> None:
    holders = Holders()
    holders.gate = threading.Barrier(1)
    left = iter([True, True, False, False])
    listing = Listing.read(WRITTEN)
    assert Fetch(holders.read, None, ARRAYS.part).run(listing, ROOT, [1], lambda: next(left)) is None
    assert len(holders.asked[1]) == AT_ONCE
