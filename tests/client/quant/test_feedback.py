# SPDX-License-Identifier: Apache-2.0
"""What `Feedback` keeps, and what it saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ultima import InvalidArgument
from ultima.quant import Feedback, rounded
from ultima.testing import FakeDaemon


def test_feedback__what_was_sent_and_what_is_kept_add_up() -> None:
    """Of int4 each step loses 2 % of the squares; over many steps nothing is lost but the last residual."""
    rng, memory = np.random.default_rng(1), Feedback(1000)
    given, sent = np.zeros(1000), np.zeros(1000)
    for _ in range(20):
        gradient = rng.normal(size=1000).astype(np.float32)
        given += gradient
        sent += rounded(gradient, "int4", residual=memory.array)
    assert np.allclose(sent + memory.array, given, atol=1e-4)
    assert memory.error == pytest.approx(np.sqrt(np.mean(memory.array.astype(np.float64) ** 2)))
    assert 0.05 < memory.error < 0.3


def test_feedback__its_own_array_or_one_that_it_is_given() -> None:
    array = np.full(4, 3, np.float32)
    memory = Feedback(array)
    assert memory.array is array and not array.any() and memory.size == 4 and memory.error == 0
    array[:] = 2
    assert memory.error == 2
    memory.reset()
    assert not array.any() and Feedback(0).error == 0


def test_feedback__is_what_an_allreduce_takes() -> None:
    """The object itself: what the two ranks keep and what came is what they gave, but for the answers' rounding."""
    with FakeDaemon(2) as daemon, daemon.connect(0) as first, daemon.connect(1) as second:
        memories = [Feedback(job.empty(3000)) for job in (first, second)]
        given = [np.random.default_rng(rank).normal(size=3000).astype(np.float32) for rank in range(2)]
        arrays = [array.copy() for array in given]
        handles = [
            job.allreduce_async(array, "sum", wire="int4", answer="int16", feedback=memory)
            for job, array, memory in zip((first, second), arrays, memories, strict=True)
        ]
        assert all(handle.wait().complete for handle in handles) and (arrays[0] == arrays[1]).all()
        left = arrays[0] + memories[0].array + memories[1].array - (given[0] + given[1])
        assert np.abs(left).max() < 0.002 and min(memory.error for memory in memories) > 0.05


def test_feedback__comes_back_from_its_state() -> None:
    memory, other = Feedback(3), Feedback(3)
    memory.array[:] = 1, -2, 3
    saved = memory.state_dict()
    memory.reset()
    other.load_state_dict(saved)
    assert other.array.tolist() == [1, -2, 3]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": 2}, "version"),
        ({"residual": [1, 2, 3]}, "residual"),
        ({"residual": np.zeros(4, np.float32)}, "residual"),
        ({"residual": np.zeros(3)}, "residual"),
        ({"residual": np.array([1, np.nan, 2], np.float32)}, "residual"),
    ],
)
def test_feedback__a_state_that_does_not_fit_changes_nothing(change: dict[str, Any], field: str) -> None:
    memory = Feedback(3)
    memory.array[:] = 5
    with pytest.raises(InvalidArgument, match=f"^{field}"):
        memory.load_state_dict({**memory.state_dict(), **change})
    assert memory.array.tolist() == [5, 5, 5]
