# SPDX-License-Identifier: Apache-2.0
"""Coded jobs over real daemons: the sum over all data is exact although a rank is late, stalls, or its host is killed.

The gradient of part k is 4^k, so that the digits of a sum in base 4 say how often each part is in it.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, connect_all, everywhere, new_job_name, ranks
from ultima import DeadlineExceeded, Gift, Job, Options, RanksGone, Receipt
from ultima.coded import Plan

Daemons = Callable[[int], Hosts]
COUNT = 40_000
PLAN = Plan(4, stragglers=1)


def mine(rank: int, step: int) -> Any:
    points = 4.0 ** np.arange(4) + step
    return np.full(COUNT, sum(row[2] * points[row[0] : row[1]].sum() for row in PLAN.allocation(rank, 4)))


def give(job: Job, step: int, **options: Any) -> Receipt:
    """One step; its result must be the sum over all parts, in all elements."""
    array = mine(job.rank, step)
    receipt = job.coded(PLAN).reduce(array, step, **options)
    assert set(array.tolist()) == {float((4.0 ** np.arange(4) + step).sum())}, receipt
    assert receipt.exact and receipt.step == step and receipt.complete, receipt
    return receipt


def patient(job: Job, step: int) -> int:
    """The same gradient again until the step has its result. How often it failed."""
    for failed in range(40):
        try:
            give(job, step, deadline=2)
        except (RanksGone, DeadlineExceeded) as error:
            assert error.receipt is not None and error.receipt.policy == "coded"
        else:
            return failed
    raise AssertionError(f"step {step} has no result")


def outcomes(found: list[Any]) -> list[Any]:
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def test_coded__a_rank_is_late_and_gets_the_result(four: Hosts) -> None:
    with ranks(four, options=Options(**PLAN.options())) as jobs:
        for step in range(3):
            for receipt in outcomes(everywhere(jobs[:3], lambda _, job, step=step: give(job, step))):
                assert receipt.policy == "coded" and 3 in receipt.late and receipt.residual == 0
                spent = receipt.bytes_used + receipt.redundant_bytes + receipt.bytes_missing
                assert receipt.bytes_expected == spent and receipt.bytes_missing == 0
            late = jobs[3].coded()
            result = late.wait(step, out=np.zeros(COUNT))
            assert late.over(step) and result.array[0] == 85.0 + 4 * step
            assert give(jobs[3], step).gift is Gift.NULL, "the step went on without it"


def test_coded__a_host_is_killed_and_then_the_other_of_its_group(daemons: Daemons) -> None:
    hosts = daemons(4)
    jobs = connect_all(hosts, options=Options(**PLAN.options()), reconnect=False)
    try:
        outcomes(everywhere(jobs, lambda _, job: give(job, 0)))
        hosts[3].kill()
        for step in range(1, 4):
            outcomes(everywhere(jobs[:3], lambda _, job, step=step: patient(job, step)))
        hosts[2].kill()
        for error in everywhere(jobs[:2], lambda _, job: give(job, 4, deadline=3)):
            assert isinstance(error, (DeadlineExceeded, RanksGone)), error
    finally:
        for job in jobs:
            job.close()


def test_coded__both_hosts_of_a_group_are_killed_and_come_back(daemons: Daemons) -> None:
    """The others are told who is missing, keep their gradients, and give them again until the group is back."""
    hosts = daemons(4)
    jobs = connect_all(hosts, options=Options(**PLAN.options()))
    try:
        outcomes(everywhere(jobs, lambda _, job: give(job, 0)))
        kept = [mine(job.rank, 1) for job in jobs]
        for host in hosts[2:]:
            host.kill()
        for error in everywhere(jobs[:2], lambda rank, job: job.coded().reduce(kept[rank].copy(), 1, deadline=3)):
            assert isinstance(error, (DeadlineExceeded, RanksGone)) and error.receipt is not None, error
            assert error.receipt.culprit and set(error.receipt.culprit) <= {2, 3}
        for host in hosts[2:]:
            host.launch()
        for host in hosts[2:]:
            host.wait_until_ready()

        def again(rank: int, job: Job) -> Any:
            for _ in range(400):
                try:
                    array = kept[rank].copy()
                    return job.coded().reduce(array, 1, deadline=2), array
                except ultima.Behind as behind:  # one of each group is enough, so who gives last may have missed it
                    assert behind.receipt is not None and behind.receipt.step == 1, behind
                    return None
                except (DeadlineExceeded, RanksGone, ultima.DaemonError):
                    time.sleep(0.05)  # it may fail at once for as long as the hosts have not met
            raise AssertionError("the step has no result")

        found = outcomes(everywhere(jobs, again))
        assert any(found), "who gave while the other group was there has the sum"
        for receipt, array in filter(None, found):
            assert receipt.exact and set(array.tolist()) == {85.0 + 4}
        outcomes(everywhere(jobs, lambda _, job: patient(job, 2)))
    finally:
        for job in jobs:
            job.close()


def test_coded__plans_that_cannot_be(four: Hosts) -> None:
    for stragglers in (1, 4):
        allowed = "one less than a divisor of the 3 ranks"
        with pytest.raises(ultima.InvalidArgument, match=f"^stragglers is {stragglers}; allowed: {allowed}"):
            connect_all(four[:3], options=Options(policy="coded", stragglers=stragglers))
    with pytest.raises(ultima.InvalidArgument, match=r"^stragglers is 3; allowed: 0 to 2 of 3 ranks"):
        connect_all(four[:3], options=Options(policy="coded", stragglers=3, code="linear"))
    with pytest.raises(ultima.InvalidArgument, match=r"^world_size is 65; allowed: 1 to 64 in a coded job"):
        ultima.connect("many", 0, 65, four[0].socket, four[0].rendezvous, options=Options(policy="coded"))
    with pytest.raises(ultima.UltimaError, match="ranks_per_host = 1 in a coded job"):
        connect_all([four[0], four[0]], options=Options(policy="coded", stragglers=1))


@pytest.mark.parametrize("field, other", [
    ("stragglers", Options(**Plan(4, stragglers=3).options())),
    ("code", Options(**Plan(4, stragglers=1, code="linear").options())),
    ("exact", Options(**PLAN.options(exact=False))),
    ("policy", Options(policy="majority")),
])  # fmt: skip
def test_coded__ranks_that_name_other_plans(four: Hosts, field: str, other: Options) -> None:
    """All are told in what they differ, and no job begins."""
    name = new_job_name()

    def join(rank: int, host: Any) -> Any:
        options = other if rank == 2 else Options(**PLAN.options())
        return ultima.connect(name, rank, 4, host.socket, four[0].rendezvous, timeout=20, options=options)

    for error in everywhere(four, join):
        assert isinstance(error, ultima.Desync) and error.field == field and "rank 2 says" in str(error), error


def test_coded__gifts_of_another_size_or_type_get_into_no_sum(four: Hosts) -> None:
    """Rank 3 gives what does not fit. It is told, and the others, who give again, have the exact sum. Who came to the
    op when it had failed elsewhere is told no more than that."""
    for wrong in (np.ones(COUNT + 1), np.ones(COUNT, np.float32)):
        with ranks(four, options=Options(**PLAN.options())) as jobs:

            def act(rank: int, job: Job, wrong: Any = wrong) -> Any:
                for _ in range(5):
                    try:
                        return job.coded().reduce(wrong.copy(), 0, deadline=5) if rank == 3 else give(job, 0)
                    except ultima.Desync as error:
                        if rank == 3:
                            return error
                    except (DeadlineExceeded, RanksGone):
                        assert rank != 3
                raise AssertionError("differs for ever")

            *good, told = everywhere(jobs, act)
            outcomes(good)
            assert isinstance(told, ultima.Desync) and told.field in ("count", "dtype"), told
            assert give(jobs[3], 0).exact, "now with what fits"


def test_coded__a_gift_of_another_step_gets_into_no_sum(four: Hosts) -> None:
    """Rank 3 is at step 5, the others have step 0. It waits for its own in vain, and then all go on together.

    Then it is ahead at the same time as the others give. Whose host hears of it before it has begun the step itself
    believes that one host, and tells its rank that the step is over; all others have the exact sum without it.
    """
    with ranks(four, options=Options(**PLAN.options())) as jobs:
        outcomes(everywhere(jobs[:3], lambda _, job: patient(job, 0)))
        with pytest.raises((DeadlineExceeded, RanksGone), match="coded, step 5"):
            give(jobs[3], 5, deadline=1)
        outcomes(everywhere(jobs, lambda _, job: give(job, 6)))

        *found, told = everywhere(jobs, lambda rank, job: give(job, 12, deadline=1) if rank == 3 else patient(job, 7))
        assert isinstance(told, (DeadlineExceeded, RanksGone)) and "coded" in str(told), told
        outcomes([each for each in found if not isinstance(each, ultima.Behind)])
        outcomes(everywhere(jobs, lambda _, job: give(job, 13)))


def test_coded__a_tree_needs_its_master_and_no_estimate(four: Hosts) -> None:
    with pytest.raises(ultima.InvalidArgument, match="world_size is 3; allowed: 4, 13, 40 ranks, which fill a tree"):
        connect_all(four[:3], options=Options(policy="coded", children=3))
    with pytest.raises(ultima.Unsupported, match="no estimates in trees"):
        connect_all(four, options=Options(policy="coded", children=3, exact="no"))
