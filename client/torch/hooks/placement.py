# SPDX-License-Identifier: Apache-2.0
"""Puts a tensor's memory where the daemon can reach it, so that no op on it needs a copy.

DDP allocates its buckets in C++, with torch's allocator, and views of them are all over the reducer (and, with
gradient_as_bucket_view, in the parameters' `grad`). They all share one storage, though, and torch can exchange the
memory behind two storages: so the bucket's storage gets a block of the arena, once, and every view moves along. The
block goes back to the arena when DDP drops the bucket.

Half of the arena stays free: for buckets that found no room, and for `sync_model`. A model that needs more memory than
the other half has the rest of its buckets copied in and out, as everybody's were.
"""

from __future__ import annotations

import torch

from ultima import Job
from ultima.base.errors import HandleError, ResourceExhausted


def place(tensor: torch.Tensor, job: Job) -> bool:
    """Moves the memory behind a tensor into the job's arena, with all views of it. True if it is there afterwards.

    Not moved, and left as it is: what is not on the CPU, is a sparse tensor, is part of a larger storage, or finds no
    room. While it happens nobody else may touch the tensor. Each rank for itself: the others need not do the same.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.nbytes:
        return False
    if job.holds(tensor.data_ptr(), tensor.nbytes):
        return True
    storage = tensor.untyped_storage()
    if not hasattr(storage, "_swap_data_ptr_"):  # before torch 2.12
        return False
    if storage.nbytes() != tensor.nbytes or job.arena_free_bytes - tensor.nbytes < job.arena_bytes // 2:
        return False
    try:
        block = torch.from_numpy(job.empty(tensor.nbytes, "uint8")).untyped_storage()
    except (ResourceExhausted, HandleError):
        return False
    block.copy_(storage)
    storage._swap_data_ptr_(block)
    return True
