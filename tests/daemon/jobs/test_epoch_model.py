# SPDX-License-Identifier: Apache-2.0
"""Hosts agree on epochs in any world: the daemon's own rules, tried in thousands of them in virtual time.

`epoch_world.py` says what a world has and what is checked in each. A failure prints the seed and the replay. A rule
that is broken on purpose must be found within 300 worlds, else the worlds prove nothing.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from tests.daemon.jobs.epoch_world import World
from tests.seeds import seeds
from ultima.daemon.jobs import attempts, decree
from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import Epoch, Word
from ultima.daemon.jobs.here import Here
from ultima.daemon.jobs.holding import MOST_S, Holding

FEW, WORLDS, WORLDS_LONG = 8, 500, 10_000
LIARS, LIARS_LONG = 200, 2000
PLANT_WORLDS = 300
# Worlds that once showed a bug, and which.
ONCE_FAILED = {
    12: "two guests, each of whom heard the other tell of an epoch that was over, never came in",
    177: "all members had died; those who came back kept to the epoch that they had been told of",
    1218: "half of the hosts saw one on a branch, so they were not alone, and had no majority with it either",
    1250: "a guest kept to the trunk, of which nobody was left",
    1879: "two hosts, three epochs behind the last one of their line, stood against each other's going there",
    21388: "a host on the worse of two branches could not come back: its number was not below the better one's",
    41292: "what may have been decided was vetoed for good: one who may have accepted it had gone another way",
    30667: "an epoch that a majority had accepted was heard of when its victims were seen again: the test was wrong",
}


def hold(which: Iterable[int], liar: bool = False) -> None:
    """Runs these worlds; all must hold."""
    for seed in which:
        world = World(seed, liar).run()
        told = f"replay: python -m tests.daemon.jobs.epoch_world --seed {seed} --trace{' --liar' if liar else ''}"
        assert not world.found, "\n".join([*world.found[:4], told])


def part(first: int, count: int, liar: bool) -> None:
    """Of the worlds of a long test what one process runs."""
    hold(range(first, first + count), liar)


def test_worlds__a_few_hold() -> None:
    hold(seeds(FEW))


def test_worlds__a_few_with_a_liar_hold() -> None:
    hold(seeds(FEW // 2), liar=True)


def test_world__is_the_same_each_time() -> None:
    first, again = World(4).run(), World(4).run()
    assert first.stats == again.stats
    assert first.stats["folded"] > 100, "ops went on"
    assert World(5).run().stats != first.stats


@pytest.mark.check
@pytest.mark.timeout(300)
def test_worlds__hundreds_hold() -> None:
    hold(range(1, WORLDS + 1))


@pytest.mark.check
@pytest.mark.timeout(300)
def test_worlds__with_a_liar_hold() -> None:
    """One host promises, accepts and sees everything, proposes to put others out, and tells of epochs that never were.
    The others fold nothing wrong, veto, and agree once it has stopped."""
    hold(range(1, LIARS + 1), liar=True)


@pytest.mark.check
@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_world__that_once_failed(seed: int) -> None:
    hold([seed])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("liar, count", [(False, WORLDS_LONG), (True, LIARS_LONG)])
def test_worlds__thousands_hold(liar: bool, count: int) -> None:
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for work in [processes.submit(part, WORLDS + at, 100, liar) for at in range(1, count, 100)]:
            work.result()


class Hasty(Seat):
    """Waits as if all hosts were next to each other."""

    def turn(self, now: float, here: Here) -> Word:
        return super().turn(now, replace(here, round_trip=0.0))


class Stubborn(Seat):
    """Vetoes what may have been decided."""

    def _may_hold(self, child: Epoch) -> bool:
        return False


class Undamped(Seat):
    """Takes in at once who flaps."""

    def _look_who_flaps(self) -> None:
        pass


class Long(Holding):
    """Lasts as long as any hold may, whatever agreements took."""

    def lasts(self, round_trip: float) -> float:
        return 2 * round_trip + MOST_S


def _stale(new: Epoch, old: Epoch) -> bool:
    def order(epoch: Epoch) -> tuple[Any, ...]:
        return not epoch.line, len(epoch.members) if epoch.line else 0, epoch.number, epoch.id

    return order(new) > order(old)


PLANTS: dict[str, tuple[dict[str, Any], type[Seat], bool]] = {
    # Two of a few hosts each believe that they decide.
    "no majority": ({"quorum": lambda base, hosts: not {*hosts}.isdisjoint(base.members)}, Seat, False),
    # A proposer died after one host had accepted an epoch without X, and X is seen again: everybody stands still.
    "stubborn": ({"may_have_been_decided": lambda base, acceptors, unheard: bool(acceptors)}, Stubborn, False),
    # The trunk is preferred by a word from before the fork, and of two branches the one that is heavier now: hosts go
    # to and fro between lines, which is a flap, so that they come to rest where those are damped; and a liar starts it.
    "stale": ({"better": _stale}, Undamped, True),
    # Hosts give up before an answer can have come, and hold ops back again at once.
    "hasty": ({"REST_S": 0.0, "ANSWER_S": 0.0015}, Hasty, False),
    # Who gave up its epoch for a better line never goes back, although all of that line have died.
    "meek": ({"BACK_S": math.inf}, Seat, False),
    # Ops are held back for longer than agreements take.
    "long": ({"Holding": Long}, Seat, False),
    # Members accept whatever is proposed.
    "blind": ({"accepts": lambda *of: ""}, Seat, True),
}


@pytest.mark.check
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_plants__are_found(name: str) -> None:
    patches, kind, liar = PLANTS[name]
    with ExitStack() as patched:
        for name, value in patches.items():
            patched.enter_context(mock.patch.object(attempts if hasattr(attempts, name) else decree, name, value))
        found = next((seed for seed in range(PLANT_WORLDS) if World(seed, liar, seat=kind).run().found), None)
    assert found is not None, f"{name}: not found in {PLANT_WORLDS} worlds"
    print(f"{name}: found in world {found}", file=sys.stderr)
