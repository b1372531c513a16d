# SPDX-License-Identifier: Apache-2.0
"""Partial collectives under DDP: a hook that answers for all buckets of a backward pass together.

    model = DistributedDataParallel(model, broadcast_buffers=False)
    state = PartialState(model, policy="majority")
    model.register_comm_hook(state, partial_hook)
    while state.rounds < 10_000:
        ...                             # an ordinary training loop
    state.finish()

The buckets are collected in one vector, parameter by parameter: DDP cuts its buckets anew after the first step, and
ranks at different steps must mean the same by an element. With the last bucket the vector is given, and all buckets'
futures complete with the average; a late rank has the newest one at once.
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.

from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ultima import Options
from ultima.base.durations import Duration
from ultima.base.errors import InvalidArgument
from ultima.torch.hooks.trace import span
from ultima.torch.partial.rounds import Rounds, TakesPart, with_policy


class PartialState(TakesPart):
    """The state of `partial_hook`; one for each model. Arguments as of `EagerSGD`, the same on all ranks.

    model: wrapped in DDP, over a process group of the backend "ultima". Refused with find_unused_parameters, or with
    buffers that DDP broadcasts: each of those makes every step wait for all ranks.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        policy: str = "majority",
        *,
        options: Options | None = None,
        deadline: Duration | None = None,
        divisor: str | None = None,
        local_reduce: str | None = None,
        sync_every: int = 100,
    ) -> None:
        check_model(model)
        self._rounds = Rounds(
            list(model.parameters()),
            with_policy(options, policy),
            name="ddp",
            job=None,
            group=model.process_group,
            local_reduce=local_reduce,
            divisor=divisor,
            deadline=deadline,
            sync_every=sync_every,
        )
        self._index = {id(parameter): number for number, parameter in enumerate(self._rounds.parameters)}
        self._open: list[tuple[GradBucket, torch.futures.Future[torch.Tensor]]] = []
        # Before a forward pass nobody holds on to parameters.
        self._before = model.register_forward_pre_hook(self._meet)

    def finish(self) -> None:
        """To be called at the end of training: comes to all meetings of ranks that train on. Afterwards all ranks hold
        the same parameters; backward passes average nothing any more.
        """
        self._before.remove()
        self._rounds.finish()

    def close(self) -> None:
        """Leaves without a meeting. Idempotent."""
        self._before.remove()
        self._rounds.close()

    def collect(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Takes a bucket; with the last one gives all, and completes every bucket's future."""
        rounds = self._rounds
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if rounds.partial is None:
            future.set_result(bucket.buffer())
            return future
        if bucket.index() == 0:
            self._open.clear()  # of a backward pass that failed
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            rounds.flat.views[self._index[id(parameter)]].copy_(gradient)
        self._open.append((bucket, future))
        if bucket.is_last():
            self._average()
        return future

    def _average(self) -> None:
        rounds = self._rounds
        rounds.summary.steps += 1
        rounds.average()
        done, self._open = self._open, []
        for bucket, future in done:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                gradient.copy_(rounds.flat.views[self._index[id(parameter)]])
            future.set_result(bucket.buffer())

    def _meet(self, model: torch.nn.Module, _inputs: Any) -> None:
        if model.training and self._rounds.partial is not None:
            self._rounds.sync.if_due(self._rounds.count)


def partial_hook(state: PartialState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages the gradients of a backward pass over the ranks that are in its round, as |state| says.

    Raises, with the last bucket, as `ultima.Partial.allreduce`.
    """
    with span(f"ultima bucket {bucket.index()}"):
        return state.collect(bucket)


def check_model(model: Any) -> None:
    """Raises InvalidArgument for models with which every step would wait for all ranks after all."""
    if not isinstance(model, DistributedDataParallel):
        raise InvalidArgument("model", type(model).__name__, "a model in DistributedDataParallel")
    if model.find_unused_parameters:
        raise InvalidArgument(
            "find_unused_parameters", True, "False: DDP adds up what was used over all ranks in each backward pass"
        )
    if model.broadcast_buffers and next(iter(model.module.buffers()), None) is not None:
        raise InvalidArgument("broadcast_buffers", True, "False: DDP broadcasts them before each forward pass")
