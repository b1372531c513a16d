# SPDX-License-Identifier: Apache-2.0
"""Groups by speed over real daemons, two ranks in each: values say whose models are in a mean, and their weights."""

import threading
import time
from collections import Counter
from typing import Any

import numpy as np

from tests.e2e.hosts import Hosts, everywhere, ranks
from ultima import Job, Options
from ultima.speed_groups.hierarchy import BLOCK, Hierarchy

SECONDS = (0.010, 0.011, 0.060, 0.061)
"""Of an iteration: ranks 0 and 1 are one group, 2 and 3 the other."""
N = 5000
TRIES, PAUSE_S = 8, 0.25


class Stage:
    """Ranks that act one after the other, in the order in which the test says so."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)

    def turn(self, rank: int, whose: int, act: Any) -> Any:
        """`act` on the rank whose turn it is, when all have come and before any goes on."""
        self._barrier.wait(60)
        found = act() if rank == whose else None
        self._barrier.wait(60)
        return found


def exchange(place: Hierarchy, mine: float) -> dict[float, int] | None:
    """What the elements of a model of `mine` become, and how many of each; None if nothing new comes."""
    for _ in range(TRIES):
        model = np.full(N, mine, np.float32)
        if place.exchange(model):
            return dict(Counter(model.tolist()))
        time.sleep(PAUSE_S)
    return None


def grouped(job: Job, rank: int) -> Hierarchy:
    place = Hierarchy(job, N, options=Options(policy="solo"))
    place.note(SECONDS[rank])
    assert place.regroup()
    return place


def test_exchange__means_are_weighted_by_ranks_and_passed_on_in_the_group(four: Hosts) -> None:
    stage = Stage(4)
    with ranks(four) as jobs:

        def act(rank: int, job: Job) -> list[dict[float, int] | None]:
            with grouped(job, rank) as place:
                assert place.groups == ((0, 1), (2, 3)) and place.speaks == (rank in (0, 2))
                return [
                    stage.turn(rank, who, lambda mine=mine: exchange(place, mine))  # type: ignore[misc]
                    for who, mine in ((0, 10.0), (2, 4.0), (1, 99.0), (3, 99.0), (0, 1.0), (1, 99.0))
                ]

        found = [[value for value in heard if value is not None] for heard in everywhere(jobs, act)]
    later = (2 * 1.0 + 2 * 4.0) / 4
    assert found[0] == [{10.0: N}, {later: N}], "alone at first, then with what the others pushed long ago"
    assert found[2] == [{(2 * 10.0 + 2 * 4.0) / 4: N}]
    assert (found[1], found[3]) == ([{10.0: N}, {later: N}], [{7.0: N}]), "as their speakers"


def test_exchange__a_host_of_another_group_dies(four: Hosts) -> None:
    """Its group's model stays: the other rank of the group holds it. In the shard that nobody adds up any more, and the
    blocks that it begins and ends in, each keeps its own."""
    stage = Stage(4)
    with ranks(four) as jobs:

        def act(rank: int, job: Job) -> list[dict[float, int] | None]:
            place = grouped(job, rank)
            found = [
                stage.turn(rank, who, lambda mine=mine: exchange(place, mine))  # type: ignore[misc]
                for who, mine in ((2, 8.0), (0, 4.0))
            ]
            stage.turn(rank, 3, four[3].kill)
            found.append(stage.turn(rank, 0, lambda: exchange(place, 2.0)))
            if rank != 3:
                place.close()
            return found

        found = everywhere(jobs, act)
    before, after = (heard for heard in found[0] if heard is not None)
    assert before == {6.0: N}
    assert set(after) == {5.0, 2.0} and N / 4 - 2 * BLOCK < after[2.0] < N / 4 + 2 * BLOCK
