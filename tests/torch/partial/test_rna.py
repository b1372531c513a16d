# SPDX-License-Identifier: Apache-2.0
"""RNA's optimizer: compute that never waits, averages that replace local gradients, the learning rate of n ranks.

Ranks are threads over fake daemons; slow ones wait for an event, no clock is asked.
"""

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.client.fake_jobs import FakeJobs, on_all
from tests.torch.partial.test_eager import push, refused, scalar, sgd
from ultima import Options, UltimaWarning
from ultima.torch.partial.rna import RNA

pytestmark = pytest.mark.timeout(60)
# Every rank is asked: a round starts with the first that has given.
ALL = Options(probes=2, policy_seed=1)


def rna(parameters: Any, job: Any, policy: str = "seeded", rate: float = 1.0, **options: Any) -> RNA:
    return RNA(torch.optim.SGD(parameters, lr=rate), policy, job=job, **{"sync_every": 0, **options})


def until(condition: Any) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def collected(optimizer: RNA, rounds: int) -> None:
    """Waits until the other thread has seen so many rounds; none of them is taken yet."""
    assert optimizer._collector is not None
    until(lambda: optimizer._collector.counter.rounds >= rounds)


@pytest.mark.parametrize(("local", "wanted"), [(True, (-5.0, 5, 0)), (False, (0.0, 0, 5))])
def test_step__does_not_wait_while_no_average_is_there(local: bool, wanted: tuple[float, int, int]) -> None:
    """Under "full", rank 1 never gives: no round comes about, and rank 0 makes its steps alone, or leaves things be."""
    with FakeJobs(2) as jobs:
        steps_done = threading.Event()

        def train(rank: int) -> Any:
            parameter = scalar()
            with jobs.base(rank) as job:
                optimizer = rna([parameter], job, "full", local=local)
                if rank == 1:
                    assert steps_done.wait(30), "RNA waited for a rank"
                else:
                    for _ in range(5):
                        optimizer.zero_grad()
                        push(parameter, 1.0)
                        optimizer.step()
                    steps_done.set()
                optimizer.close()
            return parameter.tolist(), optimizer.summary()

        (alone, summary), _ = on_all(2, train)
    assert (alone[0], summary.local, summary.idle) == wanted
    assert summary.averaged == 0


def test_step__goes_on_while_its_daemon_is_short_of_cpu() -> None:
    """The daemon takes no gradient by the deadline: a warning, and a step with the own one."""
    with FakeJobs(2) as jobs:
        over = threading.Event()

        def train(rank: int) -> Any:
            parameter = scalar()
            with jobs.base(rank) as job:
                optimizer = rna([parameter], job, "full", local=True, deadline="20ms")
                if rank == 1:
                    assert over.wait(30)
                else:
                    daemon = jobs.daemons[optimizer._rounds.flat.job.name]
                    daemon.freeze()
                    push(parameter, 1.0)
                    with pytest.warns(UltimaWarning, match="did not hang up.* may be in no round"):
                        optimizer.step()
                    daemon.thaw()
                    over.set()
                optimizer.close()
            return parameter.tolist()

        assert on_all(2, train)[0] == [-1.0] * 3


@pytest.mark.parametrize(("scale", "wanted"), [("linear", -1.0 - 2 * 2.0), ("mean", -1.0 - 2.0)])
def test_step__an_average_replaces_the_local_gradient_and_scales_the_rate(scale: str, wanted: float) -> None:
    """Rank 0 gives 1 and steps alone, rank 1 gives 3; rank 0's next step takes their mean for its own 100."""
    with FakeJobs(2) as jobs:
        stepped = threading.Barrier(2)

        def train(rank: int) -> list[float]:
            parameter = scalar()
            with jobs.base(rank) as job:
                optimizer = rna([parameter], job, "full", scale=scale, local=True)
                if rank == 0:
                    push(parameter, 1.0)
                    optimizer.step()
                    assert parameter.tolist() == [-1.0] * 3
                stepped.wait(30)
                if rank == 1:
                    push(parameter, 3.0)
                    optimizer.step()
                collected(optimizer, 1)
                optimizer.zero_grad()
                push(parameter, 100.0)
                if rank == 0:
                    optimizer.step()
                    assert optimizer.param_groups[0]["lr"] == 1.0
                    assert optimizer.rounds == 1
                stepped.wait(30)
                optimizer.close()
            return parameter.tolist()

        assert on_all(2, train)[0] == [wanted] * 3


def test_collector__takes_every_round_that_came_between_two_steps() -> None:
    """Rank 1 makes rounds with 1, 2 and 3; both find all three, once."""
    with FakeJobs(2) as jobs:
        made, seen = threading.Barrier(2), threading.Barrier(2)

        def train(rank: int) -> Any:
            parameter = scalar()
            with jobs.base(rank) as job:
                optimizer = rna([parameter], job, "solo")
                collector, partial = optimizer._collector, optimizer._rounds.partial
                assert collector is not None and partial is not None
                for number in range(3):
                    if rank == 1:
                        partial.give(torch.full((3,), 1.0 + number))
                    collected(optimizer, number + 1)
                    made.wait(30)
                found = torch.zeros(3)
                rate, receipts = collector.take(found)
                seen.wait(30)
                again = collector.take(found)
                optimizer.close()
            return rate, (found * rate).tolist(), [receipt.fresh for receipt in receipts], again, collector.rounds

        for rank in on_all(2, train):
            # Three times the rate of one rank, and the mean: a step of 1 + 2 + 3.
            assert rank == (3.0, [6.0] * 3, [(1,)] * 3, (0.0, []), 3)


def test_step__a_slow_rank_slows_nobody() -> None:
    """Rank 1 is held up in its first step until the others have made 40 rounds."""
    with FakeJobs(3) as jobs:
        others = threading.Barrier(3)

        def train(rank: int) -> Any:
            parameter = scalar()
            with jobs.base(rank) as job:
                # Nobody is waited for, however often it was absent.
                optimizer = rna([parameter], job, options=Options(probes=2, policy_seed=7, tau=255), rate=0.01)
                if rank == 1:
                    others.wait(40)
                while optimizer.rounds < 40:
                    optimizer.zero_grad()
                    push(parameter, 1.0)
                    optimizer.step()
                if rank != 1:
                    others.wait(40)
                optimizer.finish()
            return parameter.tolist(), optimizer.summary()

        found = on_all(3, train)
    assert found[0][0] == found[1][0] == found[2][0], "finish makes replicas equal"
    assert found[1][1].steps < found[0][1].steps


def test_meetings__make_replicas_equal_though_ranks_make_other_steps() -> None:
    with FakeJobs(3) as jobs:

        def train(rank: int) -> Any:
            torch.manual_seed(rank)
            parameter = scalar()
            with jobs.base(rank) as job:
                optimizer = rna([parameter], job, "solo", rate=0.1, sync_every=5)
                while optimizer.summary().sync.syncs < 3:
                    optimizer.zero_grad()
                    push(parameter, 1.0 + rank)
                    optimizer.step()
                optimizer.close()
            return parameter.tolist()

        found = on_all(3, train)
    assert found[0] == found[1] == found[2]


def test_refusals__name_what_is_wrong() -> None:
    assert "'log'" in refused(lambda job: RNA(sgd(scalar()), job=job, scale="log"), "scale")
    assert "100" in refused(lambda job: RNA(sgd(scalar()), job=job, hierarchy=True, sync_every=100), "sync_every")
    assert "1" in refused(lambda job: RNA(sgd(scalar()), job=job, hierarchy=1), "hierarchy")  # type: ignore[arg-type]
    assert "period" in refused(lambda job: RNA(sgd(scalar()), job=job, hierarchy=True, hier_period=0), "period")
    assert "hierarchy" in refused(lambda job: RNA(sgd(scalar()), job=job).regroup(), "hierarchy")


def test_hierarchy__groups_by_speed_and_shares_the_model() -> None:
    """Rank 2 says that it is slow. Both groups go on, and both see the other's model: the fast one counts twice."""
    with FakeJobs(3) as jobs:
        meet = threading.Barrier(3)

        def train(rank: int) -> Any:
            parameter = nn.Parameter(torch.zeros(4))
            with jobs.base(rank) as job:
                optimizer = rna([parameter], job, "solo", sync_every=None, hierarchy=True, rate=0.0)
                assert optimizer.groups == ((0, 1, 2),)
                for _ in range(3):
                    optimizer._hierarchy.note(10.0 if rank == 2 else 0.1)
                assert optimizer.regroup()
                assert optimizer.groups == ((0, 1), (2,))
                with torch.no_grad():
                    parameter.fill_(9.0 if rank == 2 else 3.0)
                meet.wait(30)
                for _ in range(15):
                    optimizer.zero_grad()
                    push(parameter, 1.0)
                    optimizer.step()
                shared = parameter.tolist()
                meet.wait(30)
                optimizer.finish()
            return shared, parameter.tolist()

        found = on_all(3, train)
    # Without the other group's model they would stand at 3 and 9 still. The weights are tests/client/speed_groups'.
    assert all(3.01 < value < 8.99 for shared, _ in found for value in shared), found
    assert found[0][1] == found[1][1] == found[2][1]
