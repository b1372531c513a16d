# SPDX-License-Identifier: Apache-2.0
"""Rounds where hosts come and go that do not wait for a late rank. The thread is played by hand, and daemons by a dict;
`tests/e2e/test_outer_elastic.py` has the real ones."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.local.test_company import PLAIN, SIZE, Elastic, ElasticNet
from ultima.local.window import Window
from ultima.local.window_elastic import ElasticWindow


class Named(Elastic):
    """A seat whose name the bell takes over."""

    name = "train"

    def __init__(self, net: ElasticNet, rank: int) -> None:
        super().__init__(net, rank)
        self._connection = SimpleNamespace(session=SimpleNamespace(round_line=None), net=net, seat=rank)
        self.heard: list[dict[int, int]] = []

    def share(self, state: object, revision: int, wait: float) -> None:
        self.heard.append(dict(self.net.rung))


class FakeWords:
    """Ranks that say numbers to each other."""

    def __init__(self, connection: Any) -> None:
        self._rung, self._seat = connection.net.rung, connection.seat

    def say(self, number: int) -> None:
        self._rung[self._seat] = number

    def hear(self, number: int, wait_s: float) -> tuple[int, ...]:
        self.say(number)
        return tuple(self._rung.values())


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "watch", lambda *_: None)
    monkeypatch.setattr(Window, "here", property(lambda _: True))
    monkeypatch.setattr("ultima.local.window_elastic.Words", FakeWords)


def made(net: ElasticNet, ranks: int, **options: Any) -> tuple[list[Any], list[Any]]:
    models = [np.zeros(SIZE, np.float32) for _ in range(ranks)]
    said = {"every": 2, "delay": 1, "outer": PLAIN, "quorum": 2, "grace": 1e-6, **options}
    outers = [ultima.Outer(Named(net, rank), {"w": model}, **said) for rank, model in enumerate(models)]
    for outer in outers:
        look(outer)
    return models, outers


def look(outer: Any) -> None:
    """What the thread does: it hears what others say, and takes part or takes the result."""
    outer._window.hear(0)
    outer._tend()


def steps(models: Any, outers: Any, ranks: Any, count: int = 1) -> None:
    for _ in range(count):
        for rank in ranks:
            models[rank] += np.float32(0.75 * (rank + 1))
            outers[rank].step()


@pytest.mark.usefixtures("by_hand")
def test_late_rank__takes_part_without_giving_and_is_in_a_later_round_with_all_that_it_did() -> None:
    """Seat 2 makes no step while the others have two rounds. Fails if it is waited for, if its parameters are written
    in its step, or if what it did then is lost."""
    models, outers = made(ElasticNet(4, members={0: (0, 1, 2)}), 3)
    for number in (1, 2):
        steps(models, outers, (0, 1), 2)
        look(outers[2])
        time.sleep(1e-3)
        look(outers[2])  # the grace is over: it takes part
        look(outers[2])  # and has the result
        assert outers[2].last.number == number and outers[2].last.late == (2,)
        assert outers[2].last.weight == 2 and outers[2].last.members_weight == 3
        for outer in outers[:2]:
            outer.finish()
        assert len({outer.last.digest for outer in outers}) == 1
    assert (outers[2].theta == 0.75 * 3 * 4 / 3).all() and (models[2] == 0).all()
    steps(models, outers, (2,))
    assert (models[2] == outers[2].theta + 0.75 * 3).all()
    steps(models, outers, (0, 1), 2)
    look(outers[2])
    steps(models, outers, (2,))  # it is called: it gives both steps
    for outer in outers:
        outer.finish()
        assert (outer.theta == 0.75 * (3 * 6 + 3 * 2) / 3).all()
        assert outer.last.inside == (0, 1, 2)
    assert outers[2].summary().late == 2 and not outers[2].summary().failed


@pytest.mark.usefixtures("by_hand")
def test_rank_that_stands_still_for_a_newcomer__has_said_so_to_late_ranks_first() -> None:
    """Their threads have to come, too: all pass the state on. Fails if it says so when it gives."""
    net = ElasticNet(4, members={0: (0, 1, 2)})
    models, outers = made(net, 3, grace="10s")
    steps(models, outers, (0, 1, 2), 3)
    outers[0].job.asked = True
    steps(models, outers, (0,))
    assert outers[0].job.heard == [{0: 2, 1: 1, 2: 1}], "for the op after the one that all were in"
    outers[2]._window.hear(0)
    assert outers[2]._window.given(1) == 1 and outers[2]._window.given(0) == 3


@pytest.mark.usefixtures("by_hand")
def test_rank_whose_trainer_is_here__is_not_acted_for() -> None:
    """The thread goes on hearing then, and says that this rank has given."""
    models, outers = made(ElasticNet(4, members={0: (0, 1)}), 2)
    steps(models, outers, (0,), 2)
    done = threading.Event()
    with outers[0]._lock:
        threading.Thread(target=lambda: (look(outers[0]), done.set())).start()
        assert done.wait(5)


@pytest.mark.usefixtures("by_hand")
def test_bell__leaves_with_its_outer_and_refuses_a_name_that_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    _, outers = made(ElasticNet(2, members={0: (0,)}), 1)
    bell = outers[0]._window
    assert isinstance(bell, ElasticWindow) and bell._bell is not None
    outers[0].close()
    assert outers[0].job.left and bell._bell is None
    base = Named(ElasticNet(2, members={0: (0,)}), 0)
    late = ElasticWindow(base, "outer/bell", 1.0)

    def beside(*_: object, **__: object) -> Named:
        late.close()  # while the thread joins the bell
        return base

    base.beside = beside  # type: ignore[method-assign]
    late.hear(0)
    assert base.left and late._bell is None
    monkeypatch.setattr(Named, "name", "n" * 120)
    with pytest.raises(ultima.InvalidArgument, match="leaves room for '/outer/bell' in 128 characters"):
        ElasticWindow(Named(ElasticNet(2, members={0: (0,)}), 0), "outer/bell", 1.0)
