# SPDX-License-Identifier: Apache-2.0
"""Jobs with a policy over real daemons: values say who is in an op, receipts say the same, and nobody waits in vain."""

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, connect_all, everywhere, new_job_name, ranks, sees
from tests.e2e.rings import rings_of
from tests.e2e.test_trouble import ends_within, until
from tests.seeds import seeds
from ultima import Gift, Job, Options, Receipt, Status
from ultima.base.reference import picks

Daemons = Callable[[int], Hosts]
COUNT = 3000
DEADLINE_S = 2.0


def seed_of(world: int, drawn: list[int]) -> int:
    """A seed that draws these ranks for the ops from 0 on."""
    return next(seed for seed in range(1, 10**6) if [picks(seed, op, world, 1)[0] for op in range(len(drawn))] == drawn)


def reduce(job: Job, value: float, **options: Any) -> tuple[float, Receipt]:
    """One allreduce of `value` in all elements. If nobody died in it, all elements of the result are the same."""
    array = np.full(COUNT, float(value))
    receipt = job.allreduce(array, **options)
    assert receipt.status is Status.PARTIAL or len(set(array.tolist())) == 1, receipt
    return array[0], receipt


def together(jobs: list[Job]) -> int:
    """Ops until all ranks are in one: then all hosts know of all trainers, and no slot holds anything. Its number."""
    while True:
        ops = {reduced[1].op_seq for reduced in everywhere(jobs, lambda _, job: reduce(job, 1.0))}
        newest = [job.partial().wait(-1) for job in jobs]
        all_in = all(result is not None and result.receipt.included == len(jobs) for result in newest)
        if all_in and len(ops) == 1 and not any(job.partial().pending for job in jobs):
            return ops.pop()


def heard(job: Job) -> Callable[[], bool]:
    """Whether its engine has taken in all that this rank has said. A call elsewhere may be quicker."""
    return lambda: all(answers.submissions_taken == said.head for said, answers in rings_of(job))


def test_solo__a_rank_that_never_calls(four: Hosts) -> None:
    """It is waited for now and then, a quarter of an op's time; never longer."""
    with ranks(four[:3], options=Options(policy="solo", tau=2), deadline=DEADLINE_S) as jobs:
        for step in range(5):
            with ends_within(DEADLINE_S):
                value, receipt = reduce(jobs[1], 3.0 * (step + 1))
            assert (value, receipt.status) == (step + 1, Status.COMPLETE)
            assert (receipt.contributors, receipt.initiator, receipt.op_seq) == ((1,), (1,), step)
        for other in (0, 2):
            result = jobs[other].partial().wait(3, out=np.empty(COUNT))
            assert result is not None and set(result.array) == {5.0} and result.receipt.gift is Gift.NULL


def test_majority__who_is_drawn_starts_it_with_those_that_are_there(four: Hosts) -> None:
    """Rank by rank an op for which that one is drawn: the others that have given are in it, those that have not are
    not, and everybody gets the same."""
    seed = seed_of(4, [2, 0, 1, 3])
    with ranks(four, options=Options(policy="majority", policy_seed=seed)) as jobs:
        for job in jobs:
            job.partial(divisor="contributors")
        first = together(jobs) + 1
        for op in range(first, first + 6):
            drawn = picks(seed, op, 4, 1)[0]
            with_it = [rank for rank in range(4) if rank != drawn and (rank + op) % 2]
            for rank in with_it:
                jobs[rank].partial().give(np.full(COUNT, 2.0**rank))
                assert until(heard(jobs[rank]))
            assert all(jobs[rank].partial().poll() is None for rank in with_it), "none of them is drawn"
            jobs[drawn].partial().give(np.full(COUNT, 2.0**drawn))
            there = sorted([*with_it, drawn])
            results = [job.partial().wait(out=np.empty(COUNT)) for job in jobs]
            for rank, result in enumerate(results):
                assert result is not None and result.receipt.op_seq == op
                assert set(result.array) == {sum(2.0**each for each in there) / len(there)}
                assert result.receipt.contributors == tuple(there) == result.receipt.fresh
                assert result.receipt.initiator == (drawn,) and result.receipt.included == len(there)
                assert result.receipt.gift is (Gift.FRESH if rank in there else Gift.NULL)
                assert result.receipt.missing_ranks == tuple(each for each in range(4) if each not in there)


@pytest.mark.parametrize("layout", [pytest.param((0, 1, 2, 3), marks=pytest.mark.check), (0, 0, 1, 1, 2)])
def test_quorum__two_thirds_start_it(four: Hosts, layout: tuple[int, ...]) -> None:
    world = len(layout)
    with ranks([four[host] for host in layout], options=Options(policy="quorum", quorum=3)) as jobs:
        for job in jobs:
            job.partial(divisor="none")
        together(jobs)
        for op in range(6):
            those = random.Random(op).sample(range(world), 3)
            for rank in those[:2]:
                jobs[rank].partial().give(np.full(COUNT, 2.0**rank))
                assert until(heard(jobs[rank]))
            time.sleep(0.05)
            assert all(jobs[rank].partial().poll() is None for rank in those[:2]), "two are too few"
            jobs[those[2]].partial().give(np.full(COUNT, 2.0 ** those[2]))
            for result in (job.partial().wait(out=np.empty(COUNT)) for job in jobs):
                assert result is not None and set(result.array) == {sum(2.0**rank for rank in those)}
                assert result.receipt.contributors == tuple(sorted(those))


@pytest.mark.parametrize("policy", ["solo", "majority", "quorum", "probe", "seeded", "full"])
def test_every_gradient_is_in_one_op(four: Hosts, policy: str) -> None:
    """Ranks that call when they like, each step a number of its own: over all ops the sums add up to what was given,
    less what lies in the slots in the end. Replay: the seed is in the message."""
    seed = seeds(1)[0]
    steps, world = 60, 3
    with ranks(four[:world], options=Options(policy=policy, tau=255), deadline=DEADLINE_S) as jobs:
        ops: dict[int, float] = {}
        alone: list[float] = []
        lock = threading.Lock()

        def work(rank: int, job: Job) -> None:
            rng = random.Random(seed + rank)
            job.partial(divisor="none", local_reduce="sum")
            for step in range(steps):
                time.sleep(rng.random() * (0.004 if rank else 0.016))
                value, receipt = reduce(job, float(3**rank * (step + 1)))
                with lock:
                    if not receipt.included:
                        alone.append(value)
                        continue
                    assert receipt.status is Status.COMPLETE, receipt
                    assert ops.setdefault(receipt.op_seq, value) == value, "all ranks hold the same"

        assert everywhere(jobs, work) == [None] * world, f"seed {seed}"
        for job in jobs:  # ops that were started in a rank's absence, by what it had left
            result = job.partial().wait(-1)
            assert result is not None
            ops.setdefault(result.receipt.op_seq, result.array[0])
        assert sorted(ops) == list(range(len(ops))), f"seed {seed}: an op whose result nobody had"
        waiting = sum(job.partial()._pending[0].array[0] for job in jobs if job.partial().pending)
        given = sum(3**rank * step for rank in range(world) for step in range(1, steps + 1))
        assert sum(ops.values()) + waiting + sum(alone) == given, f"seed {seed}"


# Ranks and hosts that die


def test_rank_leaves__ops_go_on(four: Hosts) -> None:
    said = Options(policy="majority", policy_seed=seed_of(3, [2, 2, 2]))
    with ranks(four[:3], options=said) as jobs:
        results = everywhere(jobs, lambda rank, job: reduce(job, 3.0))
        assert max(receipt.included for _, receipt in results) >= 1
        jobs[2].close()  # who is drawn next
        for _ in range(3):
            with ends_within(10):
                for _, receipt in everywhere(jobs[:2], lambda rank, job: reduce(job, 3.0)):
                    assert receipt.included and 2 not in receipt.contributors


def test_daemon_killed__the_others_go_on_and_it_comes_back_in_the_middle(daemons: Daemons) -> None:
    """Its rank attaches again by itself, at the op where the job stands; what no op took is given again."""
    hosts = daemons(3)
    name = new_job_name()
    jobs = connect_all(hosts, name, options=Options(policy="solo", tau=255), deadline=10)
    try:
        everywhere(jobs, lambda rank, job: reduce(job, 3.0))
        hosts[2].kill()
        for _ in range(6):
            for result in everywhere(jobs[:2], lambda rank, job: reduce(job, 3.0)):
                assert result[1].included
        with pytest.raises(ultima.DaemonLost):
            reduce(jobs[2], 3.0)
        hosts[2].launch()
        hosts[2].wait_until_ready()
        stood = jobs[0].partial().newest
        _, first = reduce(jobs[2], 3.0)
        assert jobs[2].reconnects == 1
        assert first.op_seq > stood - 2 and first.gift is not Gift.NULL and first.included >= 1
        assert all(until(partial(sees, host, name, 2)) for host in hosts[:2])

        def four_are_complete() -> bool:
            """Those near a change of the view may not be: on a busy machine two views may open them."""
            four = [everywhere(jobs, lambda rank, job: reduce(job, 3.0)) for _ in range(4)]
            return all(receipt.status is Status.COMPLETE for each in four for _, receipt in each)

        assert until(four_are_complete)
        assert jobs[0].partial().newest > first.op_seq
    finally:
        for job in jobs:
            job.close()
