# SPDX-License-Identifier: Apache-2.0
"""Local SGD over real daemons among sites that come and go: all have the same outer model, to the bit, and it is
the one that a few lines of numpy come to, from who was in which round after how many steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ultima
from tests.e2e.elastic import enter
from tests.e2e.hosts import Hosts, everywhere, new_job_name
from tests.e2e.outer_sites import PATIENCE_S, PLAIN, SIZE, WEIGHTS, Site, check_nothing_is_lost, come_and_go, said

RULE = ultima.Nesterov(lr=1.0, momentum=0.5)


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
    sites = [Site(number) for number in range(4)]
    found = come_and_go(daemons(4), sites, goes, fragments=fragments, outer=RULE)
    theta, moved = by_numpy(sites, sites[0].begin, int(sites[3].told[0][0].number + 5))
    assert moved >= 10, said(sites)
    for number in (0, 2, 3):
        assert np.array_equal(found[number], found[0]), number
        if fragments == 1:
            assert np.array_equal(sites[number].model, found[0]), number
    assert np.abs(found[0] - theta).max() < 1e-3, said(sites)
    alone = [row[0] for row in sites[0].told if row[0].digest and row[0].weight == 6]
    assert alone and alone[0].members_weight == 6, said(sites)
    newest, first = sites[0].told[-1][0], sites[3].told[0]
    assert newest.weight == newest.members_weight == 8, said(sites)
    assert first[0].digest and first[2] == 0 and first[1] in first[0].inside, said(sites)
    assert not sites[3].outer.summary().learned and not sites[0].outer.summary().differed


@pytest.mark.check
@pytest.mark.parametrize("founders", [3, 2])
@pytest.mark.parametrize(
    ("goes", "options", "share"),
    [("leaves", {"wire": "int16"}, 1e-3), ("leaves", {"wire": "int8", "feedback": True}, 0.05),
     ("dies", {"wire": "int4"}, 0.08), ("leaves", {"sparse": 1 / 16, "feedback": 1.0}, 0.05),
     ("dies", {"sparse": 1 / 16, "feedback": 1.0}, 0.05)],
)  # fmt: skip
def test_sites_come_and_go_in_few_bits__all_have_the_same_bits_and_nothing_is_lost(
    daemons: Callable[[int], Hosts], goes: str, options: dict[str, Any], share: float, founders: int
) -> None:
    """As above; with two founders, the first site is alone for some rounds. What rounding took, and what was not
    chosen, is kept by each rank through all of it. Fails if a newcomer takes over what another rank keeps, if marks are
    of other sizes on a newcomer, or if a result is not the same bits everywhere.
    """
    sites = [Site(number) for number in (*range(founders), 3)]
    found = come_and_go(daemons(4), sites, goes, outer=PLAIN, **options)
    for site, theta in zip(sites, found, strict=True):
        assert theta is None or site.number == 1 or np.array_equal(theta, found[0]), site.number
        if site.number != 1:
            assert np.array_equal(site.model, found[0]), site.number
    check_nothing_is_lost(sites, PLAIN, share)
    digests: dict[int, set[int]] = {}
    for site in sites:
        for told, _, _ in site.told:
            if told.digest:
                digests.setdefault(told.number, set()).add(told.digest)
        assert not site.outer.summary().differed and not site.outer.summary().discarded_tokens
    assert len(digests) >= 9 and all(len(each) == 1 for each in digests.values()), said(sites)
    newest, first = sites[0].told[-1][0], sites[-1].told[0][0]
    everybody = sum(WEIGHTS[site.number] for site in sites) - WEIGHTS[1]
    assert newest.weight == newest.members_weight == first.weight == everybody, said(sites)


@pytest.mark.check
@pytest.mark.parametrize("options", [{}, {"wire": "int8", "feedback": True}])
def test_late_site__costs_the_others_no_round_and_a_newcomer_does_not_wait_for_its_step(
    daemons: Callable[[int], Hosts], options: dict[str, Any]
) -> None:
    """Site 2 sits in one step for rounds of the others, whose deadline is far off, and site 3 comes. The thread of
    site 2 passes the state on and takes part without giving. Fails if the others wait for the step, if its parameters
    are written in it, or if what it did then is lost."""
    hosts, name, sites = daemons(4), new_job_name(), [Site(number) for number in range(4)]
    sits, woke = threading.Event(), threading.Event()
    ended = threading.Barrier(4)
    at: dict[str, int] = {}

    def sit() -> None:
        late, before = sites[2].outer, sites[2].phi()
        first, limit = late.summary().rounds, time.monotonic() + PATIENCE_S
        sits.set()
        while not sites[3].told or late.summary().rounds < first + 8:
            assert time.monotonic() < limit, (late.summary(), late.last, said(sites))
            time.sleep(0.02)
        assert np.array_equal(sites[2].phi(), before)
        at["woke"] = sites[2].rounds()
        woke.set()

    def play(number: int, site: Site) -> None:
        if number == 3:
            assert sits.wait(PATIENCE_S)
        job = enter(hosts[number], hosts[0], name, most=4, timeout=30)
        site.enter(job, outer=PLAIN, quorum=2, grace="100ms", deadline="60s", **options)
        if number == 2:
            site.train(lambda: site.rounds() >= 5)
            sit()
        site.train(lambda: woke.is_set() and site.rounds() >= at["woke"] + 6)
        ended.wait(PATIENCE_S)
        site.outer.close()
        job.close()

    found = everywhere(sites, play)
    assert not any(isinstance(each, Exception) for each in found), (found, said(sites))
    check_nothing_is_lost(sites, PLAIN, 0.05 if options else 1e-4)
    told = [site.outer.summary() for site in sites]
    assert told[2].late >= 8 and not told[2].learned, said(sites)
    assert not any(each.differed or each.discarded_tokens for each in told)
    assert sites[3].told[0][0].number < at["woke"], "it came while site 2 sat in its step"
    assert any(len(row.late) == 1 and row.weight == 6 and row.members_weight == 10 for row, _, _ in sites[0].told)
    assert any(row.weight == 10 and not row.late for row, _, _ in sites[0].told if row.number > at["woke"]), said(sites)
