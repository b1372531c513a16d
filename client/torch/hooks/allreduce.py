# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for DDP and FSDP2, and what belongs around the optimizer.

Unhooked, DDP divides every gradient by the number of ranks before it asks for a sum, so an element that a rank did not
reach in time comes out too small by that rank's share. The hooks here ask for an average instead: Ultima divides every
element by the number of ranks that are in it.

    model.register_comm_hook(None, ultima.torch.average_hook)

    state = HookState(mode="best_effort", deadline="250ms")         # or with a mind of its own
    model.register_comm_hook(state, allreduce_hook)
    guard(optimizer, state)
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from ultima.base.errors import InvalidArgument
from ultima.torch.backend.accelerator import device_of
from ultima.torch.backend.group import group_if_ours
from ultima.torch.hooks.parts import parts_of, parts_of_shards
from ultima.torch.hooks.placement import place
from ultima.torch.hooks.state import HookState, parameters_of
from ultima.torch.hooks.trace import span


def average_hook(state: dist.ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the ranks whose gradients came. |state| is the process group, None for the default one.

    The second parameter must be called `bucket`: DDP looks it up by that name.
    """
    with span(f"ultima bucket {bucket.index()}"):
        _place(bucket, state)
        buffer = bucket.buffer()
        ours = group_if_ours(state)
        if ours is not None and device_of(buffer) is not None:
            work = ours.allreduce_with(buffer)  # torch's call has another library do it
        else:
            work = dist.all_reduce(buffer, op=dist.ReduceOp.AVG, group=state, async_op=True)
    assert work is not None, "this rank is not in the group of its own model"
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(_first)
    return averaged


def allreduce_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the ranks whose gradients came, as its |state| says: mode, deadline, budget.

        model.register_comm_hook(HookState(...), allreduce_hook)

    Raises InvalidArgument for a group of another backend, and what `ultima.torch.UltimaProcessGroup.allreduce` raises.
    """
    with span(f"ultima bucket {bucket.index()}"):
        _place(bucket, state.group)
        return state.send(bucket.buffer(), bucket.index(), bucket.is_last(), lambda: parts_of(bucket)).future()


def hook_fsdp(model: torch.nn.Module, state: HookState) -> None:
    """Has an FSDP2 model (`fully_shard`) average its gradient shards over |state|'s group, the replicas.

    The model is sharded over a mesh of one dimension and must not replicate by itself: torch calls the hook after a
    reduction of its own. Index 0 is the module whose gradients are ready first if modules run in order. Raises
    InvalidArgument for a model without FSDP2 modules.
    """
    from torch.distributed.fsdp import FSDPModule  # only for those who have such models: the import takes a second

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise InvalidArgument("model", type(model).__name__, "a module to which fully_shard was applied")
    for index, module in enumerate(reversed(modules)):
        module.set_all_reduce_hook(_fsdp_hook(module, state, index, index == len(modules) - 1))


def guard(optimizer: torch.optim.Optimizer, state: HookState) -> None:
    """From now on `optimizer.step()` asks `state.step_ok()` first, does nothing where that says no, and averages the
    parameters when the state's `sync_every` says so.

    It must be called on all ranks alike. InvalidArgument for a step with a closure: its backward passes come too late.
    """
    inner = optimizer.step

    def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        if any(argument is not None for argument in (*args, *kwargs.values())):
            raise InvalidArgument("closure", (*args, *kwargs.values())[0], "none: a guarded step follows the backward")
        if state.step_ok():
            inner()
            state.sync_if_due(parameters_of(optimizer))

    # A bound method, as learning rate schedulers expect it.
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def _place(bucket: GradBucket, group: dist.ProcessGroup | None) -> None:
    """DDP keeps a bucket's memory from step to step: in the arena, it need not be copied there."""
    found = group_if_ours(group)
    if found is not None and found.job is not None:
        place(bucket.buffer(), found.job)


def _fsdp_hook(module: Any, state: HookState, index: int, last: bool) -> Callable[[torch.Tensor], None]:
    def hook(reduce_output: torch.Tensor) -> None:
        with span(f"ultima bucket {index}"):
            state.send(reduce_output, index, last, lambda: parts_of_shards(module, reduce_output)).wait()

    return hook


def _first(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]
