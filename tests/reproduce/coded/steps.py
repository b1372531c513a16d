# SPDX-License-Identifier: Apache-2.0
"""A coded job in virtual time: an op ends when enough ranks have given, and a rank lags a few steps at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.reproduce.partial.workload import Values

LAG = 3
"""Results that a host keeps: an op waits until all ranks have had the result that its own one takes the place of."""


@dataclass
class Run:
    """Times of the ends of all steps, from the start of the job; how many ranks were not in a step's sum, each."""

    ended: Values
    unused: list[int] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Time of a step."""
        return float(self.ended[-1]) / len(self.ended)


def run(compute: Values, stalls: Values, decodable: Callable[[set[int]], bool], lag: int = LAG) -> Run:
    """|compute| and |stalls| [step, rank]: a rank stalls first, where it cannot look whether the step is over, and then
    computes, where it can. An op takes no time.

    A rank that finds its step over takes the results of all steps that it missed, and goes on with the newest.
    """
    steps, ranks = compute.shape
    ended: list[float] = []
    at = np.zeros(ranks, dtype=int)  # the step that each rank is in
    awake = stalls[0].astype(float).copy()  # when its stall in that step ends
    unused = []
    for step in range(steps):
        # Who is in this step has its gift at awake + compute; who is in an earlier one comes when its stall is over.
        behind = at < step
        assert not behind.any() or ended
        ready = np.empty(ranks)
        for rank in range(ranks):
            if behind[rank]:
                # It wakes, sees the newest result of then, and begins there: in this step, if nothing has ended since.
                begun = max(float(awake[rank]), ended[-1])
                ready[rank] = begun + stalls[step, rank] + compute[step, rank]
            else:
                ready[rank] = awake[rank] + compute[step, rank]
        order = np.argsort(ready, kind="stable")
        came: set[int] = set()
        end = float("inf")
        for rank in order:
            came.add(int(rank))
            if decodable(came):
                end = float(ready[rank])
                break
        # The result takes the place of the one |lag| steps before: all ranks must have had that one.
        stale = [float(awake[rank]) for rank in range(ranks) if at[rank] <= step - lag]
        end = max([end, *stale])
        unused.append(int((ready > end).sum()))
        ended.append(end)
        if step + 1 == steps:
            break
        for rank in range(ranks):
            if behind[rank] and awake[rank] > end:
                continue  # asleep since an earlier step
            if behind[rank]:
                awake[rank] = max(float(awake[rank]), ended[step - 1] if step else 0.0) + stalls[step, rank]
                at[rank] = step
            if awake[rank] <= end:  # it gave, or saw while it computed that the step is over
                at[rank] = step + 1
                awake[rank] = end + stalls[step + 1, rank]
    return Run(np.array(ended), unused)
