# SPDX-License-Identifier: Apache-2.0
"""Hosts of an elastic job that join, leave and die in random order while ops go on: what is judged of each result, and
when everything happened.

Each rank brings a power of two, so that a sum names the ranks in it. A life of a rank has a thread of its own, which
goes at its own pace. All that it gets is compared: hosts whose receipts name the same op and view as complete must have
the same bits.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from tests.e2e.elastic import N, enter, who_is_in
from tests.e2e.hosts import new_job_name
from ultima import DaemonError, ElasticJob, JoinTimeout, Receipt, Status, View

Seen = dict[tuple[int, int, tuple[int, ...]], tuple[bytes, int, frozenset[int]]]
"""By op, number of the view, and the members where views of two lines may have one number."""


class Machine(Protocol):
    """A daemon that can be killed and started again in the same place."""

    @property
    def rendezvous(self) -> str: ...
    @property
    def socket(self) -> Path: ...
    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    def launch(self) -> None: ...
    def wait_until_ready(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Op:
    """One call of one life. Times in seconds of the monotonic clock."""

    began: float
    ended: float
    members: tuple[int, ...]
    status: Status


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was done to a host."""

    at: float
    what: str
    """"join", "leave" or "kill"."""
    number: int


class Life:
    """One life of a rank in the job: a thread that calls one op after another until it is told to leave, or dies."""

    def __init__(
        self,
        number: int,
        host: Machine,
        meet: Machine,
        job: str,
        most: int,
        seen: Seen,
        split: str = "go on",
        place: tuple[int, int] = (0, 1),
    ) -> None:
        """place: which of how many ranks of the host `number` it is."""
        self.host, self._local, self._each = number, *place
        self.number = number * self._each + self._local
        self._seen, self._most, self._split = seen, most, split
        self.log: list[Op] = []
        self.wrong: list[str] = []
        self.rank = -1
        self.entered = 0.0
        self.view: View
        """The newest one; once there is an op."""
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(host, meet, job))
        self.thread.start()

    @property
    def complete(self) -> int:
        """Ops that were."""
        return sum(op.status is Status.COMPLETE for op in self.log)

    def _run(self, host: Machine, meet: Machine, name: str) -> None:
        try:
            rules: dict[str, object] = {"most": self._most, "split": self._split}
            rules |= {"local_world_size": self._each, "local_rank": self._local}
            options = {**rules, "timeout": 120, "deadline": "1s", "reconnect": False}
            with enter(host, meet, name, **options) as job:  # type: ignore[arg-type]
                self.rank, self.entered = job.rank, time.monotonic()
                while not self.end.is_set():
                    data = np.full(N, 2.0**self.number)
                    began = time.monotonic()
                    receipt = job.allreduce(data, "sum")
                    self.view = job.view
                    self.log.append(Op(began, time.monotonic(), receipt.members, receipt.status))
                    self._judge(job, receipt, data)
                job.leave()
        except (DaemonError, JoinTimeout) as error:
            if not self.end.is_set():
                self.wrong.append(f"rank {self.number}: {error!r}")
        except Exception as error:
            self.wrong.append(f"rank {self.number}: {error!r}")

    def _judge(self, job: ElasticJob, receipt: Receipt, data: np.ndarray) -> None:
        sets = who_is_in(np.repeat(data, 3))
        inside = set.union(*sets)
        if receipt.status is Status.INSUFFICIENT:
            assert self.number in inside and {other // self._each for other in inside} == {self.host}, (sets, receipt)
            assert len(inside) == len(receipt.contributors), (sets, receipt)
            return
        assert job.rank in receipt.members, (sets, receipt)
        assert job.rank not in receipt.contributors or all(self.number in each for each in sets), (sets, receipt)
        assert all(len(each) >= len(receipt.contributors) for each in sets), (sets, receipt)
        assert all(len(each) <= len(receipt.members) for each in sets), (sets, receipt)
        if receipt.complete:
            assert self.number in inside, (sets, receipt)
            assert len(sets) == 1 and len(inside) == len(receipt.members) == receipt.world_size, (sets, receipt)
            bits = blake2b(data, digest_size=16).digest()  # itself it would be gigabytes within minutes
            told = (bits, receipt.digest, frozenset(inside))
            line = receipt.members if self._split == "go on" else ()
            known = self._seen.setdefault((receipt.op_seq, receipt.view, line), told)
            assert known == told, f"op {receipt.op_seq} of view {receipt.view}: {known[1:]} and {told[1:]}"


@dataclass
class Churn:
    """What was done, and all lives."""

    events: list[Event] = field(default_factory=list)
    past: list[Life] = field(default_factory=list)
    stayed: list[Life] = field(default_factory=list)
    """Of `past`, those that were in until the end."""

    @property
    def wrong(self) -> list[str]:
        """What was not as it must be: divergent digests, untrue receipts, calls that failed or did not return."""
        found = [text for life in self.past for text in life.wrong]
        found += [f"rank {life.number} stayed and had no complete op" for life in self.stayed if not life.complete]
        return found + [f"rank {life.number}: a call did not return" for life in self.past if life.thread.is_alive()]


def churn(
    hosts: Sequence[Machine], events: int, seed: int, each: Callable[[Event], None] | None = None, ranks: int = 1
) -> Churn:
    """So many joins, leaves and kills of hosts with so many ranks. Host 0 stays. `each` is told of each event."""
    draw, name, seen, found = random.Random(seed), new_job_name(), Seen(), Churn()
    lives: dict[int, list[Life]] = {}

    def begin(number: int) -> None:
        lives[number] = [
            Life(number, hosts[number], hosts[0], name, len(hosts), seen, place=(local, ranks))
            for local in range(ranks)
        ]

    def stop(number: int) -> list[Life]:
        gone = lives.pop(number)
        for life in gone:
            life.end.set()
        found.past.extend(gone)
        return gone

    for number in (0, 1):
        begin(number)
    began = time.monotonic()
    try:
        for _ in range(events):
            time.sleep(draw.uniform(0.05, 0.6))
            busy = {life.host for life in found.past if life.thread.is_alive()}  # leaving
            event = _event(hosts, lives, draw, begin, stop, found.events, busy)
            if each is not None and event is not None:
                each(event)
        # Who flapped must stand for the longest time between two of its departures (flaps.py), at most as long as this.
        deadline = time.monotonic() + 20 + (time.monotonic() - began)
        while time.monotonic() < deadline and not all(life.complete for here in lives.values() for life in here):
            time.sleep(0.1)
    finally:
        found.stayed += [life for here in lives.values() for life in here]
        for number in list(lives):
            stop(number)
        for life in found.past:
            life.thread.join(60)
    return found


def _event(
    hosts: Sequence[Machine],
    lives: Mapping[int, list[Life]],
    draw: random.Random,
    begin: Callable[[int], None],
    stop: Callable[[int], list[Life]],
    log: list[Event],
    busy: set[int],
) -> Event | None:
    """Something happens to a host other than the first one, if it can; returns what, once it is done."""
    out, inside = [n for n in range(len(hosts)) if n not in lives and n not in busy], [n for n in lives if n]
    if not out and not inside:
        return None
    what = draw.choice([*["join"] * bool(out), *["leave", "kill"] * bool(inside)])
    number = draw.choice(out if what == "join" else inside)
    event = Event(time.monotonic(), what, number)
    log.append(event)
    if what == "join":
        begin(number)
        return event
    gone = stop(number)
    if what == "kill":
        hosts[number].kill()
        for life in gone:
            life.thread.join(20)
        hosts[number].launch()
        hosts[number].wait_until_ready()
    return event
