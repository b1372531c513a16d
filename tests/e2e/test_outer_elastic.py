# SPDX-License-Identifier: Apache-2.0
"""Local SGD over real daemons among sites that come and go: all have the same outer model, to the bit, and it is
the one that a few lines of numpy come to, from who was in which round after how many steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.elastic import enter
from tests.e2e.hosts import Hosts, everywhere, new_job_name
from ultima import ElasticJob

SIZE, EVERY = 5_000, 2
RULE = ultima.Nesterov(lr=1.0, momentum=0.5)
WEIGHTS = {0: 2, 1: 2, 2: 4, 3: 2}  # of the sites


@dataclass
class Site:
    """One site, and what it says of itself while it trains by halves and quarters, which float32 adds up exactly."""

    number: int
    told: list[tuple[Any, int, int]] = field(default_factory=list)
    """Of each round: what it was, this site's seat, and the steps that it had made."""
    model: Any = None
    outer: Any = None

    def pace(self, step: int) -> Any:
        return np.float32(0.25 * (self.number + 1)) * (1 + (np.arange(SIZE) + step) % 3).astype(np.float32)

    def enter(self, job: ElasticJob, **options: Any) -> None:
        self.model = np.full(SIZE, 7.0 + self.number, np.float32)
        said = {"outer": RULE, "weight": WEIGHTS[self.number], "deadline": "3s", **options}
        self.outer = ultima.Outer(job, {"w": self.model}, EVERY, **said)
        # What came before can be seen by `last` alone.
        self.note(self.outer.last)
        self.outer.on_round = self.note

    def note(self, told: Any) -> None:
        if told is not None:
            self.told.append((told, self.outer.job.rank, self.outer.summary().steps))

    def train(self, until: Callable[[], bool]) -> None:
        limit = time.monotonic() + 40
        while not until():
            assert time.monotonic() < limit, f"site {self.number}: {self.outer.summary()} {self.outer.last}"
            self.model += self.pace(self.outer.summary().steps)
            self.outer.step()
            time.sleep(0.005)

    def rounds(self) -> int:
        """The number of the newest round that moved the outer model."""
        return max((told.number for told, _, _ in self.told if told.outcome == "stepped"), default=0)


def by_numpy(sites: list[Site], begin: Any, last: int) -> tuple[Any, int]:
    """The outer model after a round, from who was in each: what a site gives is all that it did since it was last in a
    round of the fragment, or came. And how many rounds moved it."""
    theta, momentum, moved = begin.copy(), np.zeros(SIZE), 0
    given: dict[tuple[int, int], int] = {}
    for number in range(1, last + 1):
        rows = [(site, *row) for site in sites for row in site.told if row[0].number == number and row[0].digest]
        if not rows:
            continue
        moved += 1
        told = rows[0][1]
        for _, other, _, _ in rows:
            assert (other.digest, other.inside, other.weights) == (told.digest, told.inside, told.weights), number
            assert other.members_weight == told.members_weight and not other.partly, number
        low, high = rows[0][0].outer.layout.bounds(told.fragment)
        weight, total = 0.0, np.zeros(high - low)
        for site, _, seat, steps in rows:
            if seat in told.inside:
                for step in range(given.get((site.number, told.fragment), 0), steps):
                    total -= WEIGHTS[site.number] * site.pace(step)[low:high]
                given[site.number, told.fragment] = steps
                weight += WEIGHTS[site.number]
        assert told.weight == weight <= told.members_weight, number
        delta = total / told.members_weight
        momentum[low:high] = 0.5 * momentum[low:high] + delta
        theta[low:high] -= delta + 0.5 * momentum[low:high]
    return theta, moved


@pytest.mark.check
@pytest.mark.parametrize(("goes", "fragments"), [("leaves", 1), ("leaves", 2), ("dies", 1)])
def test_sites_come_and_go__all_have_the_same_model_and_that_of_numpy(
    daemons: Callable[[int], Hosts], goes: str, fragments: int
) -> None:
    """Of three sites one goes after some rounds, and then a fourth comes, which has the model with its first round.

    Fails if a site that is not in is divided by, if a newcomer has no momentum, or if a round without a result costs
    those that stay their steps.
    """
    hosts, name = daemons(4), new_job_name()
    sites = [Site(number) for number in range(4)]

    def last() -> float:
        return sites[3].told[0][0].number + 5 if sites[3].told else float("inf")

    def play(number: int, site: Site) -> Any:
        while number == 3 and (not sites[0].told or sites[0].told[-1][0].weight != 6):
            time.sleep(0.01)
        job = enter(hosts[number], hosts[0], name, most=4, timeout=30)
        site.enter(job, fragments=fragments)
        site.train(lambda: site.rounds() >= (4 if number == 1 else last()))
        if number == 1 and goes == "dies":
            hosts[1].kill()
            return None
        theta = site.outer.theta
        site.outer.close()
        job.close()
        return theta

    found = everywhere(sites, play)
    said = [(site.number, *map(str, row)) for site in sites for row in site.told]
    assert not any(isinstance(each, Exception) for each in found), (found, said)
    theta, moved = by_numpy(sites, np.full(SIZE, 7.0 + min(sites[:3], key=lambda s: s.told[0][1]).number), int(last()))
    assert moved >= 10, said
    for number in (0, 2, 3):
        assert np.array_equal(found[number], found[0]), number
        if fragments == 1:
            assert np.array_equal(sites[number].model, found[0]), number
    assert np.abs(found[0] - theta).max() < 1e-3, said
    alone = [row[0] for row in sites[0].told if row[0].digest and row[0].weight == 6]
    assert alone and alone[0].members_weight == 6, said
    newest, first = sites[0].told[-1][0], sites[3].told[0]
    assert newest.weight == newest.members_weight == 8, said
    assert first[0].digest and first[2] == 0 and first[1] in first[0].inside, said
    assert not sites[3].outer.summary().learned and not sites[0].outer.summary().differed
