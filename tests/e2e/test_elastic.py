# SPDX-License-Identifier: Apache-2.0
"""Real daemons whose hosts join, leave and die while the job runs. Sums prove who is in."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ultima
from tests.daemon.trust.papers import Authority
from tests.e2e.elastic import check, enter, enter_all, summed, whole_soon
from tests.e2e.hosts import DaemonProcess, Hosts, everywhere, new_job_name
from tests.e2e.test_secure import secure_hosts
from ultima import ElasticJob, Status
from ultima.admin.calls import get_receipts, get_status
from ultima.cli.explain import decoded


def told_of(host: DaemonProcess, job: str) -> dict[str, float]:
    """What a daemon's metrics say of the views of a job, by name and reason."""
    command = [sys.executable, "-m", "ultima", "metrics", "--socket", str(host.socket)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    rows = re.findall(rf'(?m)^(ultima_view\w*){{(?:reason="(\w+)",)?ultima_job="{job}"}} (\S+)$', text)
    return {f"{name} {reason}".rstrip(): float(value) for name, reason, value in rows}


@pytest.mark.check
def test_elastic__hosts_join_leave_and_die(daemons: Callable[[int], Hosts]) -> None:
    """Seats are used again; each receipt names the view of its op, and that has just those whose gifts are in it."""
    hosts, name = dict(enumerate(daemons(4))), new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, least=2, most=3)
    try:
        whole_soon(jobs)
        assert jobs[0].view.world_size == 2 and not jobs[0].changed
        jobs[2] = enter(hosts[2], hosts[0], name, least=2, most=3)
        whole_soon(jobs)
        assert jobs[0].changed and jobs[0].view.ranks == (0, 1, 2) and jobs[0].view.position == jobs[0].rank
        left = jobs.pop(1)
        left.leave()
        whole_soon(jobs)
        assert left.rank not in jobs[0].view.ranks
        jobs[3] = enter(hosts[3], hosts[0], name, least=2, most=3)
        whole_soon(jobs)
        assert jobs[3].rank == left.rank, "the seat that was free"
        (shown,) = get_status(str(hosts[0].socket), name).jobs
        assert shown.world_size == 3 == len(shown.hosts), shown
        hosts[2].kill()
        jobs.pop(2).close()
        whole_soon(jobs)
        (shown,) = get_status(str(hosts[0].socket), name).jobs
        assert shown.world_size == 2 == len(shown.hosts), shown
        jobs[1] = enter(hosts[1], hosts[0], name, least=2, most=3)
        whole_soon(jobs)
        numbers = [job.view.number for job in jobs.values()]
        assert len({*numbers}) == 1, numbers
        told = told_of(hosts[0], name)
        ranks = told["ultima_view"], told["ultima_view_members"], told["ultima_view_least"]
        assert ranks == (numbers[0], 3, 2), told
        changes = [told[f"ultima_view_changes_total {reason}"] for reason in ("came", "left", "gone")]
        assert changes == [3, 1, 1], told
    finally:
        for job in jobs.values():
            job.close()


def test_elastic__all_may_leave_at_once(four: Hosts) -> None:
    """As at the end of a training: nobody is left who could decide a view, and nobody waits for one. The limit of the
    test is far below what the drain allows."""
    jobs = enter_all(dict(enumerate(four)), four[0], new_job_name(), least=4)
    whole_soon(jobs)
    assert everywhere(list(jobs.values()), lambda _, job: job.leave(drain="10min")) == [None] * 4


@pytest.mark.check
def test_elastic__too_few_are_insufficient_until_more_come(daemons: Callable[[int], Hosts]) -> None:
    """Below `least` a call ends by its deadline with the rank's own value; it is no exception."""
    hosts, name = dict(enumerate(daemons(3))), new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, least=2)
    try:
        whole_soon(jobs)
        leaver = jobs.pop(1)
        left = leaver.rank
        leaver.leave()
        began = time.monotonic()
        for _ in range(20):  # of the ops that it had begun before, at its own pace
            found = summed({0: jobs[0]}, deadline="300ms")
            check({0: jobs[0]}, found)
            if found[0][0].contributors != (left,):
                break
        for _ in range(3):
            found = summed({0: jobs[0]}, deadline="300ms")
            check({0: jobs[0]}, found)
            assert found[0][0].status is Status.INSUFFICIENT, found[0][0]
        assert time.monotonic() - began < 10
        jobs[2] = enter(hosts[2], hosts[0], name, least=2)
        whole_soon(jobs)
    finally:
        for job in jobs.values():
            job.close()


@pytest.mark.check
@pytest.mark.parametrize("split", ["go on", "wait"])
def test_elastic__a_host_that_stands_still_comes_back(daemons: Callable[[int], Hosts], split: str) -> None:
    """To the others it is as cut off. When it goes on it meets a view without it, and is taken in again."""
    hosts, name = dict(enumerate(daemons(3))), new_job_name()
    jobs = enter_all(hosts, hosts[0], name, most=3, split=split)
    try:
        whole_soon(jobs)
        hosts[2].suspend()
        whole_soon({0: jobs[0], 1: jobs[1]}, deadline="1s")
        assert jobs[0].view.world_size == 2
        hosts[2].signal(signal.SIGCONT)
        whole_soon(jobs, deadline="1s")
    finally:
        for job in jobs.values():
            job.close()


@pytest.mark.check
def test_elastic__a_seat_goes_to_another_node_among_daemons_with_certificates() -> None:
    with secure_hosts(3, Authority()) as daemons:
        hosts, name = dict(enumerate(daemons)), new_job_name()
        jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, most=2)
        whole_soon(jobs)
        left = jobs.pop(1)
        left.leave()
        jobs[2] = enter(hosts[2], hosts[0], name, most=2)
        whole_soon(jobs)
        assert jobs[2].rank == left.rank
        for job in jobs.values():
            job.close()


@pytest.mark.check
def test_elastic__a_spare_waits_until_a_seat_is_free(daemons: Callable[[int], Hosts]) -> None:
    hosts, name = dict(enumerate(daemons(3))), new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, most=2)
    try:
        with pytest.raises(ultima.JoinTimeout, match="has 2 of 2 ranks; this one waits as a spare"):
            enter(hosts[2], hosts[0], name, most=2, timeout=1.5)

        def play(_: int, role: str) -> None:
            if role == "spare":
                jobs[2] = enter(hosts[2], hosts[0], name, most=2)
            else:
                time.sleep(0.5)
                jobs.pop(1).leave()

        assert everywhere(["spare", "leaver"], play) == [None, None]
        whole_soon(jobs)
        assert jobs[0].view.ranks == (0, 1)
    finally:
        for job in jobs.values():
            job.close()


@pytest.mark.check
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"least": 2}, "least differs: this rank says 2, the job that is under way began with 1"),
        ({"most": 5}, "most differs: this rank says 5, the job that is under way began with 8"),
        ({"split": "wait"}, "split differs: this rank says wait, the job that is under way began with go on"),
    ],
)
def test_elastic__who_has_other_rules_is_refused(four: Hosts, wrong: dict[str, object], said: str) -> None:
    name = new_job_name()
    with enter(four[0], four[0], name):
        with pytest.raises(ultima.Desync, match=said):
            enter(four[1], four[0], name, **wrong)
        with pytest.raises(ultima.UltimaError, match="one rank on each host"):
            enter(four[0], four[0], name, timeout=2)


def test_elastic__what_needs_every_host_is_refused(four: Hosts) -> None:
    with enter(four[0], four[0], new_job_name(), most=1) as job:
        data = np.ones(4)
        for call in (lambda: job.barrier(), lambda: job.broadcast_async(data), lambda: job.sync_model([data])):
            with pytest.raises(ultima.Unsupported, match="only allreduce"):
                call()
        for wrong in ({"op": "max"}, {"mode": "reliable"}, {"agree": True}):
            with pytest.raises(ultima.InvalidArgument, match="where hosts come and go"):
                job.allreduce(data, **wrong)


def test_elastic__changes_tell_who_came_and_left(four: Hosts) -> None:
    name = new_job_name()
    jobs = enter_all({0: four[0], 1: four[1]}, four[0], name, most=4)
    with jobs[0] as job:
        whole_soon(jobs)
        calls = (summed({0: job}, deadline="300ms")[0][0] for _ in range(20))  # the other one may be an op ahead
        alone = next(receipt for receipt in calls if jobs[1].rank in receipt.missing_ranks)
        answer = get_receipts(four[0].socket, name, alone.op_seq)
        receipt, _, _ = decoded(answer)
        assert answer.world_size == 4 and receipt.world_size == 2
        assert receipt.missing_ranks == alone.missing_ranks == (jobs[1].rank,), "no free seat is missing"
        assert list(answer.view.hosts) == sorted(each.rank for each in jobs.values()) and not answer.view.outside
        session = job._connection.session
        assert [host.index for host in session._present()] == list(answer.view.hosts), "of what it makes receipts alone"
        changes = job.changes(timeout="10s")
        told = []

        def play(_: int, role: str) -> None:
            if role == "reader":
                told.extend(next(changes) for _ in range(1))
            else:
                jobs[1].leave()

        assert everywhere(["reader", "leaver"], play) == [None, None]
        (outside,) = get_receipts(four[0].socket, name, None).view.outside
        assert (outside.host, outside.reason) == (jobs[1].rank, "left")
        assert told[0].left == (jobs[1].rank,) and not told[0].came and "leaves" in told[0].why, told


@pytest.mark.check
def test_elastic__the_first_op_of_a_newcomer_is_whole_though_the_others_have_many_to_go(
    daemons: Callable[[int], Hosts],
) -> None:
    """It comes in at an op to which the others come 20 ms later, up to 40 ops of theirs: what it sends meanwhile is not
    kept, and must come again. Not each time: on a busy machine an op may end without the slowest."""
    *hosts, guest = daemons(3)
    name, over, times = new_job_name(), threading.Event(), 6
    jobs = enter_all(dict(enumerate(hosts)), hosts[0], name, most=3)

    def play(number: int, job: ElasticJob) -> None:
        while not over.is_set():
            check({number: job}, summed({number: job}))

    def come() -> int:
        whole = 0
        for _ in range(times):
            time.sleep(0.3)
            with enter(guest, hosts[0], name, most=3) as job:
                found = summed({2: job}, deadline="5s")
                check({2: job}, found)
                whole += found[2][0].complete
                job.leave()
        return whole

    with ThreadPoolExecutor(3) as threads:
        playing = [threads.submit(play, *each) for each in jobs.items()]
        try:
            whole = threads.submit(come).result()
        finally:
            over.set()
        for each in playing:
            each.result()
    for job in jobs.values():
        job.close()
    assert whole >= times / 2, f"{whole} of {times} first ops were complete"
