# SPDX-License-Identifier: Apache-2.0
"""CodedReduce's own model of time (docs/papers.md, section 4.5): how long workers compute, and how a parent receives
from its children.

A worker with d data points computes for a d seconds and an exponential time of mean d / mu more. A parent receives one
vector at a time, in the order in which they are ready, and each takes t_c seconds. All workers begin together, and what
comes down from the master takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.reproduce.partial.workload import Values


@dataclass(frozen=True)
class Model:
    """Seconds: |a| for a point, |t_c| for a vector; |mu| in points per second; |points| of data in all."""

    a: float
    mu: float
    t_c: float
    points: int

    def compute(self, load: float, shape: tuple[int, ...], rng: np.random.Generator) -> Values:
        """Times of workers that hold |load| of the data."""
        share = load * self.points
        return self.a * share + rng.exponential(share / self.mu, shape)

    def order_statistic(self, workers: int, late: int, load: float) -> float:
        """Expected time until all but |late| of |workers| have computed: the mean of an order statistic."""
        harmonic = sum(1 / each for each in range(late + 1, workers + 1))
        return load * self.points * (harmonic / self.mu + self.a)


def received(ready: Values, needed: int, each: float) -> Values:
    """When a parent has |needed| of the vectors that are ready at |ready| [..., child], one after another."""
    order = np.sort(ready, axis=-1)
    done = np.zeros(order.shape[:-1])
    for child in range(needed):
        done = np.maximum(done, order[..., child]) + each
    return done


def tree_times(model: Model, load: float, children: int, depth: int, late: int, steps: int,
               rng: np.random.Generator) -> Values:  # fmt: skip
    """Seconds of each of |steps| steps over a tree whose parents do without |late| of their children.

    A depth of 1 is a master and its workers: gradient coding, or uncoded with |late| = 0, or SGD that drops the last.
    """
    ready = model.compute(load, (steps, children**depth), rng)
    for layer in range(depth - 1, 0, -1):
        parents = children**layer
        below = received(ready.reshape(steps, parents, children), children - late, model.t_c)
        ready = np.maximum(model.compute(load, (steps, parents), rng), below)
    return received(ready, children - late, model.t_c)
