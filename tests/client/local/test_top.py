# SPDX-License-Identifier: Apache-2.0
"""SparseLoCo on ranks in one thread: the largest elements travel, and the others are kept, none twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ultima
from tests.client.local.net import Net, outers
from ultima.local.largest import CHUNK, largest_of
from ultima.local.vector import HEAD

PLAIN = ultima.Nesterov(lr=1.0, momentum=0.0)
SIZE = 2 * CHUNK + 1000


def _moves(rank: int) -> Any:
    """Whole numbers below 256, which bfloat16 holds; 4 ranks make the shares whole."""
    return (np.random.default_rng(rank).integers(-60, 61, SIZE) * 4).astype(np.float32)


def _round(models: Any, made: Any) -> None:
    for outer in made:
        outer._summary.steps += 1
        outer._send()
    for outer in made:
        outer._take(wait=True)


def test_round__gives_the_largest_of_each_chunk_and_keeps_the_rest_for_later() -> None:
    """With keep 1 nothing is lost: what all did is in the outer model, or kept by the rank that did it. After as many
    rounds as the share says all is in the model. Fails if e is not sent, or is kept where it was sent."""
    models, made = outers(Net(4), SIZE, outer=PLAIN, sparse=1 / 4, feedback=1.0)
    moves = [_moves(rank) for rank in range(4)]
    for model, move in zip(models, moves, strict=True):
        model += move
    _round(models, made)
    first = np.zeros(SIZE, np.float32)
    for move in moves:
        where = largest_of(move, 1 / 4)
        assert where.size == 2 * CHUNK // 4 + 250
        assert np.abs(move[where]).min() >= np.median(np.abs(move))
        first[where] += move[where]
    theta = made[0].theta
    assert (theta == first / 4).all()
    for rank, (model, outer) in enumerate(zip(models, made, strict=True)):
        assert (outer.theta == theta).all()
        assert (model == theta).all()  # the rest is not in its parameters but in e
        (kept,) = outer.state_dict()["residuals"]
        assert (kept == -np.where(np.isin(np.arange(SIZE), largest_of(moves[rank], 1 / 4)), 0, moves[rank])).all()
    for _ in range(4):
        _round(models, made)
    assert (made[0].theta == sum(moves) / 4).all()


def test_missed_round__keeps_both_what_was_done_and_what_was_kept() -> None:
    """All of rank 2 is lost in the second round; keep is .5. Fails if e is halved twice, or what was given is lost."""
    net = Net(4)
    models, made = outers(net, SIZE, outer=PLAIN, sparse=1 / 2, feedback=0.5)
    net.lost[1] = [(2, slice(4 * HEAD, None))]
    models[2] += _moves(2)
    _round(models, made)
    before = made[2].state_dict()["residuals"][0].copy()
    theta = made[0].theta
    models[2] += 8.0
    _round(models, made)
    assert made[2].last is not None and made[2].last.ranges_missed == made[2].last.ranges
    assert (made[2].theta == theta).all()
    assert (models[2] == theta + 8.0).all()
    assert (made[2].state_dict()["residuals"][0] == before).all()
    _round(models, made)
    x = 0.5 * before - 8.0
    given = np.zeros(SIZE, np.float32)
    where = largest_of(x, 1 / 2)
    given[where] = x[where]
    assert (made[0].theta == theta - given / 4).all()


def test_rank_behind__takes_the_state_to_the_last_bit() -> None:
    net = Net(4)
    models, made = outers(net, SIZE, outer=ultima.Nesterov(), sparse=1 / 64, fragments=2, every=2)
    net.deaf[2] = {3}
    random = np.random.default_rng(5)
    for _ in range(40):
        for model in models:
            model += random.standard_normal(SIZE).astype(np.float32)
        _round(models, made)
    assert made[3].summary().learned == 1
    assert all((outer.theta == made[0].theta).all() for outer in made)
    assert made[0].last is not None and made[0].last.inside == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"sparse": 0.0}, "sparse"), ({"sparse": 1.5}, "sparse"), ({"sparse": 0.1, "wire": "int8"}, "wire"),
     ({"sparse": 0.1, "feedback": 2.0}, "feedback"), ({"feedback": 0.5}, "feedback")],
)  # fmt: skip
def test_options__refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ultima.InvalidArgument, match=field):
        outers(Net(2), SIZE, **options)
