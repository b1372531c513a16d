# SPDX-License-Identifier: Apache-2.0
"""Newcomers that follow an elastic job, over real daemons: nobody waits for them, what they give is in no sum, and when
they come in they have the bits of the others."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.elastic import enter, enter_all
from tests.e2e.hosts import DaemonProcess, Hosts, everywhere, new_job_name
from ultima import ElasticJob, Receipt, StateReport
from ultima.admin.calls import get_receipts

SIZES = 70_000, 500  # elements of each array; the first is a part of 512 KiB and a bit
BUCKETS = len(SIZES)  # ops of a step
FOREIGN = 2.0**40  # what a rank gives that is in no op: in a sum it would be seen at once


@dataclass
class Run:
    """What one rank did."""

    state: dict[str, np.ndarray]
    receipts: list[tuple[int, Receipt, bool]] = field(default_factory=list)
    """Step, receipt, and whether it followed."""


def fresh(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {f"w{bucket}": draw.random(size) for bucket, size in enumerate(SIZES)}


def train(job: ElasticJob, run: Run, step: int, until: Callable[[int], bool], pause_s: float = 0.03) -> int:
    """Each rank gives what tells it from others, from the state before; a follower something that is in no sum."""
    while not until(step):
        job.share(run.state, revision=step)
        follows = job.following(BUCKETS)
        if not follows:
            time.sleep(pause_s)
        gifts = [
            np.full(array.size, FOREIGN) if follows else array * 2.0**-job.rank + step
            for _, array in sorted(run.state.items())
        ]
        handles = [job.allreduce_async(gift, "sum", deadline="5s") for gift in gifts]
        for handle in reversed(handles):  # the last one first: who gives to followers must not wait for that
            run.receipts.append((step, handle.wait(), follows))
        for name, gift in zip(sorted(run.state), gifts, strict=True):
            run.state[name] -= 0.01 * gift / 4
        step += 1
    return step


def wait_for(ready: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, f"not in {seconds} s"
        time.sleep(0.01)


def ending(ends: list[int], work: Callable[[], int]) -> Callable[[], int]:
    """The same; if it fails, the others end at once."""

    def done() -> int:
        try:
            return work()
        except BaseException:
            ends[0] = 0
            raise

    return done


def said(runs: dict[int, Run]) -> str:
    return "\n".join(
        f"{each}: {[(s, r) for s, r, _ in run.receipts if not r.complete][:3]}" for each, run in runs.items()
    )


@pytest.mark.check
def test_follow__a_newcomer_catches_up_and_nobody_waits(daemons: Callable[[int], Hosts]) -> None:
    """Where words take longer than ops are held for them, as on a busy machine, the newcomer's first op may not be
    complete, and its receipt says so: then another training is judged."""
    hosts = dict(enumerate(daemons(3)))
    assert any(followed(hosts) for _ in range(4)), "an op of each training was not complete"


def followed(hosts: Mapping[int, DaemonProcess]) -> bool:
    """Judges one training with a newcomer; whether all its ops were complete."""
    name = new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, most=3, follow=True)
    runs = {0: Run(fresh(1)), 1: Run(fresh(1)), 2: Run(fresh(7))}
    reports: list[StateReport] = []
    shown: list[Any] = []
    ends = [10**9]

    def newcomer() -> int:
        wait_for(lambda: len(runs[0].receipts) >= 10)
        jobs[2] = job = enter(hosts[2], hosts[0], name, most=3, follow=True)
        with pytest.raises(ultima.Unsupported, match="call follow"):
            job.allreduce(np.ones(3))
        report = job.follow(runs[2].state)
        assert report is not None and job.view.position is None
        reports.append(report)
        # It stands still, and nobody waits for it.
        wait_for(lambda: runs[0].receipts[-1][0] >= report.revision + 10)
        shown.append(get_receipts(hosts[0].socket, name, None))
        step = train(job, runs[2], report.revision, lambda _: not job.following(BUCKETS))
        ends[0] = step + 8
        return train(job, runs[2], step, lambda step: step >= ends[0])

    assert jobs[0].follow(runs[0].state) is None and not jobs[0].following(), "it is in from the beginning"
    last = everywhere(
        [lambda: train(jobs[0], runs[0], 0, lambda step: step >= ends[0]),
         lambda: train(jobs[1], runs[1], 0, lambda step: step >= ends[0]), ending(ends, newcomer)],
        lambda _, work: work(),
    )  # fmt: skip
    assert len({*last}) == 1, last
    if not all(receipt.complete for run in runs.values() for _, receipt, _ in run.receipts):
        for job in jobs.values():
            job.close()
        return False
    for each in (1, 2):
        assert all(runs[0].state[key].tobytes() == runs[each].state[key].tobytes() for key in runs[0].state), said(runs)
    mine = jobs[2].rank
    replayed = [receipt for _, receipt, follows in runs[2].receipts if follows]
    own = [receipt for _, receipt, follows in runs[2].receipts if mine in receipt.contributors]
    assert len(replayed) >= 10 * BUCKETS and all(mine not in r.contributors and mine not in r.members for r in replayed)
    late = BUCKETS - 1  # in the first step with an op of its own it may have come in with the last one
    assert len(own) >= 8 * BUCKETS - late and all(len(r.contributors) == 3 for r in own)
    there = {receipt.op_seq: receipt for _, receipt, _ in runs[0].receipts}
    for receipt in (*replayed, *own):
        other = there[receipt.op_seq]
        told = receipt.contributors, receipt.members, receipt.digest, receipt.view, receipt.world_size
        assert told == (other.contributors, other.members, other.digest, other.view, other.world_size)
    (outside,) = shown[0].view.outside
    assert (outside.host, outside.reason) == (mine, "follows")
    for job in jobs.values():
        job.close()
    return True


@pytest.mark.check
def test_follow__who_is_followed_dies_and_another_is_followed(daemons: Callable[[int], Hosts]) -> None:
    """And a follower that dies is missed by nobody."""
    hosts, name = dict(enumerate(daemons(4))), new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, most=4)
    runs = {each: Run(fresh(each // 2)) for each in range(4)}
    oldest = next(each for each, job in jobs.items() if job.rank == 0)
    other, ends = 1 - oldest, [10**9]

    def member(each: int) -> int | None:
        try:
            return train(jobs[each], runs[each], 0, lambda step: step >= ends[0])
        except ultima.UltimaError:
            assert each == oldest
            return None

    def newcomer() -> int:
        wait_for(lambda: len(runs[other].receipts) >= 10)
        for each in (2, 3):
            jobs[each] = enter(hosts[each], hosts[0], name, most=4, follow=True)
            assert jobs[each].follow(runs[each].state) is not None
        hosts[3].kill()  # it is missed in no op
        report = jobs[2].follow(runs[2].state)  # once more; what it has already is not fetched
        assert report is not None and set(report.sources) <= {0}
        for _ in range(3):
            jobs[2].following(1)
            wait_for(lambda: runs[other].receipts[-1][0] >= report.revision + 3)
        hosts[oldest].kill()
        with pytest.raises(ultima.RanksGone, match=r"rank 0 gives no result of op \d+.*call follow\(\) again"):
            train(jobs[2], runs[2], report.revision, lambda _: False)
        report = jobs[2].follow(runs[2].state)
        assert report is not None and set(report.sources) <= {jobs[other].rank}
        step = train(jobs[2], runs[2], report.revision, lambda _: not jobs[2].following(BUCKETS))
        ends[0] = step + 10
        return train(jobs[2], runs[2], step, lambda step: step >= ends[0])

    def play(_: int, work: Callable[[], Any]) -> Any:
        return work()

    last = everywhere([lambda: member(oldest), lambda: member(other), ending(ends, newcomer)], play)
    assert last[1] == last[2] is not None, last
    assert all(runs[other].state[key].tobytes() == runs[2].state[key].tobytes() for key in runs[2].state), said(runs)
    for each in (other, 2):
        jobs[each].close()


def test_follow__bad_input(four: Hosts) -> None:
    with pytest.raises(ultima.InvalidArgument, match="follow is True; allowed: none without world"):
        ultima.connect("j", follow=True, socket=four[0].socket)
    with pytest.raises(ultima.InvalidArgument, match="follow is 2; allowed: True or False"):
        enter(four[0], four[0], new_job_name(), follow=2)
    name = new_job_name()
    with enter(four[0], four[0], name, most=2) as job, enter(four[1], four[0], name, most=2, follow=True) as guest:
        for wrong in (0, -1, True, 1.5, 100_001):
            with pytest.raises(ultima.InvalidArgument, match=r"ops is .*; allowed: a whole number from 1 to 100000"):
                guest.following(wrong)  # type: ignore[arg-type]
        with pytest.raises(ultima.InvalidArgument, match="timeout"):
            guest.following(1, timeout="11m")
        with pytest.raises(ultima.InvalidArgument, match="timeout"):
            guest.follow({"w": np.zeros(3)}, timeout="11m")
        with pytest.raises(ultima.InvalidArgument, match=r"state\['w'\]"):
            guest.follow({"w": 3})
        with pytest.raises(ultima.Unsupported, match=r"call follow\(state\) first"):
            guest.following()
        with pytest.raises(ultima.DeadlineExceeded, match="rank 0 did not give its state: let each rank call share"):
            guest.follow({"w": np.zeros(3)}, timeout="300ms")
        assert job.view.ranks == (0,) and job.allreduce(np.ones(3), "sum", deadline="5s").complete
        state = {"w": np.arange(3.0)}

        def play(_: int, role: str) -> None:
            if role == "member":
                for step in range(200):
                    job.share(state, revision=step)
                    time.sleep(0.01)
                    if guest_done:
                        return
            else:
                try:
                    with pytest.raises(ultima.Desync, match=r"float64\[4\] here, float64\[3\] on rank 0"):
                        guest.follow({"w": np.zeros(4)}, timeout="5s")
                    assert guest.share({"w": np.zeros(3)}, revision=0) is None
                finally:
                    guest_done.append(True)

        guest_done: list[bool] = []
        assert everywhere(["member", "guest"], play) == [None, None]
