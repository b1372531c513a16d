# SPDX-License-Identifier: Apache-2.0
"""A case of `collectives.py`: single tensors of the right size in any shape."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, ReduceScatterOptions

from ultima.torch.backend.delegate import DelegatingProcessGroup
from ultima.torch.backend.group import group_of

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RANKS = range(WORLD)


def shaped() -> dict[str, Any]:
    """Tensors of the right size whose first dimension says nothing of ranks. Those on CUDA are Gloo's, so each of these
    goes to Gloo too.
    """
    wrong, values = [], torch.arange(6.0)
    mine, every = values + 10 * RANK, torch.cat([values + 10 * rank for rank in RANKS])
    whole, total = values.repeat(WORLD) * (RANK + 1), values * sum(rank + 1 for rank in RANKS)
    exchanged = torch.cat([values + 10 * RANK + rank for rank in RANKS])
    group, by_gloo = group_of(None), DelegatingProcessGroup
    for large in ((WORLD * 6,), (WORLD, 6), (1, WORLD * 6), (3, WORLD * 2), (WORLD, 1, 6)):
        for small in ((6,), (2, 3), (1, 6)):
            gathered, apart, part, alone = (
                torch.zeros(large),
                torch.zeros(large),
                torch.zeros(small),
                torch.zeros(small),
            )
            dist.all_gather_into_tensor(gathered, mine.view(small))
            by_gloo._allgather_base(group, apart, mine.view(small), AllgatherOptions()).wait()
            dist.reduce_scatter_tensor(part, whole.view(large))
            by_gloo._reduce_scatter_base(group, alone, whole.view(large), ReduceScatterOptions()).wait()
            moved, sent = torch.zeros(large), torch.zeros(large)
            dist.all_to_all_single(moved, every.view(large) + RANK)
            by_gloo.alltoall_base(group, sent, every.view(large) + RANK, [], [], AllToAllOptions()).wait()
            for name, got, want in (
                ("all_gather", gathered, every),
                ("all_gather by Gloo", apart, every),
                ("all_to_all", moved, exchanged),
                ("all_to_all by Gloo", sent, exchanged),
                ("reduce_scatter", part, total),
                ("reduce_scatter by Gloo", alone, total),
            ):
                if not torch.equal(got.flatten(), want):
                    wrong.append(f"{name} {large} {small}: {got.flatten().tolist()}")
    for name, call in {
        "all_gather": lambda: dist.all_gather_into_tensor(torch.zeros(WORLD * 6 + 1), mine),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.zeros(5), whole),
    }.items():
        try:
            call()
            wrong.append(f"{name} of sizes that do not fit")
        except RuntimeError:
            pass
    return {"wrong": wrong}
