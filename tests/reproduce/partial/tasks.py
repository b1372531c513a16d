# SPDX-License-Identifier: Apache-2.0
"""What is learned in virtual time: small models in numpy, so that nothing but the order of updates can differ.

The batch of a rank's n-th step is a function of seed, rank and n alone: every policy sees the same data.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tests.reproduce.partial.workload import Values
from tests.reproduce.ultima.hadamard import Net, images


class Task(Protocol):
    """A model and its data. Parameters are one flat vector."""

    rate: float
    """Learning rate of an averaged gradient."""

    def start(self) -> Values: ...
    def gradient(self, flat: Values, rank: int, step: int) -> Values: ...
    def loss(self, flat: Values) -> float:
        """Of data that is not trained on."""


class Digits:
    """A net of 64-64-10 on 1,797 images of digits, 600 of them kept for the test."""

    rate = 0.25

    def __init__(self, seed: int, batch: int = 16) -> None:
        rng = np.random.default_rng(seed)
        self._x, self._labels = images()
        order = rng.permutation(len(self._x))
        self._train, self._test = order[:-600], order[-600:]
        self._seed, self._batch, self._net = seed, batch, Net(rng)

    def start(self) -> Values:
        return self._net.flat.copy()

    def gradient(self, flat: Values, rank: int, step: int) -> Values:
        chosen = np.random.default_rng((self._seed, rank, step)).choice(self._train, self._batch)
        return self._of(flat).gradient(self._x[chosen], self._labels[chosen])

    def loss(self, flat: Values) -> float:
        net = self._of(flat)
        w1, b1, w2, b2 = net.parts(net.flat)
        scores = np.maximum(self._x[self._test] @ w1 + b1, 0) @ w2 + b2
        top = scores.max(axis=1)
        own = scores[np.arange(len(top)), self._labels[self._test]]
        return float(np.mean(top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - own))

    def accuracy(self, flat: Values) -> float:
        """In percent, on the images that were not trained on."""
        return 100 * self._of(flat).accuracy(self._x[self._test], self._labels[self._test])

    def _of(self, flat: Values) -> Net:
        net = Net.__new__(Net)
        net.flat = flat
        return net


class Hyperplane:
    """y = a x + noise: eager-SGD's regression, smaller. The loss is the mean squared error; no model can be below the
    variance of the noise."""

    def __init__(self, seed: int, size: int = 256, batch: int = 32, noise: float = 2.0, rate: float = 0.05) -> None:
        rng = np.random.default_rng(seed)
        self.rate = rate
        self._seed, self._batch, self._noise = seed, batch, noise
        self._truth = rng.standard_normal(size)
        self._x = rng.standard_normal((4096, size))
        self._y = self._x @ self._truth + noise * rng.standard_normal(4096)

    def start(self) -> Values:
        return np.zeros_like(self._truth)

    def gradient(self, flat: Values, rank: int, step: int) -> Values:
        rng = np.random.default_rng((self._seed, rank, step))
        x = rng.standard_normal((self._batch, len(flat)))
        off = x @ (flat - self._truth) - self._noise * rng.standard_normal(self._batch)
        return np.asarray(2 * (off @ x) / self._batch)

    def loss(self, flat: Values) -> float:
        return float(np.mean((self._x @ flat - self._y) ** 2))
