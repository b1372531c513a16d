# SPDX-License-Identifier: Apache-2.0
"""A daemon is told to stop and started again under a training, as an upgrade does it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import ultima
from tests.e2e.hosts import Hosts, everywhere, ranks, running, sees
from tests.e2e.test_trouble import until
from ultima import Status

Daemons = Callable[[int], Hosts]


@pytest.fixture(scope="module")
def hurried() -> Iterator[Hosts]:
    """Three daemons that wait no longer than a moment for ops that are open when they are to stop."""
    with running(3, ULTIMAD_LIMITS_DRAIN_SECONDS="0.2") as hosts:
        yield hosts


def again(hosts: Hosts, *victims: int, away: float = 0.0) -> None:
    """Stops daemons with SIGTERM, and starts them again when they have been away for so long."""
    stopped = [hosts[victim] for victim in victims]
    assert everywhere(stopped, lambda _, host: host.stop()) == [0] * len(victims)
    time.sleep(away)
    for host in stopped:
        host.launch()
    for host in stopped:
        host.wait_until_ready()


class Training:
    """Ranks that call op after op at their own pace, until they are stopped. Rank r gives 10^r in op s, plus s."""

    def __init__(self, jobs: list[ultima.Job], mode: str, deadline: float = 60.0) -> None:
        self.jobs, self.mode, self.deadline = jobs, mode, deadline
        self.steps = [0] * len(jobs)
        self.last: int | None = None
        self.statuses: list[list[Status]] = [[] for _ in jobs]
        self.results: list[list[object]] = [[] for _ in jobs]
        self.errors: list[Exception | None] = [None] * len(jobs)
        self._threads = [threading.Thread(target=self._run, args=(rank,), daemon=True) for rank in range(len(jobs))]
        for thread in self._threads:
            thread.start()

    def _run(self, rank: int) -> None:
        try:
            while self.last is None or self.steps[rank] <= self.last:
                step = self.steps[rank]
                data = np.full(3000, 10.0**rank + step)
                receipt = self.jobs[rank].allreduce(data, "sum", mode=self.mode, deadline=self.deadline)
                assert receipt.op_seq == step, "ops stay in step with the calls"
                self.statuses[rank].append(receipt.status)
                self.results[rank].append((set(np.unique(data)), receipt.contributors, step))
                self.steps[rank] += 1
        except Exception as error:
            self.errors[rank] = error

    def wait_for(self, steps: int) -> None:
        """Every rank has ended so many ops."""
        limit = time.monotonic() + 60
        while min(self.steps) < steps and not any(self.errors):
            assert time.monotonic() < limit, self.steps
            time.sleep(0.005)
        assert not any(self.errors), self.errors

    def wait_until_level(self, ops: int) -> None:
        """On every rank so many ops in a row were complete: on a busy machine one may miss its deadline any time."""
        limit = time.monotonic() + 60
        while not all(each[-ops:] == [Status.COMPLETE] * ops for each in self.statuses) and not any(self.errors):
            assert time.monotonic() < limit, [each[-ops:] for each in self.statuses]
            time.sleep(0.005)
        assert not any(self.errors), self.errors

    def end(self) -> None:
        """All ranks end with the same op."""
        self.last = max(self.steps) + 5
        for thread in self._threads:
            thread.join(60)
        assert not any(self.errors), self.errors
        assert self.steps == [self.last + 1] * len(self.jobs)


def sums(step: int) -> set[float]:
    """What an element may be: every set of ranks gives another sum."""
    subsets = [[rank for rank in range(3) if mask >> rank & 1] for mask in range(1, 8)]
    return {sum(10.0**rank + step for rank in subset) for subset in subsets}


@pytest.mark.parametrize(
    "victims",
    [(1,), pytest.param((0,), marks=pytest.mark.check), pytest.param((0, 1, 2), marks=pytest.mark.check)],
    ids=["another", "the coordinator's", "all"],
)
def test_upgrade__reliable_ops_wait_and_go_on(daemons: Daemons, victims: tuple[int, ...]) -> None:
    """No rank sees an exception, and every op has every rank in it, once."""
    hosts = daemons(3)
    with ranks(hosts) as jobs:
        training = Training(jobs, "reliable")
        training.wait_for(20)
        again(hosts, *victims)
        training.wait_for(min(training.steps) + 20)
        training.end()
        for rank in range(3):
            assert [jobs[rank].reconnects for rank in victims] == [1] * len(victims)
            assert set(training.statuses[rank]) == {Status.COMPLETE}
            for step, (values, contributors, _) in enumerate(training.results[rank]):
                assert values == {111.0 + 3 * step} and contributors == (0, 1, 2)


@pytest.mark.check
def test_upgrade__bounded_ops_go_on_without_the_host(daemons: Daemons) -> None:
    """Its rank answers alone for what it missed, and all are level again. An op says truly who is in it."""
    hosts = daemons(3)
    with ranks(hosts) as jobs:
        training = Training(jobs, "bounded", deadline=0.3)
        training.wait_for(20)
        again(hosts, 1, away=0.5)
        training.wait_for(min(training.steps) + 20)
        training.wait_until_level(5)
        training.end()
    for rank in range(3):
        for status, (values, contributors, step) in zip(training.statuses[rank], training.results[rank], strict=True):
            assert values <= sums(step), (rank, step, values)
            if status is Status.COMPLETE:
                assert values == {111.0 + 3 * step} and contributors == (0, 1, 2)
            elif status is Status.INSUFFICIENT:
                assert values == {10.0**rank + step} and contributors == (rank,)
    assert any(status is not Status.COMPLETE for status in training.statuses[0]), "it was away for half a second"


@pytest.mark.parametrize("called", [True, False], ids=["its rank has called", "its rank has not called"])
@pytest.mark.parametrize(
    "collective",
    ["broadcast", *(pytest.param(each, marks=pytest.mark.check) for each in ("allreduce", "all_gather", "barrier"))],
)
def test_upgrade__under_an_op_that_waits_for_a_rank(hurried: Hosts, called: bool, collective: str) -> None:
    """An op is open on some hosts, and one has not called it: it goes on with the new life of the daemon."""
    hosts = hurried

    def call(rank: int, job: ultima.Job) -> list[float]:
        mine = np.full(3000, 10.0**rank)
        if collective == "allreduce":
            job.allreduce(mine, "sum", mode="reliable", deadline=60)
        elif collective == "broadcast":
            job.broadcast(mine, 0, deadline=60)
        elif collective == "all_gather":
            whole = np.zeros(9000)
            job.all_gather(mine, whole, deadline=60)
            mine = whole
        else:
            job.barrier(deadline=60)
        return sorted(set(mine.tolist()))

    wanted = {"allreduce": [111.0], "broadcast": [1.0], "all_gather": [1.0, 10.0, 100.0]}
    with ranks(hosts) as jobs:
        assert all(each.complete for each in everywhere(jobs, lambda _, job: job.allreduce(np.ones(10), deadline=20)))
        late = 2 if called else 1
        results: list[object] = [None] * 3

        def run(rank: int) -> None:
            try:
                results[rank] = call(rank, jobs[rank])
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(3)]
        for rank in range(3):
            if rank != late:
                threads[rank].start()
        time.sleep(0.3)
        again(hosts, 1)  # where its rank has called, the op cannot end, and the daemon goes without its end
        if called:
            # Until the others hear of the new life they could end the op with what the life before had given, and no
            # longer have it when its rank asks again. (Where it has not called, its call brings its host back.)
            assert until(lambda: all(sees(hosts[other], jobs[0].name, 1) for other in (0, 2)))
        threads[late].start()
        for thread in threads:
            thread.join(60)
        for rank, result in enumerate(results):
            assert result == wanted.get(collective, [10.0**rank]), results
        after = everywhere(jobs, lambda _, job: job.allreduce(np.ones(10), deadline=20))
        assert [each.complete for each in after] == [True] * 3 and len({each.op_seq for each in after}) == 1


def test_upgrade__that_does_not_come_back(daemons: Daemons) -> None:
    """After the window the host is gone, as one that went without a word."""
    hosts = daemons(2)
    hosts[1].kill()
    hosts[1].environment["ULTIMAD_LIMITS_DRAIN_WINDOW_SECONDS"] = "1"
    hosts[1].launch()
    hosts[1].wait_until_ready()
    with ranks(hosts) as jobs:
        assert all(each.complete for each in everywhere(jobs, lambda _, job: job.allreduce(np.ones(10), deadline=20)))
        assert hosts[1].stop() == 0
        began = time.monotonic()
        warned = pytest.warns(ultima.UltimaWarning, match="its daemon was told to stop, and was not back within 1 s")
        with warned, pytest.raises(ultima.RanksGone) as caught:
            jobs[0].allreduce(np.ones(10), mode="reliable", deadline=60)
        assert caught.value.ranks == (1,)
        assert 0.5 < time.monotonic() - began < 30
        log = hosts[0].log()
        assert "reason=its daemon was told to stop" in log and "host does not return" in log
        assert jobs[1].allreduce(np.ones(10), deadline=1.2).status is Status.INSUFFICIENT, "within the window"
        with pytest.raises(ultima.DaemonError):
            jobs[1].allreduce(np.ones(10), deadline=0.3)


def test_kill__is_no_upgrade(daemons: Daemons) -> None:
    """Nobody waits for a daemon that went without a word: the documents say so."""
    hosts = daemons(2)
    with ranks(hosts) as jobs:
        assert all(each.complete for each in everywhere(jobs, lambda _, job: job.allreduce(np.ones(10), deadline=20)))
        hosts[1].kill()
        with pytest.raises(ultima.RanksGone):
            jobs[0].allreduce(np.ones(10), mode="reliable", deadline=60)
