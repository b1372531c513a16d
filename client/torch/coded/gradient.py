# SPDX-License-Identifier: Apache-2.0
"""Training by coded gradients: each step has the exact gradient of all data, and does not wait for the late.

    plan = ultima.coded.Plan(12, stragglers=1)
    sampler = ultima.torch.CodedSampler(size, plan, rank, batch=256)
    coded = ultima.torch.CodedGradient(model, plan, size)
    while coded.number < steps:
        for indices, coefficient in sampler:
            (coefficient * sum_of_losses(model, indices)).backward()
            if coded.over():
                break                       # the step went on without this rank
        coded.step(optimizer)
    coded.finish()

The algorithm: Reisizadeh, Prakash, Pedarsani and Avestimehr, "CodedReduce: A fast and robust framework for gradient
aggregation in distributed learning", 2021.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ultima import Coded, Job, Options
from ultima.base.checks import check_switch, check_whole
from ultima.base.durations import Duration, deadline_s
from ultima.base.errors import DaemonError, DeadlineExceeded, Desync, InvalidArgument, RanksGone, Unsupported
from ultima.base.receipt import Receipt
from ultima.coded import Plan
from ultima.torch.backend.group import group_of
from ultima.torch.backend.receipt_log import ReceiptLog
from ultima.torch.coded.models import NAME, check_model, keep_ddp_quiet
from ultima.torch.partial.finishing import Finishing
from ultima.torch.partial.flat import FlatGradients
from ultima.torch.partial.model_sync import ModelSync

# What is made, given and received, and what is still on its way: multiples of the vector.
ARENA_VECTORS = 8
MEET_DEADLINE = "30m"

_opened: weakref.WeakKeyDictionary[Job, int] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class CodedSummary:
    """How the steps went, as this rank saw them."""

    steps: int = 0
    """Steps that ended, in whatever way."""
    exact: int = 0
    """Steps whose gradient was the exact one of all data."""
    over: int = 0
    """Steps that went on without this rank: it took their result, and had not computed its part to the end."""
    again: int = 0
    """How often a gradient was given once more, as the sum could not be had."""
    late: dict[int, int] = field(default_factory=dict)
    """Per rank: steps that did not wait for it."""
    waiting: int = 0
    """Steps that waited for everybody."""


class CodedGradient(Finishing):
    """The gradient of all |size| data points, from what ranks computed of it by |plan|. The same arguments, and a model
    of the same sizes, on all ranks; the model of rank 0 is everybody's to begin with.

    model: a plain module, or one in DDP whose backward passes run under `no_sync`.
    plan: one rank a host, and one host for each of the plan's. size: data points of a step.
    job: an ordinary job of the training's ranks; None for that of |group|, a process group of the backend "ultima",
        None for the default one (under DDP the model's).
    exact: True: a step whose exact gradient cannot be had is tried again, |attempts| times, with what was computed;
        False: it goes on with the best estimate, and its receipt says so.
    deadline: of an attempt, the job's by default.
    seeded: the batches seed torch's generators (`CodedSampler.batches(step=coded.number)`), so that a model with
        dropout computes the same on all ranks that compute the same data.

    Gradients are views of one vector that is shared with the daemon. Raises InvalidArgument, Unsupported (models whose
    replicas would differ), Desync (ranks that differ in plan, size or model), and what `ultima.connect` raises.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        size: int,
        *,
        job: Job | None = None,
        group: dist.ProcessGroup | None = None,
        exact: bool = True,
        deadline: Duration | None = None,
        attempts: int = 12,
        seeded: bool = False,
    ) -> None:
        check_whole(size, "size", 1)
        check_whole(attempts, "attempts", 1)
        check_switch(exact, "exact")
        check_switch(seeded, "seeded")
        if deadline is not None:
            deadline_s(deadline, "deadline")
        check_model(model, seeded)
        if job is None:
            job = group_of(group if group is not None else getattr(model, "process_group", None)).job
        _check_plan(plan, job)
        self.plan, self.size = plan, size
        self.number = 0
        """Of the step that comes next, from 0."""
        self.log = ReceiptLog()
        """The receipts of the steps."""
        self._deadline, self._attempts = deadline, attempts
        self._summary = CodedSummary()
        self._made = False
        """The vector holds the gradient of this step."""
        self._missed = -1
        """The last step of which this rank was told that it is over, so that its own gradient may be incomplete."""
        self._jobs: list[Job] = []
        self._coded: Coded | None = None
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if job is not None:
            try:
                self._open(job, exact)
            except BaseException:
                self.close()
                raise
        keep_ddp_quiet(model)

    def _open(self, base: Job, exact: bool) -> None:
        number = _opened[base] = _opened.get(base, -1) + 1
        nbytes = sum(parameter.nbytes for parameter in self._parameters)
        # The coded job first: it compares the plans, and says by name what differs.
        options = Options(**self.plan.options(exact))
        job = base.beside(f"coded{number}", options, arena_bytes=ARENA_VECTORS * nbytes, bucket_bytes=nbytes)
        self._jobs.append(job)
        meetings = base.beside(f"coded{number}/meet", Options(policy="none"))
        self._jobs.append(meetings)
        _compare(meetings, {"size": self.size, "parameters": sum(each.numel() for each in self._parameters)})
        ModelSync(meetings, self._parameters, 0, MEET_DEADLINE).adopt_first()
        self._coded = job.coded(self.plan)
        self._flat = FlatGradients(self._parameters, job)
        self._result = torch.from_numpy(job.empty(nbytes, "uint8")).view(self._flat.vector.dtype)
        self._flat.zero()

    def over(self) -> bool:
        """Whether the step went on without this rank: then what it still computes for it is not needed, and `step`
        takes the result. Looks into shared memory, so it may be called after every batch.
        """
        if self._coded is None:
            return False
        with suppress(DaemonError):  # `step` says so, and attaches again
            if self._coded.over(self.number):
                self._missed = self.number
        return self._missed == self.number

    def collect(self) -> Receipt | None:
        """Puts the gradient of the mean loss over all data into the parameters' `grad`, and ends the step: for who has
        something to do with it before the optimizer's step (clipping, say). Call `zero_grad` afterwards.

        Returns the receipt; None in a job of one rank. Raises DeadlineExceeded or RanksGone when the exact gradient
        could not be had in all attempts: call it again, and what was computed is given once more. Raises Behind when
        the result of a step that this rank missed is here no more: then take the model from another rank, set `number`
        to the error's `go_on_with`, and call `zero_grad`.
        """
        if self._coded is None:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.size)
            self._summary.steps, self._summary.exact = self._summary.steps + 1, self._summary.exact + 1
            self.number += 1
            return None
        receipt = self._sum(self._coded)
        torch.div(self._result, self.size, out=self._flat.vector)
        self._flat.scatter()
        self._made = False
        self.number += 1
        self._account(receipt)
        return receipt

    def step(self, optimizer: torch.optim.Optimizer) -> Receipt | None:
        """`collect`, the optimizer's step, and `zero_grad`: the next step begins with gradients of 0."""
        receipt = self.collect()
        optimizer.step()
        self.zero_grad()
        return receipt

    def zero_grad(self) -> None:
        """Gradients of 0. What was computed for a step that failed is forgotten."""
        self._made = False
        if self._coded is not None:
            self._flat.zero()
        else:
            for parameter in self._parameters:
                parameter.grad = None

    def summary(self) -> CodedSummary:
        """How the steps went. Goes on counting."""
        return self._summary

    def finish(self) -> None:
        """To be called at the end of training: waits for ranks that have not had their last result, and leaves. As a
        context manager it does this at the end of the block.
        """
        if len(self._jobs) == 2:
            with suppress(RanksGone):
                self._jobs[-1].barrier(deadline=MEET_DEADLINE)
        self.close()

    def close(self) -> None:
        """Leaves at once. Idempotent."""
        self._coded = None
        while self._jobs:
            self._jobs.pop().close()

    def __getstate__(self) -> NoReturn:
        raise InvalidArgument(NAME, "pickled", "the model's state_dict(): jobs cannot be pickled")

    def _sum(self, coded: Coded) -> Receipt:
        """The sum over all data, in the vector of results."""
        if not self._made and self.over():
            self._summary.over += 1
            return coded.wait(self.number, deadline=self._deadline, out=self._result).receipt
        if not self._made:
            self._flat.gather()
            self._made = True
        for attempt in range(self._attempts):
            try:
                return coded.reduce(self._flat.vector, self.number, deadline=self._deadline, out=self._result)
            except (DeadlineExceeded, RanksGone):
                if attempt + 1 == self._attempts:
                    raise
                self._summary.again += 1
        raise AssertionError("at least one attempt")

    def _account(self, receipt: Receipt) -> None:
        self.log.add(receipt)
        self._summary.steps += 1
        self._summary.exact += bool(receipt.exact)
        self._summary.waiting += not receipt.late
        for rank in receipt.late:
            self._summary.late[rank] = self._summary.late.get(rank, 0) + 1


def _check_plan(plan: Plan, job: Job | None) -> None:
    if not isinstance(plan, Plan):
        raise InvalidArgument("plan", type(plan).__name__, "an ultima.coded.Plan")
    ranks = 1 if job is None else job.world_size
    if plan.hosts != ranks:
        raise InvalidArgument("plan", f"one for {plan.hosts} ranks", f"one for {ranks}, as there are in the job")
    if job is not None and len(job.hosts) != ranks:
        raise Unsupported(NAME, f"{ranks} ranks on {len(job.hosts)} hosts: a coded job has one rank a host")


def _compare(job: Job, mine: dict[str, int]) -> None:
    """Raises Desync on all ranks if one of them names other numbers."""
    names, told = list(mine), np.array(list(mine.values()), dtype=np.int64)
    found = np.empty(len(told) * job.world_size, dtype=np.int64)
    job.all_gather(told, found, deadline=MEET_DEADLINE)
    for rank, theirs in enumerate(_rows(found, len(told))):
        for at, name in enumerate(names):
            if theirs[at] != told[at]:
                raise Desync(rank, name, int(told[at]), theirs[at])


def _rows(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], width: int) -> Sequence[list[int]]:
    return [list(map(int, row)) for row in values.reshape(-1, width)]
