# SPDX-License-Identifier: Apache-2.0
"""Hosts agree on changed options in any world: those of `epoch_world.py`, in which people ask hosts for changes, too.

Several may ask at once, for the same option or another one, of any host, while hosts die and links are cut. What is
checked besides: of each change a host that lives on was asked for, there came an epoch that has it; and in the end all
hosts hold the same options.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest

from tests.daemon.jobs.epoch_world import World
from tests.seeds import seeds
from ultima.daemon.base.options import DEFAULTS, Options
from ultima.daemon.jobs import epoch as epochs
from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import Epoch, Member, Word
from ultima.daemon.jobs.here import Here

FEW, WORLDS, LIARS, PLANT_WORLDS = 3, 150, 60, 200
NAMES = ("tau", "eta", "quorum")


@dataclass(frozen=True)
class Asked:
    """A change that somebody asks a host for."""

    at: float
    slot: int
    name: str
    value: int


def draw(seed: int) -> list[Asked]:
    """Drawn apart, so that the rest of the world is drawn as ever."""
    rng, ret = random.Random(f"{seed} options"), []
    for _ in range(rng.randint(1, 4)):
        at, name = rng.uniform(0.05, 2.0), rng.choice(NAMES)
        together = rng.choice([1, 1, 2, 3])
        for slot in rng.sample(range(4), together):
            ret.append(Asked(at + rng.choice([0.0, 0.001, 0.05]), slot, name, len(ret) + 1))
    return sorted(ret, key=lambda asked: asked.at)


class Asking(Seat):
    """The seat of a host that is asked for changes; a later life of the host knows nothing of them."""

    def __init__(self, plan: list[Asked], me: Member, first: Epoch | None, number: int, now: float) -> None:
        super().__init__(me, first, number, now)
        self.open = [asked for asked in plan if asked.slot == me.slot and asked.at >= now]

    def turn(self, now: float, here: Here) -> Word:
        soon = now + 1e-9  # the clock is a sum of spans
        change = {asked.name: asked.value for asked in reversed(self.open) if asked.at <= soon}
        word = super().turn(now, replace(here, change=tuple(sorted(change.items()))))
        have = self.epoch.settings if self.epoch is not None and self.member else None
        left = [each for each in self.open if each.at > soon or getattr(have, each.name, 0) != each.value]
        if left != self.open:
            self.open = left
            return self.turn(now, here)
        self.wake = min([self.wake, *(asked.at for asked in self.open if asked.at > soon)])
        return word


def world_of(seed: int, liar: bool = False) -> World:
    """A world in which hosts are asked for changes, at its end; `found` says what is wrong."""
    plan = draw(seed)
    world = World(seed, liar, seat=functools.partial(Asking, plan))  # type: ignore[arg-type]
    world.run()
    live = [*world.hosts.values()]
    for host in live:
        assert isinstance(host.seat, Asking)
        if host.seat.open and host is not world.liar:
            world.bad(host, f"never got {host.seat.open}")
    in_force = {host.epoch.settings for host in live if host.epoch is not None}
    if len(in_force) > 1:
        world.bad(None, f"several options are in force: {in_force}")
    world.stats["changed"] += in_force != {DEFAULTS}
    return world


def hold(which: Iterable[int], liar: bool = False) -> int:
    """Runs these worlds; all must hold. Returns in how many of them other options are in force in the end."""
    changed = 0
    for seed in which:
        world = world_of(seed, liar)
        assert not world.found, (f"seed {seed}, liar {liar}", *world.found[:4])
        changed += world.stats["changed"]
    return changed


def test_worlds__a_few_hold() -> None:
    hold(seeds(FEW))


@pytest.mark.check
@pytest.mark.timeout(300)
def test_worlds__hundreds_hold() -> None:
    assert hold(range(1, WORLDS + 1)) > WORLDS / 2, "changes come into force"
    hold(range(1, LIARS + 1), liar=True)


def _own_alone(base: Epoch, members: Iterable[Member], words: Any) -> Options:
    """A proposer heeds the first member's change alone."""
    first = next(iter(members))
    return replace(base.settings, **dict(words[first].change)) if first in words else base.settings


def _never(base: Epoch, members: Iterable[Member], words: Any) -> Options:
    """Nobody's change is heeded."""
    del members, words
    return base.settings


PLANTS: dict[str, dict[str, Any]] = {
    "own alone": {"_changed": _own_alone},
    "never": {"_changed": _never},
}


@pytest.mark.check
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_plants__are_found(name: str) -> None:
    with mock.patch.multiple(epochs, **PLANTS[name]):
        found = next((seed for seed in range(PLANT_WORLDS) if world_of(seed).found), None)
    assert found is not None, f"{name}: not found in {PLANT_WORLDS} worlds"
    print(f"{name}: found in world {found}", file=sys.stderr)


def test_two_at_once__one_value_stays_and_each_was_in_force() -> None:
    """Without any fault: three hosts in virtual time, two of which are asked for another value in the same moment."""
    members = tuple(Member(slot, 1) for slot in range(3))
    first = Epoch(0, 1, 0, members, frozenset(members))
    plan = [Asked(0.0, 1, "tau", 5), Asked(0.0, 2, "tau", 7), Asked(0.0, 2, "eta", 2)]
    seats = {m: Asking(plan, m, first, 1, 0.0) for m in members}
    now, history = 0.0, {m: [DEFAULTS] for m in members}
    while now < 3.0:
        for m, seat in seats.items():
            word = seat.turn(now, Here(frozenset(members) - {m}, 10))
            for other in seats.values():
                other.hear(m, word)
            assert seat.epoch is not None
            if seat.epoch.settings != history[m][-1]:
                history[m].append(seat.epoch.settings)
        now += 0.005
    assert history[members[0]] == [DEFAULTS, Options(tau=7, eta=2), Options(tau=5, eta=2)]
    assert history[members[1]] == history[members[2]] == history[members[0]]
