# SPDX-License-Identifier: Apache-2.0
"""How a rank's parameters follow the outer model, beside the rule of docs/local_sgd.md element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.seeds import seeds
from ultima.local import moves
from ultima.local.moves import Moves
from ultima.local.values import Arrays


def _followed(local: Any, before: Any, after: Any, sent: Any, inside: Any, alpha: float) -> Any:
    kept = np.float32(1 - alpha) * (local - sent)
    return np.where(inside, after + kept, local + (after - before))


@pytest.mark.parametrize("seed", seeds(12))
def test_settle__moves_each_range_by_whether_it_was_in(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges and the parts that are moved at a time end at different elements; the last range is cut."""
    random = np.random.default_rng(seed)
    monkeypatch.setattr(moves, "_BLOCK", int(random.integers(1, 40)))
    size, elements, low = int(random.integers(1, 400)), int(random.integers(1, 50)), int(random.integers(30))
    local, before, after, sent = (random.standard_normal(size).astype(np.float32) for _ in range(4))
    ranges = -(-size // elements)
    mine = [random.random(ranges) < 0.5, np.ones(ranges, bool), np.zeros(ranges, bool)][seed % 3]
    alpha = float(random.choice([0.0, 0.25, 1.0]))
    model = np.concatenate([np.full(low, 7, np.float32), local, np.full(5, 8, np.float32)])
    follows = Moves(Arrays({"w": model}), elements, alpha)
    now = bool(random.integers(2))
    given = after.copy()
    follows.add(low, before, given, mine, sent, now)
    if not now:
        assert (model[low : low + size] == local).all(), "only when the trainer has ended its step"
        given[:] = np.nan  # the outer model goes on
        follows.settle()
    inside = np.repeat(mine, elements)[:size]
    assert (model[low : low + size] == _followed(local, before, after, sent, inside, alpha)).all()
    assert (model[:low] == 7).all() and (model[low + size :] == 8).all()
    done = model.copy()
    follows.settle()
    assert (model == done).all(), "once"


def test_settle__two_moves_of_which_the_first_was_due() -> None:
    """Nothing of this rank is in the second: its parameters keep what they did since it gave for the first."""
    model = np.array([5.0, 5.0], np.float32)
    follows = Moves(Arrays({"w": model}), 1, 0.0)
    first, second, third = (np.full(2, value, np.float32) for value in (1.0, 2.0, 10.0))
    follows.add(0, first, second, np.array([True, False]), np.array([3.0, 3.0], np.float32), now=False)
    follows.add(0, second, third, np.zeros(2, bool), None, now=False)
    follows.settle()
    assert model.tolist() == [12.0, 14.0]  # 10 and the 2 made since; 5 and the 9 that the outer model moved
