# SPDX-License-Identifier: Apache-2.0
"""Rounds that do not wait for a late rank: what it did is in a later round, once, and its parameters are touched by its
own thread alone. The window's thread is played by hand here; `tests/e2e/test_outer.py` has the real one."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.local.net import Net, outers
from ultima.local.moves import Moves
from ultima.local.values import Arrays
from ultima.local.window import Window

SIZE = 2000
PLAIN = ultima.Nesterov(lr=1.0, momentum=0.0)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "watch", lambda *_: None)
    monkeypatch.setattr(Window, "here", property(lambda _: True))


def _look(outer: ultima.Outer) -> None:
    """What the thread does, twice: it hears the bell and takes part; then it takes the result."""
    assert outer._window is not None
    outer._window.hear(0)
    outer._tend()


def _step(models: Any, made: Any, ranks: Any, count: int = 1) -> None:
    for _ in range(count):
        for rank in ranks:
            models[rank] += 4.0 * 10.0**rank
            made[rank].step()


@pytest.mark.usefixtures("by_hand")
def test_late_rank__takes_part_without_giving_and_is_in_a_later_round_with_all_that_it_did() -> None:
    """Rank 2 ends its second step when the others have had two rounds. Fails if its parameters are written while it is
    in a step, if a round without it divides by those in it, and if what it did then is given twice or not at all."""
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN, quorum=3, grace=1e-6)
    _step(models, made, range(4))
    for round_ in range(2):
        _step(models, made, (0, 1, 3))
        assert made[2].last is None or made[2].last.number == round_
        _look(made[2])
        time.sleep(1e-3)
        _look(made[2])  # the grace is over: it takes part
        _look(made[2])  # and has the result
        _step(models, made, (0, 1, 3))
    without = (4.0 + 40.0 + 4000.0) * 4 / 4
    assert (models[2] == 400.0).all()  # as its trainer left it
    for outer in made:
        assert (outer.theta == without).all()
    last = made[2].last
    assert last is not None
    assert (last.late, last.inside, last.members_weight, last.weight) == ((2,), (0, 1, 3), 4, 3)
    assert "rank 2 gave nothing in time" in str(last)
    assert last.weights == {0: 1.0, 1: 1.0, 3: 1.0}
    lines = last.explain()
    assert lines[0] == "Round 2, fragment 0: stepped"
    assert lines[1] == "Weights: rank 0 1, rank 1 1, rank 3 1; in all 3. Divided by that of all members, 4."
    assert lines[2] == "Rank 2 gave nothing in time: what was done there is in a later round."
    assert f"{last.digest:08x}, alike on all ranks." in lines[4]
    assert made[2].summary().received_bytes == 2 * 4 * made[2]._vectors.count
    assert made[0].last is not None
    assert (made[0].last.digest, made[0].last.late) == (last.digest, (2,))
    assert (made[2].summary().late, made[2].summary().missed, made[2].summary().rounds) == (2, 2, 2)
    assert "2 too late" in str(made[2].summary())
    _step(models, made, (2,))  # its parameters follow now
    assert (models[2] == without + 800.0).all()
    _step(models, made, (0, 1, 3))
    _look(made[2])
    _step(models, made, (2,))  # the others have given: it does, with its third step
    for outer in made:
        outer.finish()
        assert (outer.theta == (4.0 + 40.0 + 4000.0) * 6 / 4 + 400.0 * 3 / 4).all()
    assert made[2].summary().missed == 2


@pytest.mark.usefixtures("by_hand")
def test_slow_rank__gives_what_it_has_when_the_others_give_and_misses_no_round() -> None:
    """Rank 1 makes one step where rank 0 makes four. It never comes to a point of its own."""
    models, made = outers(Net(2), SIZE, outer=PLAIN, every=4, grace="10s")
    for _ in range(3):
        _step(models, made, (0,), 4)
        _look(made[1])
        _step(models, made, (1,))
    for outer in made:
        outer.finish()
        assert (outer.theta == (4.0 * 12 + 40.0 * 3) / 2).all()
    assert [outer.summary().rounds for outer in made] == [3, 3]
    assert not any(outer.summary().missed for outer in made)


@pytest.mark.usefixtures("by_hand")
def test_step_with_a_result__calls_no_round_so_that_all_may_stop_there() -> None:
    """A round is due in each step. Ranks that stop after the same round and meet then meet in the same one."""
    models, made = outers(Net(2), SIZE, outer=PLAIN, every=1, grace="10s")
    while made[0].summary().rounds < 3:
        _step(models, made, (0, 1))
    assert [outer.summary().rounds for outer in made] == [3, 3]
    assert all(outer._handle is None for outer in made)


@pytest.mark.usefixtures("by_hand")
def test_window__opens_when_the_quorum_has_given_and_closes_when_the_grace_is_over() -> None:
    job = Net(3).jobs()
    windows = [Window(each, "bell", 5.0) for each in job]  # type: ignore[arg-type]
    windows[0].ring(6)
    windows[2].hear(0)
    assert windows[2].closes_in(6, 2, 5.0) is None
    windows[1].ring(7)
    windows[2].hear(0)
    first = windows[2].closes_in(6, 2, 5.0)
    assert first is not None
    assert 4 < first <= 5
    again = windows[2].closes_in(6, 2, 5.0)
    assert again is not None
    assert again < first
    assert windows[2].closes_in(6, 2, 0.0) == 0
    assert windows[2].closes_in(7, 2, 0.0) is None  # rank 0 has not come as far
    windows[2].forget()
    assert windows[2].closes_in(6, 2, 0.0) is None


def test_moves__a_result_of_its_own_and_a_later_one_without_it_are_made_together() -> None:
    """In range 0 its 6 were taken, and became 2; in range 1 they were not. Then came two steps, and a round of 5."""
    array = np.full(200, 6.0, np.float32)
    moves = Moves(Arrays({"w": array}), 100, 0.0)
    theta = np.zeros(200, np.float32)
    sent = array.copy()
    array += 3.0
    moves.add(0, theta, theta + 2, np.array([True, False]), sent, now=False)
    array += 4.0
    moves.add(0, theta + 2, theta + 7, np.array([False, False]), None, now=False)
    assert (array == 13.0).all()
    moves.settle()
    assert (array[:100] == 7.0 + 7.0).all()
    assert (array[100:] == 13.0 + 7.0).all()
    moves.settle()
    assert (array[:100] == 14.0).all()


def test_thread__ends_with_its_outer() -> None:
    _, made = outers(Net(2), SIZE, grace="auto")
    threads = [each for each in threading.enumerate() if each.name == "ultima-outer"]
    assert len(threads) == 2
    made.pop().close()
    made.clear()
    gc.collect()
    for each in threads:
        each.join(20)
        assert not each.is_alive()
