# SPDX-License-Identifier: Apache-2.0
"""Hosts agree on epochs however far apart they are, and whatever of their words is lost: see `epoch_far.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from tests.daemon.jobs.epoch_far import CALM, RETURNS, FarWorld, kind_of
from tests.seeds import seeds
from ultima.daemon.jobs import attempts
from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import Word
from ultima.daemon.jobs.here import Here

FEW, WORLDS, WORLDS_LONG, PLANT_WORLDS = 3, 60, 3000, 300
# Worlds that once showed a bug, and which.
ONCE_FAILED = {
    7: "two hosts asked for an epoch in turn, each before the other's attempt could end: 585 attempts in 30 s",
}


def hold(which: Iterable[int]) -> None:
    """Runs these worlds; all must hold."""
    for seed in which:
        world = FarWorld(seed).run()
        replay = f"replay: python -m tests.daemon.jobs.epoch_far --seed {seed}"
        assert not world.found, "\n".join([*world.found[:4], replay])


def part(first: int, count: int) -> None:
    """Of the worlds of a long test what one process runs."""
    hold(range(first, first + count))


def test_worlds__a_few_hold() -> None:
    hold(seeds(FEW))


@pytest.mark.check
def test_worlds__tens_hold() -> None:
    hold({*range(1, WORLDS + 1), *ONCE_FAILED})


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_worlds__thousands_hold() -> None:
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for work in [processes.submit(part, WORLDS + at, 100) for at in range(1, WORLDS_LONG, 100)]:
            work.result()


class Impatient(Seat):
    """Waits for the words of others as in a rack."""

    def turn(self, now: float, here: Here) -> Word:
        return super().turn(now, replace(here, patience=0.0))


PLANTS: dict[str, tuple[str, dict[str, Any], type[Seat]]] = {
    # A host goes on by itself before the first words of hosts that it sees have come.
    "impatient": (CALM, {}, Impatient),
    # Two hosts ask again and again, each before the other's attempt can end.
    "outbid": (RETURNS, {"FAILED_MOST": 1, "answer_s": lambda round_trip: 0.0}, Seat),
}


@pytest.mark.check
@pytest.mark.parametrize("name", PLANTS)
def test_plants__are_found(name: str) -> None:
    where, patches, seat = PLANTS[name]
    worlds = (seed for seed in range(PLANT_WORLDS) if kind_of(seed) == where)
    with ExitStack() as patched:
        for each, value in patches.items():
            patched.enter_context(mock.patch.object(attempts, each, value))
        found = next((seed for seed in worlds if FarWorld(seed, seat=seat).run().found), None)
    assert found is not None, f"{name}: not found in {PLANT_WORLDS} worlds"
    print(f"{name}: found in world {found}", file=sys.stderr)
