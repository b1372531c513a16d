# SPDX-License-Identifier: Apache-2.0
"""Rounds where hosts come and go: who may step, who is divided by, and what a rank that had no result gives again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.local.net import FakeHandle, FakeJob, Net, run
from ultima.api.job import ElasticJob
from ultima.base.receipt import Status

SIZE = 3000
PLAIN = ultima.Nesterov(lr=1.0, momentum=0.0)


@dataclass
class ElasticNet(Net):
    """Seats, of which some are free; `deaf` ranks get no second stage from seat 0."""

    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By op from which it holds."""
    outers: list[ultima.Outer] = field(default_factory=list)
    """Of those who have state to give."""

    def at(self, op: int) -> tuple[int, ...]:
        return self.members[max(first for first in self.members if first <= op)]


class Handle(FakeHandle):
    def wait(self) -> Any:
        net, op = self.job.net, self.op
        self.array[:] = net.result(op)
        lacks = 1000 if self.job.rank in net.deaf.get(op, ()) else 0
        peers = [SimpleNamespace(ranks=(0,), missing_bytes=(0, lacks))]
        status = Status.PARTIAL if lacks else Status.COMPLETE
        return SimpleNamespace(
            status=status, op_seq=op, members=net.at(op), peers=peers, bytes_used=1, wire_received=0, rank=self.job.rank
        )


class Elastic(FakeJob, ElasticJob):
    """A seat."""

    rank = view = seats = asked = world_size = None  # what ElasticJob has as properties
    _connection = SimpleNamespace(session=SimpleNamespace(round_line=None))
    beside, empty, holds, close = FakeJob.beside, FakeJob.empty, FakeJob.holds, FakeJob.close

    def __init__(self, net: ElasticNet, rank: int) -> None:
        FakeJob.__init__(self, net, rank)
        self.view, self.seats, self.asked = SimpleNamespace(ranks=net.at(0)), net.ranks, False
        self.left = False

    def allreduce_async(self, array: Any, *said: object, **options: object) -> Handle:
        assert not options["agree"]
        made = FakeJob.allreduce_async(self, array)
        return Handle(self, made.op, array)

    def sync_state(self, state: dict[str, Any], revision: int, timeout: float) -> Any:
        assert timeout <= 600
        net: Any = self.net
        best = max(net.outers, key=lambda outer: outer._turns.turn, default=None)
        if best is None or best._turns.turn < revision:
            return SimpleNamespace(revision=0, parts=0, sources={})
        given = best._company._state(best._turns, best._theta, best._momentum)
        for name, array in state.items():
            array[...] = given[name]
        self.op = best.job.op - (best._handle is not None)
        return SimpleNamespace(revision=best._turns.turn, parts=1, sources={best.job.rank: 1})

    def leave(self, drain: str = "30s") -> None:
        self.left = True


def made(net: ElasticNet, ranks: Sequence[int], **options: Any) -> tuple[list[Any], list[ultima.Outer]]:
    models = [np.zeros(SIZE, np.float32) for _ in ranks]
    said = {"every": 2, "delay": 1, "outer": PLAIN, **options}
    outers = [ultima.Outer(Elastic(net, rank), {"w": model}, **said) for rank, model in zip(ranks, models, strict=True)]
    net.outers = outers
    return models, outers


def add(rank: int, step: int, model: Any) -> None:
    model += np.float32(0.25 * (rank + 1))


@pytest.mark.parametrize("came", [True, False])
@pytest.mark.parametrize("fragments", [1, 2])
def test_rank_without_a_result__gives_again_what_the_others_do_not_have_and_nothing_else(
    came: bool, fragments: int
) -> None:
    """Seat 3 lacks a part of the result of op 1, in which the others have all of it, or nothing. In the end all
    that was done is in the outer model or with who did it, once. Fails if the state does not say who was in which
    round."""
    net = ElasticNet(4, members={0: (0, 1, 2, 3)})
    models, outers = made(net, range(4), fragments=fragments)
    net.deaf[1] = {3}
    if not came:
        net.lost[1] = [(3, slice(None))]
    run(models, outers, 31, add)
    for outer in outers:
        outer.finish()
    told = [outer.summary() for outer in outers]
    assert [each.learned for each in told] == [0, 0, 0, 1]
    assert told[3].failure == "not all of the sums that rank 0 made came"
    theta = outers[0].theta
    assert all((outer.theta == theta).all() for outer in outers)
    kept = sum(model - theta for model in models)
    assert (4 * theta + kept == 31 * 2.5).all()


def test_nobody_has_a_result__all_give_it_again() -> None:
    net = ElasticNet(4, members={0: (0, 1)})
    models, outers = made(net, range(2))
    net.deaf[1] = {0, 1}
    run(models, outers, 21, add)
    for outer in outers:
        outer.finish()
        assert outer.summary().failed == 1 and outer.summary().rounds == 9
    assert (outers[0].theta == outers[1].theta).all()
    assert (2 * outers[0].theta + sum(model - outers[0].theta for model in models) == 21 * 0.75).all()


def test_divisor__is_the_weight_of_the_members_of_the_round() -> None:
    """Seat 2 is free from op 3 on, though nobody asked it: it still says 8 to itself. A free seat never counts."""
    net = ElasticNet(8, members={0: (0, 1, 2), 3: (0, 1)})
    models, outers = made(net, range(3), weight=2.0, quorum="majority")
    run(models, outers, 7, add)
    assert [outer.last.members_weight for outer in outers] == [6, 6, 6]
    assert outers[0]._turns.quorum == 2
    run(models[:2], outers[:2], 4, add)
    assert [outer.last.members_weight for outer in outers[:2]] == [4, 4]
    with pytest.raises(ultima.InvalidArgument, match="quorum"):
        made(ElasticNet(4, members={0: (0,)}), [0], quorum=5)


def test_newcomer__has_model_momentum_and_turn_and_is_in_the_next_round() -> None:
    net = ElasticNet(4, members={0: (0, 1), 3: (0, 1, 3)})
    models, outers = made(net, range(2), outer=ultima.Nesterov(1.0, 0.5))
    run(models, outers, 8, add)  # op 3 is under way
    before, turn = outers[0].state_dict(), outers[0]._turns.turn
    late = np.ones(SIZE, np.float32)
    outer = ultima.Outer(Elastic(net, 3), {"w": late}, 2, delay=1, outer=ultima.Nesterov(1.0, 0.5))
    assert outer.last.number == turn == 4 and outer.last.inside == (0, 1, 3) and outer.last.members_weight == 3
    assert not (outer.theta == before["theta"]).all() and (late == outer.theta).all()
    for each in outers:
        each.finish()
        assert (each.theta == outer.theta).all()
        assert (each.state_dict()["momentum"] == outer.state_dict()["momentum"]).all()
        assert each.last.digest == outer.last.digest
    outer.close()
    assert outer.job.left


def test_newcomer_with_other_settings__is_told_which_and_leaves_its_arrays_alone() -> None:
    net = ElasticNet(4, members={0: (0, 1)})
    made(net, [0])
    model = np.ones(SIZE, np.float32)
    with pytest.raises(ultima.InvalidArgument, match="every is 2 on rank 0, 3 here"):
        ultima.Outer(Elastic(net, 1), {"w": model}, 3, delay=1, outer=PLAIN)
    assert (model == 1).all()
