# SPDX-License-Identifier: Apache-2.0
"""What a rank of a coded job computes: batches of data points, each with the coefficient of its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from ultima.base.checks import check_whole
from ultima.base.errors import InvalidArgument
from ultima.coded import Plan

Batch = tuple[torch.Tensor, float]


class CodedSampler:
    """Goes through the data points that |rank| computes by |plan|, of |size| in all.

        for indices, coefficient in sampler:
            (coefficient * sum_of_losses(indices)).backward()

    Yields (indices, coefficient): int64[n] of the points, and what the sum of their losses is multiplied by. |batch|:
    most points at once; None for a part of the data at a time. All ranks that compute a part cut it into the same
    batches, so that their gradients of it are the same, also where they depend on who shares a batch. The same
    arguments on all ranks but |rank|. Raises InvalidArgument.
    """

    def __init__(self, size: int, plan: Plan, rank: int, batch: int | None = None) -> None:
        check_whole(size, "size", 1)
        if batch is not None:
            check_whole(batch, "batch", 1)
        self.size, self.plan, self.rank = size, plan, rank
        rows = plan.allocation(rank, size)
        self._batches: list[tuple[int, int, int, float]] = []  # number of the part, start, stop, coefficient
        for part, (start, stop) in enumerate(plan.parts(size)):
            for low, high, coefficient in rows:
                if low <= start and stop <= high:
                    for at in range(start, stop, batch or size):
                        self._batches.append((part, at, min(stop, at + (batch or size)), coefficient))

    def __len__(self) -> int:
        """Batches of this rank; 0 of the master of a tree."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, points: Sequence[int] | torch.Tensor | Any = None, *, step: int | None = None) -> Iterator[Batch]:
        """The same for a step that uses other data: |points|, the indices of its |size| data points, known to all
        ranks and in the same order; None for all points from 0 on.

        step: torch's generators are seeded anew for each part of the data, as `Plan.seed` says for this step, so that
        ranks that compute a part drop out the same units. What else draws from them has to have a generator of its own.
        """
        chosen = None
        if points is not None:
            chosen = torch.as_tensor(points, dtype=torch.int64).reshape(-1)
            if len(chosen) != self.size:
                raise InvalidArgument("points", f"{len(chosen)} indices", f"{self.size}, as the size of the sampler")
        return self._go(chosen, step)

    def _go(self, chosen: torch.Tensor | None, step: int | None) -> Iterator[Batch]:
        for part, batches in groupby(self._batches, key=lambda each: each[0]):
            if step is not None:
                torch.manual_seed(self.plan.seed(step, part))
            for _, start, stop, coefficient in batches:
                mine = (
                    torch.arange(start, stop, dtype=torch.int64, device="cpu") if chosen is None else chosen[start:stop]
                )
                yield mine, coefficient
