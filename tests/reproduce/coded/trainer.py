# SPDX-License-Identifier: Apache-2.0
"""One rank of the experiment with real daemons (real.py): computing is a sleep, and now and then a rank stalls.

    python -m tests.reproduce.coded.trainer RANK WORLD SOCKET RENDEZVOUS

As tests/reproduce/partial/trainer.py, whose harness starts it and asks it. What a rank gives is the number of the data
points that it computed, times their coefficients, in every element: so each sum must be the number of all points.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from tests.reproduce.partial import trainer
from tests.reproduce.partial.trainer import sleep_until
from ultima import Coded, DeadlineExceeded, RanksGone, Receipt, Unsupported
from ultima.coded import Plan

POINTS = 60_000
WARM = 3
"""Steps without stalls before those that count: ranks do not join at the same moment."""
TRIES = 200
"""Attempts at a step: the first ones may find that not all ranks have joined."""
LOOK_S = 0.005
"""How often a rank that computes looks whether its step is over."""


def stalls(seed: int, rank: int, steps: int, probability: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """In which steps |rank| stalls: the same for all schemes."""
    return np.random.default_rng((seed, rank)).random(steps) < probability


def give(coded: Coded, mine: Any, step: int, found: Any) -> tuple[Receipt, int]:
    """Gives to a step until its sum can be had, and says how often it could not."""
    for tries in range(TRIES):
        try:
            return coded.reduce(mine, step, out=found), tries
        except (DeadlineExceeded, RanksGone):
            time.sleep(LOOK_S)
    return coded.reduce(mine, step, out=found), TRIES


class Rank(trainer.Rank):
    """This process's place, and what it can be asked."""

    def coded(self, request: dict[str, Any]) -> dict[str, Any]:
        """Steps by a plan. With |looks| a rank that stalls sees when its step is over; else only after the stall."""
        plan = Plan(**request["plan"])
        rows = plan.allocation(self.rank, POINTS)
        compute_s = sum(stop - start for start, stop, _ in rows) / POINTS * request["all_s"]
        wrong, late, given, again = 0, 0, 0, 0
        stalled = stalls(request["seed"], self.rank, request["steps"], request["probability"])
        begun = 0.0
        try:
            joined = self.join(request["job"], **plan.options())
        except Unsupported as error:
            return {"refused": str(error)}
        with joined as job:
            with self.join(f"{request['job']}-meet") as meeting:
                meeting.barrier(deadline=60)  # who is not there yet when a step ends may miss its result
            coded = job.coded(plan)
            mine, found = (job.empty(request["elements"], "float32") for _ in range(2))
            mine[:] = sum(coefficient * (stop - start) for start, stop, coefficient in rows)
            for step in range(WARM + request["steps"]):
                begun = begun or (time.monotonic() if step == WARM else 0.0)
                stall_s = request["stall_s"] * bool(step >= WARM and stalled[step - WARM] and rows)
                if not request["looks"]:
                    time.sleep(stall_s)
                    stall_s = 0.0
                until = time.monotonic() + stall_s + compute_s
                while (left := until - time.monotonic()) > 0 and not coded.over(step):
                    time.sleep(min(left, LOOK_S))
                if coded.over(step):
                    receipt = coded.wait(step, out=found).receipt
                else:
                    receipt, tries = give(coded, mine, step, found)
                    given, again = given + 1, again + tries
                wrong += not (receipt.exact and np.allclose(found, POINTS, rtol=1e-4))
                late += bool(receipt.late)
            took = time.monotonic() - begun
            sleep_until(time.monotonic() + 1.0)  # nobody leaves before all have the last result
        return {"seconds": took, "wrong": wrong, "late": late, "given": given, "again": again}

    def plain(self, request: dict[str, Any]) -> dict[str, Any]:
        """Steps that wait for all. With |first| 1 rank 0 is the master, without data."""
        first = request["first"]
        compute_s = request["all_s"] / (self.world - first) if self.rank >= first else 0.0
        stalled = stalls(request["seed"], self.rank, request["steps"], request["probability"])
        with self.join(request["job"], **request["options"]) as job:
            mine = job.empty(request["elements"], "float32")
            begun = 0.0
            for step in range(WARM + request["steps"]):
                begun = begun or (time.monotonic() if step == WARM else 0.0)
                stall = step >= WARM and stalled[step - WARM] and self.rank >= first
                time.sleep(compute_s + request["stall_s"] * bool(stall))
                mine[:] = 1.0
                job.allreduce(mine, "sum")
            took = time.monotonic() - begun
            sleep_until(time.monotonic() + 1.0)
        return {"seconds": took}


if __name__ == "__main__":
    here = Rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
    trainer.main(here, {"coded": here.coded, "plain": here.plain})
