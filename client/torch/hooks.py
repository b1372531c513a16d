# SPDX-License-Identifier: Apache-2.0
"""DDP communication hooks.

Unhooked, DDP divides every gradient by the number of ranks before it asks for a sum, so an element that a rank did not
reach in time comes out too small by that rank's share. The hook here asks for an average instead: Ultima divides every
element by the number of ranks that are in it.

    model.register_comm_hook(None, ultima.torch.average_hook)
"""

# No `from __future__ import annotations` here: DDP compares a hook's annotations with the types themselves.

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket


def average_hook(state: dist.ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the ranks whose gradients came. |state| is the process group, None for the default one.

    The second parameter must be called `bucket`: DDP looks it up by that name.
    """
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=state, async_op=True)
    assert work is not None, "this rank is not in the group of its own model"
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(_first)
    return averaged


def _first(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]
