# SPDX-License-Identifier: Apache-2.0
"""Eager-SGD: training where a step waits for some of the ranks, not for all.

    optimizer = ultima.torch.EagerSGD(torch.optim.SGD(model.parameters(), lr=0.1), policy="majority")
    while optimizer.rounds < 10_000:
        optimizer.zero_grad()
        loss_of(model, next(batches)).backward()
        optimizer.step()                # averages, and steps
    optimizer.finish()                  # all ranks hold the same model again

A step gives the rank's gradient and takes the average of the round, whoever is in it. A rank that comes late finds the
round over: it takes that average at once, and its gradient waits for the next one. Nothing that it computed is lost.

The algorithm: Li, Ben-Nun, Di Girolamo, Alistarh and Hoefler, "Taming unbalanced training workloads in deep learning
with partial collective operations", PPoPP 2020. Under DDP the same is a hook: partial_hook.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ultima import Job, Options
from ultima.base.checks import check_switch
from ultima.base.durations import Duration
from ultima.torch.partial.rounds import with_policy
from ultima.torch.partial.wrapped import WrappedOptimizer, loss_by


class EagerSGD(WrappedOptimizer):
    """Wraps any optimizer of torch's. The same arguments, and parameters of the same sizes, on all ranks.

    policy: who starts a round: "solo" (the first rank), "majority" (one drawn at random: half of the ranks are in it on
        average), "quorum", "probe", "seeded", or "full" (all). options: more of the kind, `ultima.Options(quorum=3)`.
    job: an ordinary job of the training's ranks; None for that of |group|, a process group of the backend "ultima",
        None for the default one.
    deadline: of a round, the job's by default. Where none came about by then the rank steps with its own gradient.
    divisor: "world" (the paper's), "contributors" or "none". local_reduce: how gradients that wait are combined, "sum"
        (the paper's) or "weighted".
    sync_every: rounds after which all ranks meet and average their parameters; 0 for never. A late rank does not see
        all averages, so replicas drift. A meeting waits for the slowest rank's step; `summary().sync` has the price.
    catch_up: True: a late rank makes every step that the others made, as in the paper, and under a steady load it is
        late for good. False: it goes on at the newest round.

    Gradients are views of one vector that is shared with the daemon; use this object's zero_grad. Raises
    InvalidArgument, and what `ultima.connect` raises.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        policy: str = "majority",
        *,
        job: Job | None = None,
        group: dist.ProcessGroup | None = None,
        options: Options | None = None,
        deadline: Duration | None = None,
        divisor: str | None = None,
        local_reduce: str | None = None,
        sync_every: int = 100,
        catch_up: bool = False,
    ) -> None:
        check_switch(catch_up, "catch_up")
        super().__init__(
            optimizer,
            options=with_policy(options, policy),
            job=job,
            group=group,
            local_reduce=local_reduce,
            divisor=divisor,
            deadline=deadline,
            sync_every=sync_every,
        )
        self._catch_up = catch_up

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages the gradients and makes the inner optimizer's step. Returns what |closure| returned, if any.

        Raises as `ultima.Partial.allreduce`, and InvalidArgument for sparse gradients and parameters of another size.
        """
        loss, rounds = loss_by(closure), self._rounds
        rounds.summary.steps += 1
        if rounds.partial is None:
            self.inner.step()
            return loss
        rounds.flat.gather()
        if rounds.average(self._catch_up):
            rounds.flat.scatter()
            self.inner.step()
        rounds.sync.if_due(rounds.count)
        return loss
