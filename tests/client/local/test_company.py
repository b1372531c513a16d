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
from tests.seeds import seeds
from ultima.api.job import ElasticJob
from ultima.base.receipt import Status
from ultima.base.sparse_form import rounded as narrow
from ultima.local.turns import Turns

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

    def allreduce_async(self, array: Any, *said: object, **options: Any) -> Handle:
        assert not options["agree"]
        made = FakeJob.allreduce_async(self, array, feedback=options.get("feedback"))
        return Handle(self, made.op, array)

    def allreduce_sparse_async(self, indices: Any, values: Any, out: Any, **said: Any) -> Handle:
        assert not said["agree"]
        out[:] = 0
        out[indices] = narrow(values, said["form"])
        return self.allreduce_async(out, agree=False)

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


def noise(random: np.random.Generator) -> Any:
    def train(rank: int, step: int, model: Any) -> None:
        model += (random.standard_normal(SIZE) * 1e-2).astype(np.float32)

    return train


@pytest.mark.parametrize("came", [True, False])
@pytest.mark.parametrize("options", [{"wire": "int4"}, {"wire": "int8", "feedback": True}, {"sparse": 1 / 8}])
@pytest.mark.parametrize("seed", seeds(1))
def test_what_a_rank_keeps__of_a_round_without_a_result_is_as_the_others_say(
    seed: int, options: dict[str, Any], came: bool
) -> None:
    """Seat 1 has no result of op 1. If the others have what it gave, it keeps what that left; if they have nothing of
    it, what it kept before. Fails if it keeps the one in the place of the other."""
    net, random = ElasticNet(4, wire=options.get("wire", ""), members={0: (0, 1)}), np.random.default_rng(seed)
    models, outers = made(net, range(2), **options)
    train = noise(random)
    net.deaf[1] = {1}
    if not came:
        net.lost[1] = [(1, slice(None))]
    run(models, outers, 4, train)
    kept = outers[1].state_dict()["residuals"][0]
    left = outers[1]._carrier._rest_of().copy()
    assert kept.any() and left.any() and not (left == kept[: left.size]).all()
    run(models, outers, 1, train)
    assert outers[1].behind and (outers[1].state_dict()["residuals"][0] == kept).all()
    run(models, outers, 1, train)
    assert not outers[1].behind and outers[1].summary().learned == 1
    now = outers[1].state_dict()["residuals"][0]
    assert (now[: left.size] == (left if came else kept[: left.size])).all()
    run(models, outers, 6, train)
    assert (outers[0].theta == outers[1].theta).all() and outers[0].last.digest == outers[1].last.digest
    assert not any(outer.summary().differed for outer in outers)


@pytest.mark.parametrize("options", [{"wire": "int4"}, {"sparse": 1 / 8}])
def test_newcomer__begins_with_nothing_kept_and_has_the_bits_of_the_others(options: dict[str, Any]) -> None:
    net = ElasticNet(4, wire=options.get("wire", ""), members={0: (0, 1), 3: (0, 1, 3)})
    random = np.random.default_rng(7)
    models, outers = made(net, range(2), **options)
    run(models, outers, 8, noise(random))
    late = np.ones(SIZE, np.float32)
    outer = ultima.Outer(Elastic(net, 3), {"w": late}, 2, delay=1, outer=PLAIN, **options)
    assert outer.last.inside == (0, 1, 3) and outer.last.weight == 3
    assert not outer.state_dict()["residuals"][0].any()
    assert all(each.state_dict()["residuals"][0].any() for each in outers)
    for each in outers:
        each.finish()
    run([*models, late], [*outers, outer], 6, noise(random))
    for each in outers:
        assert (each.theta == outer.theta).all() and each.last.digest == outer.last.digest
        assert each.last.inside == (0, 1, 3)


def test_newcomer__counts_the_members_of_the_newest_result_as_the_others_do() -> None:
    """How large marks are depends on their weight, and is to be alike. Fails if it counts itself in."""
    nan = float("nan")
    old, new = Turns(0, 4, 1, 1, 1, members=(0, 2)), Turns(3, 4, 1, 1, 1, members=(0, 2, 3))
    old.weights = [2.0, nan, 4.0, nan]
    new.learn(old.shared())
    assert new.members == (0, 2)
    assert new.members_weight() == old.members_weight() == 6.0
