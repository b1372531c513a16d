# SPDX-License-Identifier: Apache-2.0
"""Hosts join, leave and die in random order while ops go on: no result is wrong and no receipt untrue.

Each host brings a power of two, so that a sum names the hosts in it. A life of a host has a thread of its own, which
goes at its own pace. All that it gets is compared: hosts whose receipts name the same op and view as complete must have
the same bits.
"""

from __future__ import annotations

import os
import random
import threading
import time

import numpy as np
import pytest

from tests.e2e.elastic import N, enter, who_is_in
from tests.e2e.hosts import DaemonProcess, Hosts, new_job_name, running
from ultima import DaemonError, ElasticJob, JoinTimeout, Receipt, Status

HOSTS = 4
Seen = dict[tuple[int, int], tuple[bytes, int, frozenset[int]]]


class Life:
    """One life of a host in the job: a thread that calls one op after another until it is told to leave, or dies."""

    def __init__(self, number: int, host: DaemonProcess, meet: DaemonProcess, job: str, seen: Seen) -> None:
        self.number, self._seen = number, seen
        self.ops = self.complete = 0
        self.wrong: list[str] = []
        self.job: ElasticJob | None = None
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(host, meet, job))
        self.thread.start()

    def _run(self, host: DaemonProcess, meet: DaemonProcess, name: str) -> None:
        try:
            with enter(host, meet, name, most=HOSTS, timeout=120, deadline="1s", reconnect=False) as job:
                self.job = job
                while not self.end.is_set():
                    data = np.full(N, 2.0**self.number)
                    self._judge(job, job.allreduce(data, "sum"), data)
                job.leave()
        except (DaemonError, JoinTimeout) as error:
            if not self.end.is_set():
                self.wrong.append(f"host {self.number}: {error!r}")
        except Exception as error:
            self.wrong.append(f"host {self.number}: {error!r}")

    def _judge(self, job: ElasticJob, receipt: Receipt, data: np.ndarray) -> None:
        self.ops += 1
        sets = who_is_in(np.repeat(data, 3))
        inside = set.union(*sets)
        if receipt.status is Status.INSUFFICIENT:
            assert inside == {self.number}, (sets, receipt)
            return
        assert job.rank in receipt.members, (sets, receipt)
        assert job.rank not in receipt.contributors or all(self.number in each for each in sets), (sets, receipt)
        assert all(len(each) >= len(receipt.contributors) for each in sets), (sets, receipt)
        assert all(len(each) <= len(receipt.members) for each in sets), (sets, receipt)
        if receipt.complete:
            self.complete += 1
            assert self.number in inside, (sets, receipt)
            assert len(sets) == 1 and len(inside) == len(receipt.members) == receipt.world_size, (sets, receipt)
            told = (data.tobytes(), receipt.digest, frozenset(inside))
            known = self._seen.setdefault((receipt.op_seq, receipt.view), told)
            assert known == told, f"op {receipt.op_seq} of view {receipt.view}: {known[1:]} and {told[1:]}"


def churn(hosts: Hosts, events: int, seed: int) -> tuple[int, int]:
    """So many joins, leaves and kills; the ops that were called, and those that were complete."""
    draw, name, seen = random.Random(seed), new_job_name(), Seen()
    lives: dict[int, Life] = {}
    past: list[Life] = []

    def begin(number: int) -> None:
        lives[number] = Life(number, hosts[number], hosts[0], name, seen)

    def stop(number: int) -> None:
        life = lives.pop(number)
        life.end.set()
        past.append(life)

    for number in (0, 1):
        begin(number)
    began = time.monotonic()
    try:
        for _ in range(events):
            time.sleep(draw.uniform(0.05, 0.6))
            out, inside = [n for n in range(HOSTS) if n not in lives], [n for n in lives if n]
            what = draw.choice([*["join"] * bool(out), *["leave", "kill"] * bool(inside)])
            if what == "join":
                begin(draw.choice(out))
                continue
            number = draw.choice(inside)
            if what == "kill":
                life = lives[number]
                stop(number)
                hosts[number].kill()
                life.thread.join(20)
                hosts[number].launch()
                hosts[number].wait_until_ready()
            else:
                stop(number)
        # Who flapped must stand for the longest time between two of its departures (flaps.py), at most as long as this.
        deadline = time.monotonic() + 20 + (time.monotonic() - began)
        while time.monotonic() < deadline and not all(life.complete for life in lives.values()):
            time.sleep(0.1)
    finally:
        last = list(lives)
        for number in last:
            stop(number)
        for life in past:
            life.thread.join(60)
    wrong = [text for life in past for text in life.wrong]
    assert not wrong, (seed, wrong)
    assert all(life.complete for life in past[-len(last) :]), f"seed {seed}: a host that stayed had no complete op"
    assert not any(life.thread.is_alive() for life in past), f"seed {seed}: a call did not return"
    return sum(life.ops for life in past), sum(life.complete for life in past)


@pytest.mark.check
def test_elastic_soak__random_order() -> None:
    """ULTIMA_TEST_SEED and ULTIMA_TEST_EVENTS replay or prolong it."""
    seed = int(os.environ.get("ULTIMA_TEST_SEED") or random.SystemRandom().randrange(10**6))
    events = int(os.environ.get("ULTIMA_TEST_EVENTS") or 8)
    print(f"ULTIMA_TEST_SEED={seed} ULTIMA_TEST_EVENTS={events}")
    with running(HOSTS) as hosts:
        ops, complete = churn(hosts, events, seed)
    print(f"{ops} ops, {complete} of them complete")
    assert complete > ops / 4, f"seed {seed}: {complete} of {ops} ops were complete"
