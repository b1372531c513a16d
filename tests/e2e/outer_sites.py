# SPDX-License-Identifier: Apache-2.0
"""Sites that train by local SGD and come and go, for the end-to-end tests: what each of them did, and where it went."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ultima
from tests.e2e.elastic import enter
from tests.e2e.hosts import Hosts, everywhere, new_job_name
from ultima import ElasticJob

SIZE, EVERY = 5_000, 2
PLAIN = ultima.Nesterov(lr=1.0, momentum=0.0)
WEIGHTS = {0: 2, 1: 2, 2: 4, 3: 2}  # of the sites; of others 2
PATIENCE_S = 60.0


@dataclass
class Site:
    """One site, and what it says of itself while it trains by halves and quarters, which float32 adds up exactly."""

    number: int
    told: list[tuple[Any, int, int]] = field(default_factory=list)
    """Of each round: what it was, this site's seat, and the steps that it had made."""
    after: dict[int, tuple[Any, float]] = field(default_factory=dict)
    """By number of a round that moved the outer model: that, and the weight of all members."""
    begin: Any = None
    """The outer model before the first round; None on a newcomer."""
    model: Any = None
    outer: Any = None

    @property
    def weight(self) -> int:
        """What it counts as."""
        return WEIGHTS.get(self.number, 2)

    def pace(self, step: int) -> Any:
        """What a step adds."""
        return np.float32(0.25 * (self.number + 1)) * (1 + (np.arange(SIZE) + step) % 3).astype(np.float32)

    def open(self, job: ElasticJob, **options: Any) -> Any:
        """Makes the model, and its `Outer`."""
        self.model = np.full(SIZE, 7.0 + self.number, np.float32)
        return ultima.Outer(job, {"w": self.model}, EVERY, **options)

    def enter(self, job: ElasticJob, **options: Any) -> None:
        """Returns with the outer model of all."""
        self.outer = self.open(job, **{"weight": self.weight, "deadline": "3s", **options})
        # What came before can be seen by `last` alone.
        if self.outer.last is None:
            self.begin = self.outer.theta
        self.note(self.outer.last)
        self.outer.on_round = self.note

    def note(self, told: Any) -> None:
        """Of each round."""
        if told is not None:
            self.told.append((told, self.outer.job.rank, self.outer.summary().steps))
            if told.outcome == "stepped":
                self.after[told.number] = self.outer.theta, told.members_weight

    def step(self) -> None:
        """One of its own."""
        self.model += self.pace(self.outer.summary().steps)
        self.outer.step()

    def train(self, until: Callable[[], bool]) -> None:
        """Step by step."""
        limit = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < limit, f"site {self.number}: {self.outer.summary()} {self.outer.last}"
            self.step()
            time.sleep(0.005)

    def rounds(self) -> int:
        """The number of the newest round that moved the outer model."""
        return max(self.after, default=0)

    def phi(self) -> Any:
        """Its own parameters, flat."""
        flat = np.empty(self.outer.layout.count, np.float32)
        self.outer._values.read(0, flat)
        return flat

    def did(self) -> Any:
        """All its steps together."""
        return sum((self.pace(step) for step in range(self.outer.summary().steps)), np.zeros(SIZE))

    def given(self) -> Any:
        """Of that what is in the outer model, times its weight: all but what is still in its parameters, or is kept
        because rounding or a choice of elements took it. Of a model of one fragment, between two rounds."""
        outer = self.outer
        outer._moves.settle()
        weight, kept = self.weight, outer.state_dict()["residuals"]
        total = weight * (self.did() - (self.phi() - outer.theta.astype(np.float64)))
        if kept is None:
            return total
        size = outer.layout.count
        return total + (weight * kept[0][:size] if outer.wire == "topk" else outer._vectors.data(kept[0], size))


def moved(sites: Sequence[Site], rule: ultima.Nesterov) -> tuple[Any, int]:
    """What came in all rounds together, times weights, as the outer models after them say; and how many there were. All
    sites that had a round have the same bits after it."""
    rounds: dict[int, tuple[Any, float]] = {}
    for site in sites:
        for number, (theta, weight) in site.after.items():
            known = rounds.setdefault(number, (theta, weight))
            assert np.array_equal(known[0], theta) and known[1] == weight, f"round {number} of site {site.number}"
    (before, *others) = [site.begin.astype(np.float64) for site in sites if site.begin is not None]
    assert all(np.array_equal(before, other) for other in others)
    total, momentum = np.zeros_like(before), np.zeros_like(before)
    for _, (theta, weight) in sorted(rounds.items()):
        delta = ((before - theta) / rule.lr - rule.momentum**2 * momentum) / (1 + rule.momentum)
        momentum = rule.momentum * momentum + delta
        total -= weight * delta
        before = theta.astype(np.float64)
    return total, len(rounds)


def check_nothing_is_lost(sites: Sequence[Site], rule: ultima.Nesterov, share: float) -> None:
    """What all sites did is in the outer model once, or still with who did it, but for a share of what came: in each
    element, and twenty times better in the mean."""
    came, count = moved(sites, rule)
    off = came - sum(site.given() for site in sites)
    most, mean = np.abs(off).max() / np.abs(came).max(), abs(off.mean()) / np.abs(came).mean()
    assert most < share and mean < share / 20, f"{most} and {mean} of what came in {count} rounds"


def said(sites: Sequence[Site]) -> list[tuple[int, str, str, str]]:
    """What all of them were told, for who reads of a failure."""
    return [(site.number, *map(str, row)) for site in sites for row in site.told]  # type: ignore[misc]


def come_and_go(hosts: Hosts, sites: Sequence[Site], goes: str, **options: Any) -> list[Any]:
    """Site 1 goes after four rounds, and when the others have had a round without it the last site comes. Five rounds
    later all end. Their outer models, by place.

    goes: "leaves" or "dies". options: of `Outer`.
    """
    name, late = new_job_name(), sites[-1]
    rest = sum(site.weight for site in sites[:-1] if site.number != 1)

    def last() -> float:
        return late.told[0][0].number + 5 if late.told else float("inf")

    def play(_: int, site: Site) -> Any:
        host = hosts[site.number]
        while site is late and (not sites[0].told or sites[0].told[-1][0].weight != rest):
            time.sleep(0.01)
        job = enter(host, hosts[0], name, most=4, timeout=30)
        site.enter(job, **options)
        site.train(lambda: site.rounds() >= (4 if site.number == 1 else last()))
        if site.number == 1 and goes == "dies":
            host.kill()
            return None
        theta = site.outer.theta
        site.outer.close()
        job.close()
        return theta

    found = everywhere(sites, play)
    assert not any(isinstance(each, Exception) for each in found), (found, said(sites))
    return found
