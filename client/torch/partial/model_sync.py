# SPDX-License-Identifier: Apache-2.0
"""Keeps replicas together that partial collectives let drift apart: now and then everybody meets and averages.

When to meet is counted in rounds of the job, not in steps of a rank: a slow rank makes fewer steps, but sees every
threshold, one of its own steps after the others at most. A rank that is through with training goes on coming, with
weight 0 once its last model is in, until all are through: so nobody is left waiting for a meeting that others skipped,
and all end with the same model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ultima.base.durations import Duration
from ultima.base.errors import RanksGone
from ultima.base.warning import warn

if TYPE_CHECKING:
    from ultima import Job


@dataclass(slots=True)
class SyncSummary:
    """What meeting cost this rank. Times in seconds, waiting for the slowest rank included."""

    syncs: int = 0
    seconds: float = 0.0
    divergence: float = 0.0
    """At the last one that all ranks had a part in: the largest difference of any parameter to the average."""
    ended: bool = False
    """Ranks are gone for good: the others train on, but cannot meet any more."""


class ModelSync:
    """Averages |tensors| over the ranks of an ordinary |job|, reliably. The same calls on all ranks.

    every: rounds between two meetings; 0 for none but those that are asked for. deadline: how long one waits for the
    slowest rank.
    """

    def __init__(self, job: Job | None, tensors: Sequence[torch.Tensor], every: int, deadline: Duration) -> None:
        self._job = job
        self._tensors = list(tensors)
        self._every = every
        self._deadline = deadline
        self._met = 0
        self.summary = SyncSummary()

    def adopt_first(self) -> None:
        """Gives all ranks the tensors of rank 0, as DDP does when it is made."""
        if self._job is None:
            return
        self._scale(float(self._job.world_size) if self._job.rank == 0 else 0.0)
        self._job.sync_model(self._tensors, deadline=self._deadline)

    def if_due(self, rounds: int) -> bool:
        """Meets as often as |rounds| says that it is time. True if it did."""
        met = False
        while self._every and self._met < rounds // self._every and not self.summary.ended:
            self._met += 1
            self._meet(weight=1.0, through=False)
            met = True
        return met

    def now(self) -> None:
        """Meets, whatever the round. To be called on all ranks."""
        if not self.summary.ended:
            self._meet(weight=1.0, through=False)

    def finish(self) -> None:
        """Comes to all further meetings, until no rank has any. Afterwards all ranks hold the same tensors."""
        weight = 1.0
        while not self.summary.ended and not self._meet(weight, through=True):
            weight = 0.0

    def _meet(self, weight: float, through: bool) -> bool:
        """One meeting. True if all ranks are through, and had been in this average or an earlier one."""
        if self._job is None:
            return True
        started = time.monotonic()
        try:
            told = self._job.empty(2, "float64")
            told[:] = weight, through
            self._job.allreduce(told, "sum", mode="reliable", deadline=self._deadline)
            weights, all_through = float(told[0]), int(told[1]) == self._job.world_size
            if weights:
                if weights < self._job.world_size:
                    self._scale(weight * self._job.world_size / weights)
                found = self._job.sync_model(self._tensors, deadline=self._deadline)
                if weights == self._job.world_size:
                    self.summary.divergence = found.divergence
        except RanksGone as gone:
            self.summary.ended = True
            warn(f"the replicas cannot be averaged any more: {gone}")
            return True
        finally:
            self.summary.seconds += time.monotonic() - started
        self.summary.syncs += 1
        return all_through

    def _scale(self, factor: float) -> None:
        with torch.no_grad():
            for tensor in self._tensors:
                if not factor:
                    tensor.zero_()  # also what is not finite
                elif factor != 1.0:
                    tensor.mul_(factor)
