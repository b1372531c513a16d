# SPDX-License-Identifier: Apache-2.0
"""State for newcomers of elastic jobs, over real daemons: whoever takes part has the same bits afterwards, and goes on
with the same op."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ultima
from tests.daemon.trust.papers import Authority
from tests.e2e.elastic import enter, enter_all, whole_soon
from tests.e2e.hosts import DaemonProcess, Hosts, everywhere, new_job_name
from tests.e2e.test_secure import secure_hosts
from tests.e2e.test_trouble import until
from ultima import ElasticJob, StateReport
from ultima.admin.calls import get_status
from ultima.api import state_pairs

State = dict[str, np.ndarray]
SIZE = 300_000  # elements; 4 parts of 512 KiB and a bit


def fresh(seed: int) -> State:
    draw = np.random.default_rng(seed)
    return {"weights": draw.random(SIZE), "steps": np.zeros((2, 3), np.int64), "flags": np.zeros(5, np.uint8)}


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def train(job: ElasticJob, state: State, step: int, steps: int, log: list[Any] | None = None) -> int:
    """Each rank gives what tells it from others; each step depends on the state before it."""
    while step < steps:
        report = job.share(state, revision=step)
        gradient = state["weights"] * 2.0**-job.rank + step
        receipt = job.allreduce(gradient, deadline="8s")
        if log is not None:
            log.append((step, receipt, report))
        state["weights"] -= 0.01 * gradient
        state["steps"] += 1
        step += 1
        time.sleep(0.01)
    return step


def play(jobs: Mapping[int, Callable[[], Any]]) -> dict[int, Any]:
    found = everywhere(list(jobs.values()), lambda _, work: work())
    return dict(zip(jobs, found, strict=True))


@pytest.mark.check
def test_state__a_newcomer_goes_on_where_the_others_are(daemons: Callable[[int], Hosts]) -> None:
    """Two come in the middle of a training; in the end all have the same bits, and they have computed their part. Where
    words take longer than ops are held for them, as on a busy machine, an op may not be complete, and its receipt says
    so: ranks may have other values then, and another training is judged."""
    hosts = dict(enumerate(daemons(4)))
    assert any(trained(hosts) for _ in range(3)), "ranks differ after each training"


def trained(hosts: Mapping[int, DaemonProcess]) -> bool:
    """Judges one training with two newcomers; whether all have the same bits in the end."""
    name = new_job_name()
    jobs = enter_all({0: hosts[0], 1: hosts[1]}, hosts[0], name, most=4)
    states, logs = {0: fresh(1), 1: fresh(1), 2: fresh(7), 3: fresh(8)}, {each: [] for each in range(4)}
    taken: dict[int, StateReport] = {}

    def newcomer(each: int, after_s: float) -> int:
        time.sleep(after_s)
        jobs[each] = enter(hosts[each], hosts[0], name, most=4)
        report = jobs[each].sync_state(states[each])
        assert report is not None
        taken[each] = report
        return train(jobs[each], states[each], report.revision, 80, logs[each])

    members = {each: lambda each=each: train(jobs[each], states[each], 0, 80, logs[each]) for each in (0, 1)}
    newcomers = {2: lambda: newcomer(2, 0.3), 3: lambda: newcomer(3, 0.4)}
    assert play({**members, **newcomers}) == dict.fromkeys(range(4), 80)
    report = taken[2]
    lacking = {each: [x for x in logs[each] if not x[1].complete or x[2]] for each in logs}
    equal = all(same(states[0], states[each]) for each in (1, 2, 3))
    assert equal or any(lacking.values()), f"{taken}\n{logs}"
    assert report.nbytes == sum(report.sources.values()) and not report.again, report
    assert 0 < report.revision < 80 and report.parts == 5 and not report.false, report
    assert logs[2][0][1].op_seq == report.op_seq and (logs[2][-1][1].complete or not equal), lacking
    assert states[2]["steps"].tolist() == [[80] * 3] * 2
    for job in jobs.values():
        job.close()
    return equal


@pytest.mark.check
def test_state__all_at_once_are_the_same_and_one_that_drifted_is_repaired() -> None:
    """Among daemons with certificates. Of different ones the popular state is taken, of as many that of the oldest."""
    with secure_hosts(3, Authority()) as found:
        hosts, name = dict(enumerate(found)), new_job_name()
        jobs = enter_all(hosts, hosts[0], name, most=3)
        whole_soon(jobs)
        states = {0: fresh(1), 1: fresh(2), 2: fresh(2)}

        def sync(each: int, revision: int) -> StateReport:
            return jobs[each].sync_state(states[each], revision=revision)

        reports = play({each: lambda each=each: sync(each, 0) for each in jobs})
        assert all(same(states[each], fresh(2)) for each in states), reports
        assert reports[0].sources and not reports[1].sources and len({each.root for each in reports.values()}) == 1
        states[1]["weights"][200_000] += 1
        reports = play({each: lambda each=each: sync(each, 1) for each in jobs})
        assert same(states[1], fresh(2)) and reports[1].parts == 1, reports
        states = {each: fresh(10 + job.rank) for each, job in jobs.items()}
        reports = play({each: lambda each=each: sync(each, 2) for each in jobs})
        assert all(same(states[each], fresh(10)) for each in states), "all differed: that of the first seat"
        for job in jobs.values():
            job.close()


def metrics_of(host: DaemonProcess) -> str:
    command = [sys.executable, "-m", "ultima", "metrics", "--socket", str(host.socket)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def pairs_of(host: DaemonProcess, name: str) -> list[str]:
    """Jobs of two ranks, in which state travels, that a daemon has now."""
    return [job.job for job in get_status(host.socket).jobs if job.job.startswith(f"{name}/state/")]


@pytest.mark.check
@pytest.mark.parametrize("jobs_come_about", [True, False], ids=["as ops", "in messages"])
def test_state__a_large_one_comes_as_ops_or_else_in_messages(
    daemons: Callable[[int], Hosts], monkeypatch: pytest.MonkeyPatch, jobs_come_about: bool
) -> None:
    hosts, name = dict(enumerate(daemons(3))), new_job_name()
    jobs = enter_all(hosts, hosts[0], name, most=3)
    big = np.random.default_rng(3).integers(0, 256, (24 << 20) + 5, np.uint8)
    states = {0: {"w": big.copy()}, 1: {"w": big.copy()}, 2: {"w": np.zeros_like(big)}}
    met: list[int] = []
    join = state_pairs._join

    def joined(*given: Any) -> Any:
        met.append(given[2])
        if not jobs_come_about:
            raise ultima.JoinTimeout("nobody comes")
        return join(*given)

    monkeypatch.setattr(state_pairs, "_join", joined)

    def give(each: int) -> StateReport | None:
        limit, report = time.monotonic() + 60, None
        while time.monotonic() < limit and report is None:
            report = jobs[each].share(states[each], revision=9)
        return report

    found = play({0: lambda: give(0), 1: lambda: give(1), 2: lambda: jobs[2].sync_state(states[2], mode="receive")})
    assert np.array_equal(states[2]["w"], big) and sum(found[2].sources.values()) == big.size
    assert met and (not jobs_come_about or sorted(met) == [0, 0, 1, 1])
    assert until(lambda: not any(pairs_of(hosts[each], name) for each in hosts)), "these jobs end with it"
    rows = rf'ultima_state_bytes_total{{direction="received",ultima_job="{name}"}} (\S+)'
    (received,) = re.findall(rows, metrics_of(hosts[2]))
    assert 0 <= float(received) - big.size < 10_000, "they count as what came in messages does, and so does the list"
    for job in jobs.values():
        job.close()


@pytest.mark.check
def test_state__a_holder_that_dies_in_the_middle_is_made_up_for(daemons: Callable[[int], Hosts]) -> None:
    """It dies while parts come from it in a job of its own."""
    hosts, name = dict(enumerate(daemons(3))), new_job_name()
    jobs = enter_all(hosts, hosts[0], name, most=3, rate="30M")
    big = np.random.default_rng(3).integers(0, 256, 96 << 20, np.uint8)
    states = {0: {"w": big}, 1: {"w": big}, 2: {"w": np.zeros_like(big)}}
    rank_0, rank_1 = jobs[0].rank, jobs[1].rank

    def give(each: int) -> None:
        limit = time.monotonic() + 60
        while time.monotonic() < limit and jobs[each].share(states[each], revision=9) is None:
            time.sleep(0.01)

    def killer() -> None:
        assert until(lambda: pairs_of(hosts[1], name))
        time.sleep(0.3)
        hosts[1].kill()

    found = play(
        {0: lambda: give(0), 1: lambda: give_until_lost(jobs[1], states[1]), 3: killer,
         2: lambda: jobs[2].sync_state(states[2], mode="receive")}
    )  # fmt: skip
    report = found[2]
    assert isinstance(report, StateReport) and np.array_equal(states[2]["w"], big), report
    assert report.revision == 9 and report.nbytes == 96 << 20 and not report.false
    died, other = report.sources.get(rank_1, 0), report.sources[rank_0]
    assert 0 < died < other and sum(report.sources.values()) == big.size, report
    for job in jobs.values():
        job.close()


def give_until_lost(job: ElasticJob, state: State) -> None:
    for _ in range(300):
        if job.share(state, revision=9) is not None:
            return
        time.sleep(0.01)


@pytest.mark.check
def test_state__what_cannot_be_taken_is_said_by_name_and_changes_nothing(daemons: Callable[[int], Hosts]) -> None:
    hosts, name = dict(enumerate(daemons(2))), new_job_name()
    jobs = enter_all(hosts, hosts[0], name, most=2)
    state, other = fresh(1), fresh(2)
    with pytest.raises(ultima.DeadlineExceeded, match=r"ranks \[\d\] have not called share\(\) or sync_state\(\)"):
        jobs[0].sync_state(state, timeout="700ms")
    assert same(state, fresh(1)) and jobs[1].share(other, revision=3) is None, "nobody asks any more"
    wrong = {**other, "steps": np.zeros((3, 3), np.int64)}
    done = threading.Event()

    def give() -> None:
        while not done.is_set():
            jobs[1].share(other, revision=3, wait="5s")
            time.sleep(0.01)

    def take() -> str:
        try:
            with pytest.raises(ultima.Desync) as found:
                jobs[0].sync_state(wrong)
            return str(found.value)
        finally:
            done.set()

    said = play({0: take, 1: give})[0]
    assert said == f"state: 'steps' differs: int64[3, 3] here, int64[2, 3] on rank {jobs[1].rank}"
    assert same({**wrong, "steps": other["steps"]}, other)
    for field, wrongly in (
        ("mode", {"mode": "newest"}),
        ("revision", {"revision": -1}),
        ("timeout", {"timeout": "1h"}),
    ):
        with pytest.raises(ultima.InvalidArgument, match=field):
            jobs[0].sync_state(state, **wrongly)
    whole_soon(jobs)
    for job in jobs.values():
        job.close()


@pytest.mark.check
def test_state__the_example_of_the_document_ends_with_the_same_bits_on_all(daemons: Callable[[int], Hosts]) -> None:
    page = (Path(__file__).parents[2] / "docs/elastic.md").read_text()
    (example,) = re.findall(r"## State for newcomers.*?```python\n(.*?)```", page, re.DOTALL)
    hosts, name = dict(enumerate(daemons(2))), new_job_name()
    jobs = enter_all(hosts, hosts[0], name, most=2)

    def play_example(each: int) -> dict[str, Any]:
        def update(state: dict[str, Any], gradient: np.ndarray) -> None:
            state["optimizer"]["momentum"] += gradient
            state["model"] -= state["optimizer"]["momentum"]

        drawn = np.random.default_rng(each)
        mine = {"job": jobs[each], "weights": drawn.random(999), "momentum": drawn.random(999), "steps": 3}
        exec(example, mine | {"gradient": np.ones(999), "update": update})
        return mine

    found = play({each: lambda each=each: play_example(each) for each in jobs})
    first = min(jobs, key=lambda each: jobs[each].rank)
    drawn = np.random.default_rng(first)
    weights, momentum = drawn.random(999), drawn.random(999)
    for _ in range(3):
        momentum += 1
        weights -= momentum
    for each in jobs:
        assert np.array_equal(found[each]["weights"], weights) and np.array_equal(found[each]["momentum"], momentum)
        jobs[each].close()
