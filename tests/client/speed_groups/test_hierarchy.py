# SPDX-License-Identifier: Apache-2.0
"""Groups by speed, and the model that they share: by value, over fake daemons, ranks as threads."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.client.fake_jobs import FakeJobs, on_all
from ultima import Options
from ultima.base.errors import InvalidArgument
from ultima.speed_groups.hierarchy import SILENCE, Hierarchy

pytestmark = pytest.mark.timeout(60)
SOLO = Options(policy="solo")
N = 6


def grouped(jobs: FakeJobs, rank: int, seconds: list[float], **options: Any) -> Hierarchy:
    made = Hierarchy(jobs.base(rank), N, options=SOLO, **options)
    for _ in range(3):
        made.note(seconds[rank])
    made.regroup()
    return made


def model(value: float) -> Any:
    return np.full(N, value, np.float32)


def until(condition: Any) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


class Turns:
    """Ranks act one after the other."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)

    def of(self, rank: int, mine: int, act: Any) -> Any:
        self._barrier.wait(30)
        found = act() if rank == mine else None
        self._barrier.wait(30)
        return found


def test_regroup__by_measured_times_on_all_ranks_alike() -> None:
    seconds = [0.050, 0.011, 0.055, 0.010, 0.012, 0.052]
    with FakeJobs(6) as jobs:

        def act(rank: int) -> Any:
            with grouped(jobs, rank, seconds) as mine:
                array = np.full(N, float(rank), np.float32)
                job, size = mine.group_job, len(mine.group)
                if rank == mine.group[-1]:
                    mine.partial.give(array)
                    receipt = mine.partial.wait(deadline=20).receipt
                    who = [mine.group[place] for place in receipt.fresh]
                else:
                    who = None
                return mine.groups, mine.group, mine.speaker, job.world_size == size, who, mine.epoch

        found = on_all(6, act)
    for rank, (groups, group, speaker, sized, who, epoch) in enumerate(found):
        assert groups == ((1, 3, 4), (0, 2, 5))
        assert rank in group and speaker == group[0] and sized and epoch == 1
        assert who is None or who == [rank]


def test_regroup__stays_without_a_time_of_every_rank_and_when_nothing_differs() -> None:
    with FakeJobs(2) as jobs:

        def act(rank: int) -> Any:
            with Hierarchy(jobs.base(rank), N, options=SOLO) as mine:
                before = mine.partial
                if rank == 0:
                    mine.note(0.1)
                changed = [mine.regroup()]
                mine.note(0.1 + 0.05 * rank)
                changed.append(mine.regroup())
                return changed, mine.groups, mine.partial is before

        assert on_all(2, act) == [([False, False], ((0, 1),), True)] * 2


def test_regroup__again_when_speeds_change() -> None:
    with FakeJobs(3) as jobs:

        def act(rank: int) -> Any:
            with Hierarchy(jobs.base(rank), N, options=SOLO, window=4) as mine:
                seen = []
                for times in ([1, 1, 9], [9, 1, 1], [1, 1, 1]):
                    for _ in range(4):  # the window: what was before is forgotten
                        mine.note(float(times[rank]))
                    mine.regroup()
                    seen.append(mine.groups)
                return seen, mine.epoch

        wanted = [((0, 1), (2,)), ((1, 2), (0,)), ((0, 1, 2),)]
        assert on_all(3, act) == [(wanted, 3)] * 3


def test_exchange__is_the_mean_of_the_groups_models_weighted_by_ranks() -> None:
    """Groups of 3 and 1 at 2 and 10: (3 * 2 + 10) / 4; then the fast one again at 6: (3 * 6 + 10) / 4."""
    with FakeJobs(4) as jobs:
        turns = Turns(4)

        def act(rank: int) -> Any:
            with grouped(jobs, rank, [1, 1, 1, 9]) as mine:
                seen = []

                def exchange(value: float) -> float:
                    array = model(value)
                    assert mine.exchange(array)
                    assert np.all(array == array[0])
                    return float(array[0])

                seen.append(turns.of(rank, 3, lambda: exchange(10.0)))  # alone so far
                seen.append(turns.of(rank, 0, lambda: exchange(2.0)))
                seen.append(turns.of(rank, 0, lambda: exchange(6.0)))
                seen.append(turns.of(rank, 3, lambda: exchange(2.0)))
                return seen

        found = on_all(4, act)
    assert [next(value for value in step if value is not None) for step in zip(*found, strict=True)] == [
        10.0,
        4.0,
        7.0,
        5.0,
    ]


def test_exchange__the_others_of_a_group_take_what_the_speaker_had() -> None:
    """And nobody else's: the slow group's later mean is not theirs."""
    with FakeJobs(4) as jobs:
        turns = Turns(4)

        def act(rank: int) -> Any:
            with grouped(jobs, rank, [1, 1, 1, 9]) as mine:
                array = model(float(rank))
                turns.of(rank, 0, lambda: mine.exchange(array))  # 0, alone
                turns.of(rank, 3, lambda: mine.exchange(array))  # (3 * 0 + 3) / 4
                for member in (1, 2):
                    turns.of(rank, member, lambda: until(lambda: mine.exchange(array)))
                return float(array[0])

        assert on_all(4, act) == [0.0, 0.0, 0.0, 0.75]


def test_exchange__a_fast_group_never_waits_for_a_slow_one() -> None:
    """The slow group is held up until the fast one has exchanged 30 times."""
    with FakeJobs(3) as jobs:
        done = threading.Event()

        def act(rank: int) -> Any:
            with grouped(jobs, rank, [1, 1, 9]) as mine:
                array = model(1.0)
                if rank == 2:
                    assert done.wait(30), "the fast group waited"
                    until(lambda: mine.exchange(array))  # the others' hosts may be going
                    return True
                for _ in range(30):
                    mine.exchange(array)
                if rank == 0:
                    done.set()
                return done.wait(30)

        assert on_all(3, act) == [True] * 3


def test_exchange__goes_on_without_a_group_whose_host_died() -> None:
    with FakeJobs(3) as jobs:
        turns = Turns(3)

        def act(rank: int) -> Any:
            mine = grouped(jobs, rank, [1, 1, 9])
            array = model(8.0 if rank == 2 else 2.0)
            turns.of(rank, 2, lambda: mine.exchange(array))
            turns.of(rank, 0, lambda: mine.exchange(array))
            with_it = float(array[0])
            turns.of(rank, 2, lambda: mine.close())  # all its sessions are gone, as its host would be
            array[:] = 2.0
            turns.of(rank, 0, lambda: mine.exchange(array))
            without = float(array[0])
            mine.close()
            return with_it, without

        found = on_all(3, act)
    assert found[0] == (4.0, 2.0)  # (2 * 2 + 8) / 3, then the fast group alone


def test_exchange__another_rank_speaks_when_the_speaker_falls_silent() -> None:
    """Rank 0 dies after it pushed; rank 1 takes over, and the group counts once, with its new model."""
    with FakeJobs(4) as jobs:
        turns = Turns(4)

        def act(rank: int) -> Any:
            mine = grouped(jobs, rank, [1, 1, 1, 9])
            array = model(100.0 if rank == 0 else 4.0)
            turns.of(rank, 0, lambda: mine.exchange(array))
            turns.of(rank, 0, lambda: mine.close())

            def take_over() -> int:
                calls, heard = 0, False
                while not (mine.speaks and heard):  # nothing comes while the dead host has a shard
                    array[:] = 4.0
                    heard = mine.exchange(array)
                    calls += 1
                return calls

            calls = turns.of(rank, 1, take_over)
            array[:] = 20.0 if rank == 3 else array
            turns.of(rank, 3, lambda: until(lambda: mine.exchange(array)))  # not while the dead host has a shard
            for _ in range(20):  # it is heard when that shard is another host's in the group, too
                array[:] = 4.0 if rank == 1 else array
                turns.of(rank, 1, lambda: mine.exchange(array))
                turns.of(rank, 2, lambda: mine.exchange(array))
            speaker = mine.speaker
            mine.close()
            return calls, float(array[0]), speaker

        found = on_all(4, act)
    assert found[1][0] >= SILENCE
    assert found[3][1] == (3 * 4.0 + 20.0) / 4
    assert found[2][1:] == ((3 * 4.0 + 20.0) / 4, 1), "the third rank follows the new speaker"


def test_exchange__one_speaker_is_left_where_two_spoke() -> None:
    """Rank 1 took rank 0 for dead; when it hears that rank 0 speaks again, its own model counts no more."""
    with FakeJobs(3) as jobs:
        turns = Turns(3)

        def act(rank: int) -> Any:
            with grouped(jobs, rank, [1, 1, 9]) as mine:
                array = model(8.0 if rank == 2 else 50.0)
                turns.of(rank, 0, lambda: mine.exchange(array))

                def take_over() -> None:
                    while not mine.speaks:
                        array[:] = 2.0
                        mine.exchange(array)

                turns.of(rank, 1, take_over)
                array[:] = 8.0 if rank == 2 else 50.0
                turns.of(rank, 0, lambda: mine.exchange(array))
                turns.of(rank, 1, lambda: mine.exchange(array))  # hears of it
                turns.of(rank, 2, lambda: mine.exchange(array))
                return mine.speaks, float(array[0])

        found = on_all(3, act)
    assert [speaks for speaks, _ in found] == [True, False, True]
    assert found[2][1] == (2 * 50.0 + 8.0) / 3


def test_exchange__every_so_many_calls_and_never_in_one_group() -> None:
    with FakeJobs(2) as jobs:
        through = threading.Barrier(2)

        def act(rank: int) -> Any:
            with Hierarchy(jobs.base(rank), N, options=SOLO, period=3) as mine:
                whole = [mine.exchange(model(1.0)) for _ in range(3)]
                mine.note([1.0, 9.0][rank])
                mine.regroup()
                found = [mine.exchange(model(1.0)) for _ in range(6)]
                through.wait(30)  # who leaves takes its shard along
                return whole, found

        wanted = ([False] * 3, [False, False, True, False, False, True])
        assert on_all(2, act) == [wanted] * 2


@pytest.mark.parametrize(
    ("field", "options"),
    [("count", {"count": 0}), ("period", {"period": 0}), ("window", {"window": 1.5}), ("dtype", {"dtype": "int32"})],
)
def test_refusals__name_the_field(field: str, options: dict[str, Any]) -> None:
    with FakeJobs(1) as jobs, jobs.base(0) as job, pytest.raises(InvalidArgument) as raised:
        Hierarchy(job, **{"count": N, **options})
    assert raised.value.field == field
