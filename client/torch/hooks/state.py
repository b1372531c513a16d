# SPDX-License-Identifier: Apache-2.0
"""What a communication hook knows from one step to the next, and what the ranks tell each other about it.

Each rank has receipts of its own, so each knows only what *it* missed. Once a step the ranks add up their counts in one
small reliable op (16 bytes per bucket and 8 more); from the sums every rank draws the same conclusions:

    a bucket that lost more than its budget goes in reliable mode next time
    a step in which a bucket was INSUFFICIENT anywhere, or failed, is taken by nobody
    the parameters are averaged now and then, if anything went missing since the last time

The exchange is a barrier: it waits for the slowest rank, which a bounded op does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from ultima.base.checks import check_whole
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument
from ultima.base.receipt import Status
from ultima.torch.backend.group import UltimaProcessGroup, group_of
from ultima.torch.backend.staging import StagedWork
from ultima.torch.backend.work import UltimaWork
from ultima.torch.hooks import hadamard
from ultima.torch.hooks.bucket_options import Bucket, BucketOptions, Policy, check_table, options_of
from ultima.torch.hooks.loss_budget import Account, BucketKey, LossBudget
from ultima.torch.hooks.parts import Part


@dataclass(slots=True)
class HookSummary:
    """What the ranks of a job lost and spent, as they agreed on it. Bytes are sums over all ranks, times this rank's
    own, in seconds.
    """

    steps: int = 0
    """Steps on which the ranks exchanged their counts."""
    skipped: int = 0
    """Of those, the ones that no rank took."""
    ops: int = 0
    """Buckets that this rank sent."""
    made_reliable: int = 0
    """Of those, the ones that went in reliable mode because their budget was used up."""
    expected_bytes: int = 0
    """What was due, of all buckets whose counts were exchanged."""
    missing_bytes: int = 0
    """How much of it was missing."""
    agree_s: float = 0.0
    """Time spent in the exchanges."""
    syncs: int = 0
    """How often `guard` averaged the parameters."""
    sync_s: float = 0.0
    """Time spent in that, in seconds."""
    divergence: float = 0.0
    """How far the replicas had drifted apart at the last sync: the largest difference of an element to the average."""


class Sent:
    """A bucket on its way. Either `wait` or `future`, once."""

    def __init__(self, tensor: torch.Tensor, work: Any, number: int | None) -> None:
        self._tensor = tensor
        self._work = work
        self._number = number

    def wait(self) -> None:
        """Returns when the average is in the tensor. Raises what became of the op otherwise."""
        self._work.wait()
        self._decode()

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Completes with the tensor."""
        averaged: torch.futures.Future[torch.Tensor] = self._work.get_future().then(self._take)
        return averaged

    def _take(self, done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        done.value()  # raises what became of the op
        self._decode()
        return self._tensor

    def _decode(self) -> None:
        if self._number is not None:
            hadamard.decode(self._tensor, self._number)


@dataclass(slots=True)
class _Open:
    """What this rank knows of the step that is under way."""

    works: list[tuple[BucketKey, Any]] = field(default_factory=list)
    counts: dict[BucketKey, list[float]] = field(default_factory=dict)
    """Missing and expected bytes, in the order in which the buckets were first sent."""
    insufficient: bool = False


class HookState:
    """The state of `allreduce_hook`; one for each model.

    group: the process group of the backend "ultima"; None for the default one.
    mode, deadline: of the buckets, as in `ultima.Job.allreduce`; None for what ULTIMA_MODE and ULTIMA_DEADLINE say.
    hadamard: whether float32 buckets that may lose something travel transformed (hadamard.py). For buckets on the CPU
        `ultima.Options(hadamard="on")` has the daemon do it, which is faster; not both.
    policy: what single buckets do differently: a table by index or "last", or a function of `Bucket`. It must say the
        same mode on all ranks.
    budget: how much may go missing; None for any amount.
    sync_every: every so many steps `guard` averages the parameters if anything went missing meanwhile; 0 for never.

    Can be pickled, between steps and without its process group: the copy uses the default one. Raises InvalidArgument.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        mode: str | None = None,
        deadline: Duration | None = None,
        hadamard: bool = False,
        policy: Policy | None = None,
        budget: LossBudget | None = LossBudget(),
        sync_every: int = 100,
    ) -> None:
        if policy is not None and not callable(policy):
            check_table(policy)
        if budget is not None and not isinstance(budget, LossBudget):
            raise InvalidArgument("budget", budget, "a LossBudget, or None")
        check_whole(sync_every, "sync_every", 0)
        self._group = group
        self._default = BucketOptions(mode, deadline, hadamard)
        self._policy = policy
        self._budget = budget
        self._account = Account(budget or LossBudget(1.0))
        self._sync_every = sync_every
        self._open = _Open()
        self._asked = False
        self._lost_since_sync = False
        self._steps_since_sync = 0
        self._summary = HookSummary()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_group": None, "_open": _Open()}

    @property
    def group(self) -> UltimaProcessGroup:
        """The process group. Raises InvalidArgument when it is of another backend."""
        return group_of(self._group)

    def summary(self) -> HookSummary:
        """What was lost and spent so far."""
        return replace(self._summary)

    def share_missing(self, index: int) -> float:
        """The largest share of its bytes that a bucket of this index misses over the window of the budget."""
        return max((self._account.share(key) for key in self._account.buckets() if key.index == index), default=0.0)

    # A step

    def send(self, tensor: torch.Tensor, index: int, last: bool, parts: Callable[[], Sequence[Part]] = tuple) -> Sent:
        """Starts averaging a bucket in place. The same calls on all ranks.

        tensor: the bucket's elements, of one dimension.
        index: of the bucket, from 0 in the order of sending.
        last: whether it is the last one of a backward pass.
        parts: tells the parameters in it, for states that treat each by itself; this one does not ask.
        """
        if any(key.index == index for key, _ in self._open.works):
            self._begin_backward()
        nbytes = tensor.numel() * tensor.element_size()  # of a sparse tensor: as if it were dense, the same everywhere
        bucket = Bucket(index, nbytes, tensor.dtype, last)
        key = BucketKey(index, nbytes)
        options = options_of(self._policy, bucket) or self._default
        mode, deadline = options.mode or self._default.mode, options.deadline or self._default.deadline
        if self._budget is not None and mode != "reliable" and self._account.used_up(key):
            # A deadline for what may be incomplete is not one after which training should end.
            mode, deadline = "reliable", self.group.timeout_s
            self._summary.made_reliable += 1
        mixed = self._mixes(options)
        number = self._summary.ops if mixed and mode != "reliable" and tensor.dtype is torch.float32 else None
        if number is not None:
            hadamard.encode(tensor, number)
        work = self._start(tensor, replace(options, mode=mode, deadline=deadline), key, parts)
        self._open.works.append((key, work))
        self._summary.ops += 1
        return Sent(tensor, work, number)

    def step_ok(self) -> bool:
        """Whether the optimizer may take this step: False, on all ranks alike, if a bucket was INSUFFICIENT or failed
        on any of them. To be called on all ranks, after the backward pass. `guard` does it for you.

        Raises what a reliable op raises when the ranks cannot agree: DeadlineExceeded, RanksGone, DaemonLost.
        """
        self._asked = True
        return self._agree()

    def sync_if_due(self, tensors: Any) -> None:
        """Averages the tensors over all ranks, reliably, every `sync_every` steps if anything went missing meanwhile.

        tensors: a module, a mapping or an iterable, as `ultima.Job.sync_model` takes it, on any device. On all ranks,
        after the optimizer's step. Raises as that does.
        """
        job = self.group.job
        due = 0 < self._sync_every <= self._steps_since_sync
        if job is None or not due or not self._lost_since_sync:
            return
        started = time.perf_counter()
        given = _listed(tensors)
        here = [tensor.detach().cpu() for tensor in given]  # itself, where it is there already
        result = job.sync_model(here)
        for there, mean in zip(given, here, strict=True):
            if there.device.type != "cpu":
                there.detach().copy_(mean)
        self._summary.syncs += 1
        self._summary.sync_s += time.perf_counter() - started
        self._summary.divergence = result.divergence
        self._lost_since_sync = False
        self._steps_since_sync = 0

    # How

    def _mixes(self, options: BucketOptions) -> bool | None:
        """Whether a bucket travels transformed."""
        return self._default.hadamard if options.hadamard is None else options.hadamard

    def _start(
        self, tensor: torch.Tensor, options: BucketOptions, key: BucketKey, parts: Callable[[], Sequence[Part]]
    ) -> Any:
        """The work that averages a bucket: an UltimaWork, a StagedWork, or Gloo's in a group of one rank."""
        self._refuse_wire(options)
        return self.group.allreduce_with(tensor, mode=options.mode, deadline=options.deadline)

    def _refuse_wire(self, options: BucketOptions) -> None:
        if options.wire is not None:
            raise InvalidArgument("wire", options.wire, f"None in the policy of a {type(self).__name__}")

    def _begin_backward(self) -> None:
        """The first bucket came round again. If nobody asks for `step_ok`, the budget still needs the exchange."""
        if self._asked or not self._exchanges():
            self._fold()
        else:
            self._agree()

    def _exchanges(self) -> bool:
        """Whether the ranks tell each other their counts even if nobody asks for `step_ok`. Alike on all ranks."""
        return self._budget is not None

    def _facts(self, key: BucketKey) -> tuple[float, ...]:
        """What this rank tells of a bucket besides its counts, always as many numbers."""
        return ()

    def _learn(self, key: BucketKey, sums: Sequence[float]) -> None:
        """What all ranks told of a bucket by `_facts`, added up, of a step in which nothing failed."""

    def _fold(self) -> None:
        """Takes the receipts of ended ops into the counts."""
        works, self._open.works = self._open.works, []
        for key, work in works:
            with suppress(Exception):  # whoever waits for the bucket's future has raised it
                work.wait()
            count = self._open.counts.setdefault(key, [0.0, 0.0])
            if not isinstance(work, UltimaWork | StagedWork):
                continue  # Gloo's, in a group of one rank
            self._open.insufficient |= not work.is_success()
            for receipt in work.receipts:
                self._open.insufficient |= receipt.status is Status.INSUFFICIENT
                count[0] += receipt.bytes_missing
                count[1] += receipt.bytes_expected

    def _agree(self) -> bool:
        """Adds up all ranks' counts since the last time, draws the conclusions, and says whether all went well."""
        started = time.perf_counter()
        self._fold()
        mine, self._open = self._open, _Open()
        if not mine.counts or self.group.job is None:
            return True
        told = [float(mine.insufficient)]
        for key, count in mine.counts.items():
            told += *count, *self._facts(key)
        sums = torch.tensor(told, dtype=torch.float64, device="cpu")
        self.group.allreduce_with(sums, "sum", mode="reliable", deadline=self.group.timeout_s).wait()
        insufficient, *numbers = sums.tolist()
        each = len(numbers) // len(mine.counts)
        for at, key in enumerate(mine.counts):
            missing, expected, *facts = numbers[at * each : (at + 1) * each]
            self._account.add(key, missing, expected)
            self._summary.missing_bytes += int(missing)
            self._summary.expected_bytes += int(expected)
            self._lost_since_sync |= missing > 0
            if not insufficient:
                self._learn(key, facts)
        self._steps_since_sync += 1
        self._summary.steps += 1
        self._summary.skipped += insufficient > 0
        self._summary.agree_s += time.perf_counter() - started
        return not insufficient


def _listed(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.nn.Module):
        return [*tensors.parameters(), *tensors.buffers()]
    return list(tensors.values() if isinstance(tensors, Mapping) else tensors)


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """All that an optimizer changes, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
