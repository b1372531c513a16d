# SPDX-License-Identifier: Apache-2.0
"""eager-SGD in virtual time: every rank runs every step, and waits for the op of its step unless that has ended.

Compute times do not depend on what is learned, so the times of a whole job follow from them alone; what is learned is
replayed afterwards (learning.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.reproduce.partial.theory import picks
from tests.reproduce.partial.workload import Values


@dataclass(frozen=True)
class Run:
    """Times by [step] or [step, rank], all from the start of the job, in the unit of the compute times."""

    started: Values
    """When the op of the step was activated."""
    ended: Values
    arrived: Values
    """When the rank had its gradient of the step."""
    left: Values
    """When the rank went on to its next step."""

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        """[step, rank]: those who arrived no later than the op was activated."""
        return self.arrived <= self.started[:, None]

    @property
    def active_mean(self) -> float:
        return float(self.active.sum(axis=1).mean())

    @property
    def rate(self) -> float:
        """Steps per unit of time until the last rank has done them all."""
        return len(self.ended) / float(self.left[-1].max())

    @property
    def latency_mean(self) -> float:
        """Of a rank's call, over all."""
        return float((self.left - self.arrived).mean())


def trigger(arrived: Values, policy: str, step: int, seed: int, quorum: int = 1) -> float:
    """When the op that the ranks reach at |arrived| is activated."""
    if policy == "majority":
        return float(arrived[picks(seed, step, len(arrived))[0]])
    order = {"full": len(arrived), "solo": 1, "quorum": quorum}[policy]
    return float(np.sort(arrived)[order - 1])


def run(compute: Values, policy: str, op_time: float = 0.0, sync: int = 0, quorum: int = 1, seed: int = 42,
        barrier: bool = False) -> Run:  # fmt: skip
    """The times of a job whose computing takes |compute| [step, rank] under |policy|: full, solo, majority or quorum.

    |sync|: after so many steps all ranks wait for one another (the model is synchronized); 0: never. |barrier|: they do
    so after every step, as in the skewed microbenchmark, where only the latency of the op counts.
    """
    steps, ranks = compute.shape
    started, ended = np.empty(steps), np.empty(steps)
    arrived, left = np.empty((steps, ranks)), np.empty((steps, ranks))
    here = np.zeros(ranks)
    for step in range(steps):
        arrived[step] = here + compute[step]
        started[step] = trigger(arrived[step], policy, step, seed, quorum)
        ended[step] = started[step] + op_time
        # Nobody leaves before the op has ended, so the next one cannot begin during it.
        left[step] = here = np.maximum(arrived[step], ended[step])
        if barrier or (sync and (step + 1) % sync == 0):
            here = np.full(ranks, here.max())
    return Run(started, ended, arrived, left)


def skewed(ranks: int, step: float, iterations: int, policy: str, op_time: float = 0.0, seed: int = 42) -> Run:
    """eager-SGD's microbenchmark (Figure 8): rank p arrives p steps late in each iteration, with a barrier after."""
    late = np.tile(np.arange(ranks) * step, (iterations, 1))
    return run(late, policy, op_time, seed=seed, barrier=True)
