# SPDX-License-Identifier: Apache-2.0
"""How long an op may take: what callers name, from 0 to ten years, and what the engine measures where they do not.

Nothing here looks at a clock. What an op had to its deadline, and what that came from, is read off its receipt.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, everywhere, ranks
from ultima import Receipt, StageEnd, Status
from ultima.base.durations import DURATION_MAX_S
from ultima.base.errors import DaemonLost, DeadlineExceeded, NotDone
from ultima.settings.config import DEFAULT_DEADLINE_S

TEN_YEARS = timedelta(days=3652)
WARM_UP = 20  # ops of each lane: transport_c/core/op/deadline.h
LANES = 2


def reduce_once(jobs: list[ultima.Job], elements: int = 5000, **how: object) -> list[Receipt]:
    """One sum on all ranks, complete and right."""
    data = [np.full(elements, 1.0 + rank, np.float32) for rank in range(len(jobs))]
    receipts = everywhere(jobs, lambda rank, job: job.allreduce(data[rank], "sum", **how))
    for each, receipt in zip(data, receipts, strict=True):
        assert isinstance(receipt, Receipt) and receipt.complete, receipt
        assert (each == sum(range(1, len(jobs) + 1))).all()
    return receipts


def follows_t_b(receipt: Receipt) -> bool:
    """8 t_b and 1 s, counted from the last host's call, which was before the op's end or ended it.

    Then both are the same count of nanoseconds, and as seconds they differ by what a float rounds.
    """
    assert receipt.t_b_s is not None and receipt.deadline_s is not None
    own = 8 * receipt.t_b_s + 1
    return own - 1e-4 <= receipt.deadline_s <= own + receipt.elapsed_s + 1e-6


def test_unnamed__is_measured_after_the_warm_up_and_named_ones_win(four: Hosts) -> None:
    with ranks(four[:3], deadline=None, options=ultima.Options(split="always")) as jobs:
        for _ in range(WARM_UP * LANES):
            for receipt in reduce_once(jobs):
                assert receipt.t_b_s is None, "the warm-up"
                assert 0.9 * DEFAULT_DEADLINE_S < receipt.deadline_s <= DEFAULT_DEADLINE_S
        for receipt in reduce_once(jobs):
            assert follows_t_b(receipt), receipt
            assert receipt.deadline_s < DEFAULT_DEADLINE_S / 2
        for receipt in reduce_once(jobs, deadline="25s"):
            assert receipt.t_b_s is not None
            assert 20 < receipt.deadline_s <= 25, "named"
        for receipt in reduce_once(jobs, mode="reliable"):
            assert 0.9 * DEFAULT_DEADLINE_S < receipt.deadline_s <= DEFAULT_DEADLINE_S, "only bounded ops follow t_b"
        for receipt in reduce_once(jobs, deadline="none"):
            assert follows_t_b(receipt), receipt


def test_unnamed__a_job_that_names_one_is_held_to_it(four: Hosts) -> None:
    with ranks(four[:2], deadline="20s", options=ultima.Options(t_b="10ms")) as jobs:
        for receipt in reduce_once(jobs):
            assert receipt.t_b_s == pytest.approx(0.01)
            assert 15 < receipt.deadline_s <= 20


def test_unnamed__waits_for_a_trainer_that_calls_late(four: Hosts) -> None:
    """1.08 s are for the network; a trainer may take longer, and nothing is lost by it."""
    with ranks(four[:3], deadline=None, options=ultima.Options(t_b="10ms")) as jobs:
        data = [np.full(5000, 1.0 + rank, np.float32) for rank in range(3)]

        def one(rank: int, job: ultima.Job) -> Receipt:
            if rank == 2:
                time.sleep(1.5)
            return job.allreduce(data[rank], "sum")

        receipts = everywhere(jobs, one)
        for receipt, each in zip(receipts, data, strict=True):
            assert receipt.status is Status.COMPLETE, receipt
            assert (each == 6.0).all()
        for receipt in receipts[:2]:
            assert receipt.peers[2].opened_s > 1.08
            assert receipt.deadline_s >= receipt.peers[2].opened_s + 1.08 - 1e-4


def test_unnamed__a_stopped_daemon_costs_what_was_measured(daemons: Callable[[int], Hosts]) -> None:
    hosts = daemons(3)
    with ranks(hosts, deadline=None, options=ultima.Options(t_b="10ms")) as jobs:
        reduce_once(jobs)
        hosts[2].suspend()
        data = [np.full(5000, 1.0 + rank, np.float32) for rank in range(2)]
        receipts = everywhere(jobs[:2], lambda rank, job: job.allreduce(data[rank], "sum"))
        for receipt, each in zip(receipts, data, strict=True):
            assert receipt.status is Status.PARTIAL, receipt
            assert receipt.culprit == (2,) and 2 in receipt.missing_ranks
            assert StageEnd.DEADLINE in receipt.stage_ends
            assert receipt.deadline_s < DEFAULT_DEADLINE_S / 4, "not the 30 s that nobody named"
            # The sum of both that are left, but for the shard of the host that is silent: there it is one's own.
            assert set(each.tolist()) <= {1.0, 2.0, 3.0} and np.count_nonzero(each == 3.0) > 2500


# From nothing to ten years


def at_once(rank: int, job: ultima.Job, **how: object) -> tuple[Receipt, set[float]]:
    """An op with no time at all. On a busy machine the daemon may need longer for its word than we wait for it."""
    for _ in range(20):
        data = np.full(3000, 1.0 + rank)
        try:
            return job.allreduce(data, "sum", deadline=0, **how), set(data.tolist())
        except DaemonLost as lost:
            assert lost.reason == "unresponsive"
    raise AssertionError("the daemon never answered")


def test_deadline_0__own_value_and_a_receipt_that_says_so(four: Hosts) -> None:
    with ranks(four[:2]) as jobs:
        receipt, values = at_once(0, jobs[0])
        assert receipt.status is Status.INSUFFICIENT and receipt.bytes_used == 0, receipt
        assert values == {1.0}
    with ranks(four[:2]) as jobs:
        for rank, (receipt, values) in enumerate(everywhere(jobs, at_once)):
            if receipt.status is Status.INSUFFICIENT:
                assert values == {1.0 + rank}
            else:  # what the other had sent lay here when the call came
                assert receipt.status is Status.PARTIAL and receipt.bytes_used > 0, receipt
                assert values <= {1.0, 2.0, 3.0} and receipt.weight_min == 1


@pytest.mark.parametrize("how", [{"mode": "reliable"}, {"agree": True}])
def test_deadline_0__where_nothing_may_be_missing_it_is_an_error(four: Hosts, how: dict[str, object]) -> None:
    with ranks(four[:2]) as jobs, pytest.raises(DeadlineExceeded):
        at_once(0, jobs[0], **how)


@pytest.mark.parametrize("mode", ["bounded", "best_effort", "reliable"])
def test_deadline_10_years__works_as_any_other(four: Hosts, mode: str) -> None:
    assert TEN_YEARS.total_seconds() > DURATION_MAX_S
    with ranks(four[:2]) as jobs:
        for receipt in reduce_once(jobs, mode=mode, deadline=TEN_YEARS):
            assert receipt.deadline_s == pytest.approx(0.95 * TEN_YEARS.total_seconds(), rel=1e-6)
        mine, theirs = np.full(3000, 1.0), np.full(3000, 2.0)
        handle = jobs[0].allreduce_async(mine, "sum", mode=mode, deadline=TEN_YEARS)
        with pytest.raises(NotDone):
            handle.wait("300ms")
        assert jobs[1].allreduce(theirs, "sum", mode=mode, deadline=TEN_YEARS).complete
        assert handle.wait().complete, "it has waited, and did not end early"
        assert (mine == 3.0).all() and (theirs == 3.0).all()


APART = """
import sys, ultima
try:
    ultima.connect("apart", 0, 1, sys.argv[1], timeout=20)
except ultima.DaemonUnavailable as error:
    print(error)
"""


@pytest.mark.parametrize(("seconds", "words"), [(100, "behind"), (-1, "ahead of")])
def test_time_namespace__a_trainer_with_another_clock_is_refused(
    daemons: Callable[[int], Hosts], seconds: int, words: str
) -> None:
    """Deadlines are times of CLOCK_MONOTONIC, which a namespace of time sets apart: no op could be in time."""
    apart = ["unshare", "--time", "--monotonic", str(seconds), "--fork"]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespace of time can be made here: {error}")
    (host,) = daemons(1)
    command = [*apart, sys.executable, "-c", APART, str(host.socket)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert words in said and "time namespaces" in said
