# SPDX-License-Identifier: Apache-2.0
"""The paper's convex problem, smaller: logistic regression by full-batch descent, which tells digits 4 and 9 apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.reproduce.partial.workload import Values
from tests.reproduce.ultima.hadamard import images
from ultima.coded import Plan


class Logistic:
    """Images of 64 pixels and a constant, labels 0 and 1. The loss is the mean over all points, and a little of the
    model's own size, so that there is one best model. Gradients of points are sums, not means.
    """

    rate = 0.5

    def __init__(self, penalty: float = 1e-3) -> None:
        pixels, labels = images()
        chosen = np.flatnonzero((labels == 4) | (labels == 9))
        self.x = np.hstack([pixels[chosen], np.ones((len(chosen), 1))])
        self.y = (labels[chosen] == 9).astype(float)
        self.size = len(chosen)
        self._penalty = penalty

    def start(self) -> Values:
        return np.zeros(self.x.shape[1])

    def rows(self, flat: Values, start: int, stop: int) -> Values:
        """The sum of the gradients of the points from |start| up to, not including, |stop|."""
        x = self.x[start:stop]
        return np.asarray((1 / (1 + np.exp(-x @ flat)) - self.y[start:stop]) @ x)

    def step(self, flat: Values, total: Values) -> Values:
        """The model after a step with the sum of the gradients of all points."""
        return np.asarray(flat - self.rate * (total / self.size + self._penalty * flat))

    def loss(self, flat: Values) -> float:
        margin = (2 * self.y - 1) * (self.x @ flat)
        return float(np.logaddexp(0, -margin).mean() + self._penalty / 2 * flat @ flat)

    def uncoded(self, steps: int) -> Values:
        """Where descent on all points at once ends."""
        flat = self.start()
        for _ in range(steps):
            flat = self.step(flat, self.rows(flat, 0, self.size))
        return flat


class Shares:
    """The same as a task of partial training: each of |ranks| has its share of the points, and computes all of it."""

    def __init__(self, task: Logistic, ranks: int) -> None:
        self._task, self._ranks = task, ranks
        self.rate = task.rate

    def start(self) -> Values:
        return self._task.start()

    def gradient(self, flat: Values, rank: int, step: int) -> Values:
        task = self._task
        low, high = (at * task.size // self._ranks for at in (rank, rank + 1))
        mine = self._ranks / task.size * task.rows(flat, low, high)
        return np.asarray(mine + (flat - task.step(flat, np.zeros_like(flat))) / task.rate)

    def loss(self, flat: Values) -> float:
        return self._task.loss(flat)


def given(task: Logistic, plan: Plan, flat: Values) -> npt.NDArray[np.float32]:
    """What each rank of a coded job gives, [rank, parameter]: a master of a tree gives zeros."""
    out = np.zeros((plan.hosts, len(flat)), np.float32)
    for rank in range(plan.first, plan.hosts):
        for start, stop, coefficient in plan.allocation(rank, task.size):
            out[rank] += (coefficient * task.rows(flat, start, stop)).astype(np.float32)
    return out


def decoded(plan: Plan, gifts: npt.NDArray[np.float32], came: set[int]) -> npt.NDArray[np.float32] | None:
    """The sum that parents make of the |gifts| [rank, parameter] of the ranks in |came|; None if it cannot be had.

    Every parent adds in double, and sends on float32, as what travels is.
    """
    if plan.children is None:
        return _parent(plan, {at: gifts[at] for at in came})
    for node in range(plan.hosts - 1, 0, -1):
        below = range(node * plan.children + 1, (node + 1) * plan.children + 1)
        if below[0] < plan.hosts and node in came:
            found = _parent(plan, {at: gifts[child] for at, child in enumerate(below) if child in came})
            if found is None:
                came = came - {node}
            else:
                gifts = gifts.copy()
                gifts[node] = (gifts[node].astype(np.float64) + found).astype(np.float32)
    return _parent(plan, {at: gifts[at + 1] for at in range(plan.children) if at + 1 in came})


def _parent(plan: Plan, below: dict[int, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32] | None:
    a = plan.parents.decoding(list(below))
    if a is None:
        return None
    total = sum(a[child] * vector.astype(np.float64) for child, vector in below.items() if a[child])
    return np.asarray(total, dtype=np.float32)
