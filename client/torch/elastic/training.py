# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training in a job whose hosts come and go, in which nobody stands still for a newcomer.

Each rank computes gradients of its own data, all apply their average, and so their models stay the same bit by bit. A
newcomer takes parameters, buffers and what the optimizer keeps from one rank, which goes on. Then it applies the
averages of the steps since, without computing anything, until it has caught up and is taken in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument
from ultima.base.receipt import Receipt, Status
from ultima.torch.elastic.torch_state import TorchState
from ultima.torch.partial.flat import FlatGradients
from ultima.torch.partial.wrapped import checked

if TYPE_CHECKING:
    from ultima import ElasticJob

BUCKET_BYTES = 25 << 20  # of one op, as in DDP


class ElasticTraining:
    """One rank of such a training:

        job = ultima.connect(job="train", world="elastic", meet="10.0.0.1:29520", follow=True)
        training = ultima.torch.ElasticTraining(job, module, optimizer)
        training.begin()
        while training.steps < 10_000:
            training.step(lambda: loss(module(batch()), ...).backward())

    job: of `connect(world="elastic", follow=True)`, on all ranks.
    module, optimizer: the same on all ranks but for their values. The optimizer's step must depend on gradients and on
    what it keeps alone. Learning rates are not taken from other ranks: set them by `steps`.
    bucket_bytes: a step is one op for each so many bytes of gradients; the same on all ranks.
    deadline: of each op; None: as the job has it.

    Raises InvalidArgument for a job whose hosts do not come and go, parameters of several types, an optimizer that
    computes several gradients a step, and what `TorchState` refuses.
    """

    def __init__(
        self,
        job: ElasticJob,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        deadline: Duration | None = None,
    ) -> None:
        if not hasattr(job, "follow"):
            raise InvalidArgument("job", type(job).__name__, 'one of connect(world="elastic", follow=True)')
        if type(bucket_bytes) is not int or bucket_bytes < 8:
            raise InvalidArgument("bucket_bytes", bucket_bytes, "a whole number of bytes, 8 or more")
        self.job, self.optimizer = job, checked(optimizer)
        self._deadline, self._state = deadline, TorchState(module, optimizer)
        self._flat = FlatGradients(module.parameters(), job)
        vector = self._flat.vector
        self._buckets = torch.split(vector, max(1, bucket_bytes // vector.element_size()))
        self._whole = False
        """The optimizer has all that it keeps, which most make in their first step: a newcomer's has it, too."""
        self.steps = 0
        """That the model has had, on all ranks together."""

    def begin(self, steps: int = 0, timeout: Duration = "60s") -> int:
        """To be called once before the first step, and again after `RanksGone` or `DaemonLost` while this rank
        followed. A newcomer takes the state of a rank that is in; ranks with which the job begins make their models
        the same, by those of the rank with the most steps.

        steps: that this rank's model has had, if it comes from a checkpoint.
        timeout: for the state to come, up to 10 min.

        Returns how many steps the model has had. Raises as `ElasticJob.follow` and `sync_state`.
        """
        if self.job.view.position is None:
            if not self._state.complete:
                self._state.prepare()
            report = self.job.follow(self._state.arrays(), timeout)
        else:
            report = self.job.sync_state(self._state.arrays(), steps, timeout=timeout)
        self._state.put_back()
        self._whole = self._state.complete
        self.steps = report.revision if report is not None else steps
        return self.steps

    def step(self, compute: Callable[[], object]) -> list[Receipt]:
        """One step of the training.

        compute: makes this rank's gradients, as `lambda: loss_of(batch).backward()` does; gradients are 0 before. It
        is not called while this rank follows the others: then there is nothing to compute.

        Returns the receipts of its ops. If one of them is INSUFFICIENT the model stays as it is, on all ranks that got
        that. Raises as `ElasticJob.following` and `allreduce`.
        """
        if self._whole:
            report = self.job.share(self._state.arrays, revision=self.steps)
            if report is not None and report.sources:
                self._state.put_back()
        self._flat.zero()
        if self.job.following(len(self._buckets)):
            self._flat.vector.zero_()
        else:
            compute()
            self._flat.gather()
        handles = [self.job.allreduce_async(each, "avg", deadline=self._deadline) for each in self._buckets]
        receipts = [handle.wait() for handle in handles]
        self.steps += 1
        if all(receipt.status is not Status.INSUFFICIENT for receipt in receipts):
            self._flat.scatter()
            self.optimizer.step()
            self._whole = True
        return receipts
