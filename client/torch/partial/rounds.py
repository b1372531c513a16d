# SPDX-License-Identifier: Apache-2.0
"""A training's part in the rounds of a partial job: its jobs, its vector, and the account of how the rounds went.

Two jobs are opened beside the training's own: the partial one for the gradients, and an ordinary one for meetings of
all ranks, which come at other moments of each rank's program than the collectives that it calls itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from ultima import Job, Options, Partial
from ultima.base.checks import check_whole
from ultima.base.durations import Duration, deadline_s
from ultima.base.errors import InvalidArgument
from ultima.base.receipt import Receipt, Status
from ultima.torch.backend.group import group_of
from ultima.torch.backend.receipt_log import ReceiptLog
from ultima.torch.partial.flat import FlatGradients, check_parameters
from ultima.torch.partial.model_sync import ModelSync, SyncSummary
from ultima.v1.job_options import POLICIES

# Of what is composed, waits and is in an op, and of results on their way: multiples of the vector.
ARENA_VECTORS = 8
SYNC_DEADLINE = "30m"

_opened: weakref.WeakKeyDictionary[Job, int] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class PartialSummary:
    """How the rounds went, as this rank saw them."""

    steps: int = 0
    """Of this rank."""
    averaged: int = 0
    """Averages that this rank took."""
    local: int = 0
    """Steps that took this rank's own gradient, as no newer average was there."""
    idle: int = 0
    """Steps that took nothing: the newest average had been taken already."""
    fresh: dict[int, int] = field(default_factory=dict)
    """Per rank: averages that its fresh gradient was in, of those that this rank took."""
    stale: dict[int, int] = field(default_factory=dict)
    missed: int = 0
    """Averages that this rank never took, as newer ones had come."""
    waited_s: float = 0.0
    """From when this host had something to give to the start of the round, summed over the averages that were taken."""
    sync: SyncSummary = field(default_factory=SyncSummary)

    def included_ratio(self, rank: int) -> float:
        """Share of the averages that this rank took in which |rank| was, 0 to 1."""
        return (self.fresh.get(rank, 0) + self.stale.get(rank, 0)) / self.averaged if self.averaged else 0.0


class RoundCounter:
    """Counts rounds by the numbers of their ops, which begin anew when all daemons were restarted."""

    def __init__(self) -> None:
        self.rounds = 0
        """Up to the newest that was seen, those that were missed among them."""
        self.missed = 0
        self._last = -1

    def saw(self, op_seq: int) -> bool:
        """The result of an op is there. False if it was seen before."""
        gap = op_seq - self._last if op_seq >= self._last else op_seq + 1
        self.missed += max(0, gap - 1) if self._last >= 0 else 0
        self.rounds += gap
        self._last = op_seq
        return gap > 0


class Rounds:
    """The part of one rank. Raises InvalidArgument and what `ultima.connect` raises. All arguments alike on all ranks.

    parameters: what is trained; those of rank 0 are everybody's to begin with.
    options: with a policy. job, group: the training's own job, or that of a process group; None for the default group.
    enter: False if a job for the gradients will be brought (`use`).
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        options: Options,
        *,
        name: str,
        job: Job | None,
        group: dist.ProcessGroup | None,
        local_reduce: str | None = None,
        divisor: str | None = None,
        deadline: Duration | None = None,
        sync_every: int = 0,
        enter: bool = True,
    ) -> None:
        if options.policy not in POLICIES or options.policy == "none":
            raise InvalidArgument("policy", options.policy, "one of " + ", ".join(POLICIES[1:]))
        check_whole(sync_every, "sync_every", 0)
        if deadline is not None:
            deadline_s(deadline, "deadline")
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        check_parameters(self.parameters)
        self.options = options
        self.deadline = deadline
        self.log = ReceiptLog()
        self.summary = PartialSummary()
        self.base = job if job is not None else group_of(group).job
        """The training's own job; None for a group of one rank, which has none."""
        self.partial: Partial | None = None
        """None in a group of one rank, and once this rank has left the rounds."""
        self._local_reduce, self._divisor = local_reduce, divisor
        self.counter = RoundCounter()
        self._jobs: list[Job] = []
        meetings = None
        if self.base is not None:
            number = _opened[self.base] = _opened.get(self.base, -1) + 1
            self.name = f"{name}{number}"
            meetings = self.base.beside(f"{self.name}/sync", Options(policy="none"))
            self._jobs.append(meetings)
        self.sync = ModelSync(meetings, self.parameters, sync_every, SYNC_DEADLINE)
        self.summary.sync = self.sync.summary
        try:
            self.sync.adopt_first()
            if self.base is not None and enter:
                nbytes = sum(parameter.nbytes for parameter in self.parameters)
                arena = ARENA_VECTORS * nbytes
                beside = self.base.beside(self.name, options, arena_bytes=arena, bucket_bytes=nbytes)
                self._jobs.append(beside)
                self.use(self._jobs[-1])
        except BaseException:
            self.close()
            raise

    def use(self, job: Job) -> None:
        """Takes part in the rounds of a partial job, and makes the vector in its memory."""
        self.partial = job.partial(local_reduce=self._local_reduce, divisor=self._divisor)
        self.flat = FlatGradients(self.parameters, job)

    @property
    def count(self) -> int:
        """Rounds up to the newest average that this rank has taken."""
        return self.summary.steps if self.base is None else self.counter.rounds

    def average(self, catch_up: bool = False) -> bool:
        """Averages the vector in place. False if the newest average was taken before, and the vector holds it again.

        A rank gives for the round after the newest that it has seen. With |catch_up| each of its steps has the number
        of a round; when the others are through, the newest average answers all steps that are left.
        """
        partial = self.partial
        assert partial is not None
        step = None if catch_up else max(partial.step, partial.newest + 1)
        receipt = partial.allreduce(self.flat.vector, step=step, deadline=self.deadline)
        if receipt.included and not self.counter.saw(receipt.op_seq):
            self.summary.idle += 1
            return False
        self.summary.missed = self.counter.missed
        self.took(receipt)
        return True

    def took(self, receipt: Receipt) -> None:
        """An average is taken, or after a round that did not come about the rank's own gradient."""
        self.log.add(receipt)
        if receipt.status is Status.INSUFFICIENT:
            self.summary.local += 1
            return
        self.summary.averaged += 1
        self.summary.waited_s += receipt.waited_s
        for counts, ranks in ((self.summary.fresh, receipt.fresh), (self.summary.stale, receipt.stale)):
            for rank in ranks:
                counts[rank] = counts.get(rank, 0) + 1

    def leave(self) -> None:
        """Ends this rank's part in the rounds; the others need not wait for it any more. Idempotent."""
        self.partial = None
        while len(self._jobs) > 1:
            self._jobs.pop().close()

    def finish(self) -> None:
        """Leaves, comes to all meetings of ranks that train on, and closes. Then all ranks hold the same parameters."""
        self.leave()
        self.sync.finish()
        self.close()

    def close(self) -> None:
        """Leaves all jobs. Idempotent."""
        self.leave()
        while self._jobs:
            self._jobs.pop().close()


class TakesPart:
    """What whoever takes part in rounds tells of them: an optimizer, or the state of a hook."""

    _rounds: Rounds

    @property
    def rounds(self) -> int:
        """Rounds of the job up to the newest average that this rank has seen. Ranks that train until this reaches a
        number end together, however many steps each has made.
        """
        return self._rounds.count

    def summary(self) -> PartialSummary:
        """What was averaged, with whom, and what meetings cost. Goes on counting."""
        return self._rounds.summary

    @property
    def log(self) -> ReceiptLog:
        """The receipts of the averages that this rank took."""
        return self._rounds.log

    def sync(self) -> None:
        """Averages the parameters of all ranks, reliably. To be called on all of them."""
        self._rounds.sync.now()


def with_policy(options: Options | None, policy: str) -> Options:
    """|options| with |policy| in it."""
    return replace(options or Options(), policy=policy)
