# SPDX-License-Identifier: Apache-2.0
"""Which parameters a bucket is made of, for states that keep something for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket


@dataclass(frozen=True, slots=True)
class Part:
    """A parameter's place in a flat bucket, in elements. |parameter| is the object in the model, which says by its
    identity which one it is, or a name; |dims| are the dimensions of the whole parameter.
    """

    parameter: torch.Tensor | str
    start: int
    size: int
    dims: int


def parts_of(bucket: GradBucket) -> list[Part]:
    """Of a bucket of DDP's, in the order of its memory. None of a bucket that is a sparse tensor."""
    buffer = bucket.buffer()
    if buffer.layout is not torch.strided:
        return []
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    first = int(buffer.storage_offset())
    found = [
        Part(parameter, int(gradient.storage_offset()) - first, gradient.numel(), parameter.dim())
        for parameter, gradient in pairs
    ]
    return sorted(found, key=lambda part: part.start)


def parts_of_shards(module: Any, reduced: torch.Tensor) -> list[Part]:
    """Of what an FSDP2 module reduced: this rank's shards of its parameters, each padded to the largest rank's.

    Torch hands a hook the flat tensor alone, so the places follow from the module's group of parameters. Where they do
    not add up (parameters without a gradient are left out of the tensor) the list is empty.
    """
    groups = module._get_fsdp_state()._fsdp_param_groups
    found, at = [], 0
    for each in groups[0].fsdp_params if len(groups) == 1 else ():
        padded = each.padded_sharded_param_size.numel()
        found.append(Part(each.sharded_param, at, padded, len(each._orig_size)))
        at += padded
    return found if at == reduced.numel() else []


def covered(parts: Sequence[Part], elements: int) -> bool:
    """Whether the parts follow each other and are all of a tensor of so many elements."""
    at = 0
    for part in parts:
        if part.start != at:
            return False
        at += part.size
    return at == elements
