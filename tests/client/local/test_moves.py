# SPDX-License-Identifier: Apache-2.0
"""How a rank's parameters follow the outer model, beside the rule of docs/local_sgd.md element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.seeds import seeds
from ultima.local.moves import Moves
from ultima.local.values import Arrays


def _followed(local: Any, before: Any, after: Any, sent: Any, inside: Any, alpha: float) -> Any:
    kept = np.float32(1 - alpha) * (local - sent)
    return np.where(inside, after + kept, local + (after - before))


@pytest.mark.parametrize("seed", seeds(24))
def test_settle__moves_each_range_by_whether_it_was_in(seed: int) -> None:
    """The last range is cut. The outer model has moved, or steps meanwhile, in parts of some ranges. The rank's
    parameters lie in several arrays, one of which may have another type."""
    random = np.random.default_rng(seed)
    size, elements, low = int(random.integers(1, 400)), int(random.integers(1, 50)), int(random.integers(30))
    local, before, after, sent = (random.standard_normal(size).astype(np.float32) for _ in range(4))
    ranges = -(-size // elements)
    mine = [random.random(ranges) < 0.5, np.ones(ranges, bool), np.zeros(ranges, bool)][seed % 3]
    alpha = float(random.choice([0.0, 0.25, 1.0]))
    whole = np.concatenate([np.full(low, 7, np.float32), local, np.full(5, 8, np.float32)])
    arrays = {
        str(at): part.copy() for at, part in enumerate(np.split(whole, np.sort(random.integers(0, whole.size, 3))))
    }
    if random.random() < 0.3:
        arrays["1"] = arrays["1"].astype(np.float64)
    follows = Moves(Arrays(arrays), elements, alpha)

    def model() -> Any:
        return np.concatenate([*arrays.values()])

    now = bool(random.integers(2))
    given = after.copy()
    if random.random() < 0.5:
        follows.add(low, before, given, mine, sent, now)
    else:
        given[:], some = before, int(random.integers(1, 4))
        ends = [(slice(at, at + some), slice(at * elements, (at + some) * elements)) for at in range(0, ranges, some)]
        for _, part in follows.stepping(low, given, mine, sent, ends, now):
            given[part] = after[part]
    if not now:
        assert (model()[low : low + size] == local).all(), "only when the trainer has ended its step"
        given[:] = np.nan  # the outer model goes on
        follows.settle()
    inside = np.repeat(mine, elements)[:size]
    assert (model()[low : low + size] == _followed(local, before, after, sent, inside, alpha)).all()
    assert (model()[:low] == 7).all() and (model()[low + size :] == 8).all()
    done = model()
    follows.settle()
    assert (model() == done).all(), "once"


def test_settle__two_moves_of_which_the_first_was_due() -> None:
    """Nothing of this rank is in the second: its parameters keep what they did since it gave for the first."""
    model = np.array([5.0, 5.0], np.float32)
    follows = Moves(Arrays({"w": model}), 1, 0.0)
    first, second, third = (np.full(2, value, np.float32) for value in (1.0, 2.0, 10.0))
    follows.add(0, first, second, np.array([True, False]), np.array([3.0, 3.0], np.float32), now=False)
    follows.add(0, second, third, np.zeros(2, bool), None, now=False)
    follows.settle()
    assert model.tolist() == [12.0, 14.0]  # 10 and the 2 made since; 5 and the 9 that the outer model moved
