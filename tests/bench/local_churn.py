# SPDX-License-Identifier: Apache-2.0
"""Local SGD while sites come and go: rounds over real daemons on this machine, whose links are not shaped.

    python -m tests.bench.local_churn --rounds 100 [--wire int8] [--grace 200ms]

Four sites train at a time. In every ten rounds one of them leaves, and another one comes: on the host that nobody has.
Prints how much of the time sites computed, what of the steps of all sites is neither in the outer model nor still with
who made them, in how many rounds the outer models differed, and how long newcomers took to come in. The exit status is
1 if models differed, or if steps were lost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ultima
from tests.e2e.elastic import enter
from tests.e2e.hosts import DaemonProcess, running
from tests.e2e.outer_sites import PLAIN, Site, moved
from ultima import ElasticJob

TOGETHER, PERIOD = 4, 10
ENTER_S, END_S = 60.0, 120.0
# What may be lost: results are rounded, in float32 too.
SHARES = {"float32": 1e-4, "int16": 1e-3, "int8": 0.05, "int4": 0.1}


@dataclass(frozen=True)
class Plan:
    """How all sites train."""

    every: int
    step_s: float
    size: int
    seed: int
    options: dict[str, Any]


class Life(Site):
    """A site from when it comes until it leaves. Its steps are random, and each takes as long."""

    def __init__(self, number: int, host: DaemonProcess, meet: DaemonProcess, plan: Plan) -> None:
        super().__init__(number)
        self.host, self._meet, self._plan = host, meet, plan
        self._random = np.random.default_rng([plan.seed, number])
        self._did = np.zeros(plan.size)
        self.leaves, self.inside = threading.Event(), threading.Event()
        self.came_s = 0.0
        self.wrong: BaseException | None = None
        self.thread = threading.Thread(target=self._live, name=f"life-{number}")
        self.thread.start()

    def open(self, job: ElasticJob, **options: Any) -> Any:
        self.model = np.zeros(self._plan.size, np.float32)
        return ultima.Outer(job, {"w": self.model}, self._plan.every, **options)

    def step(self) -> None:
        time.sleep(self._plan.step_s)
        move = self._random.standard_normal(self._plan.size).astype(np.float32)
        self.model += move
        self._did += move
        self.outer.step()

    def did(self) -> Any:
        return self._did

    def _live(self) -> None:
        try:
            began = time.monotonic()
            with enter(self.host, self._meet, "churn", most=TOGETHER + 1, timeout=ENTER_S, arena="64M") as job:
                self.enter(job, outer=PLAIN, **self._plan.options)
                self.came_s = time.monotonic() - began
                self.inside.set()
                while not self.leaves.is_set():
                    self.step()
                self.outer.close()
        except BaseException as error:
            self.wrong = error
        finally:
            self.inside.set()


def churn(hosts: Sequence[DaemonProcess], rounds: int, plan: Plan) -> list[Life]:
    """All lives that were, when so many rounds have been: the first of them stays."""
    lives = [Life(number, host, hosts[0], plan) for number, host in enumerate(hosts[:TOGETHER])]
    here, free = list(lives), hosts[TOGETHER]
    for life in here:
        life.inside.wait(ENTER_S)
    due = PERIOD // 2
    while lives[0].wrong is None and lives[0].rounds() < rounds:
        time.sleep(0.05)
        if lives[0].rounds() < due:
            continue
        due += PERIOD
        goes = here.pop(1)
        goes.leaves.set()
        here.append(Life(len(lives), free, hosts[0], plan))
        lives.append(here[-1])
        goes.thread.join(END_S)
        free = goes.host
    for life in here:
        life.leaves.set()
    for life in here:
        life.thread.join(END_S)
    return lives


def report(lives: Sequence[Life], rounds: int, wire: str, took_s: float) -> bool:
    """Prints what came of it; whether all was as it has to be."""
    told = [life.outer.summary() for life in lives]
    digests: dict[int, set[int]] = {}
    for life in lives:
        for each, _, _ in life.told:
            if each.digest:
                digests.setdefault(each.number, set()).add(each.digest)
    came, count = moved(lives, PLAIN)
    off = np.abs(came - sum(life.given() for life in lives)).max() / np.abs(came).max()
    divergent = sum(len(each) > 1 for each in digests.values())
    discarded = sum(each.discarded_tokens for each in told)
    goodput = [100 * each.computed for each in told]
    print(f"{count} rounds in {took_s:.1f} s by {len(lives)} sites, {TOGETHER} at a time, {wire}")
    print(f"goodput: {statistics.mean(goodput):.1f} % in the mean, {goodput[0]:.1f} % of the site that stayed")
    print(f"steps discarded: {discarded:g}; not accounted for: {100 * off:.4f} % of what came")
    print(f"divergent digests: {divergent}; rounds in which models differed: {sum(each.differed for each in told)}")
    print(f"of the site that stayed: {told[0]}")
    print("newcomers were in after " + ", ".join(f"{life.came_s:.1f}" for life in lives[TOGETHER:]) + " s")
    return not divergent and not discarded and off < SHARES[wire] and count >= rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="steps between two rounds")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of a step")
    parser.add_argument("--size", type=int, default=100_000, help="elements of the model")
    parser.add_argument("--wire", choices=SHARES, default="float32")
    parser.add_argument("--grace", help="as for ultima.Outer")
    parser.add_argument("--deadline", default="5s", help="of a round")
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args(arguments)
    options: dict[str, Any] = {"wire": said.wire, "deadline": said.deadline, "grace": said.grace}
    options |= {"quorum": 2} if said.grace else {}
    options |= {"feedback": True} if said.wire != "float32" else {}
    plan = Plan(said.every, said.step_ms / 1e3, said.size, said.seed, options)
    print(f"seed {said.seed}", flush=True)
    with running(TOGETHER + 1) as hosts:
        began = time.monotonic()
        lives = churn(hosts, said.rounds, plan)
        took_s = time.monotonic() - began
    for life in lives:
        if life.wrong is not None:
            print(f"site {life.number}: {life.wrong!r}")
    return 0 if not any(life.wrong for life in lives) and report(lives, said.rounds, said.wire, took_s) else 1


if __name__ == "__main__":
    sys.exit(main())
