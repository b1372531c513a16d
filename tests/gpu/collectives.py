# SPDX-License-Identifier: Apache-2.0
"""Every collective of tensors on a device, against values made here: those that Gloo does for us, and their forms."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RANKS, COUNT = range(WORLD), 1000
HALF = COUNT // WORLD

# What was found, and what is wanted: whole numbers, the same in whatever order they are added.
Pair = tuple[torch.Tensor, torch.Tensor]


def of(rank: int) -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.float32) + 10_000 * rank


TOTAL = torch.stack([of(rank) for rank in RANKS]).sum(0)
EVERY = torch.stack([of(rank) for rank in RANKS])
PARTS = EVERY.view(WORLD, WORLD, HALF)[:, RANK]  # what each rank has for this one


class Calls:
    """Each is given this rank's tensor, which a kernel before it has filled late, and a maker of empty ones."""

    @staticmethod
    def all_reduce(mine: torch.Tensor, empty: Any) -> list[Pair]:
        dist.all_reduce(mine)
        return [(mine, TOTAL)]

    @staticmethod
    def all_reduce_max(mine: torch.Tensor, empty: Any) -> list[Pair]:
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        return [(mine, of(WORLD - 1))]

    @staticmethod
    def all_reduce_coalesced(mine: torch.Tensor, empty: Any) -> list[Pair]:
        other = mine[:7] * 2
        dist.all_reduce_coalesced([mine, other])
        return [(mine, TOTAL), (other, 2 * TOTAL[:7])]

    @staticmethod
    def coalescing_manager(mine: torch.Tensor, empty: Any) -> list[Pair]:
        other = mine[:7] * 2
        with dist.distributed_c10d._coalescing_manager(device=mine.device, async_ops=True) as manager:
            dist.all_reduce(mine)
            dist.all_reduce(other)
        manager.wait()
        return [(mine, TOTAL), (other, 2 * TOTAL[:7])]

    @staticmethod
    def broadcast(mine: torch.Tensor, empty: Any) -> list[Pair]:
        dist.broadcast(mine, src=1)
        return [(mine, of(1))]

    @staticmethod
    def reduce(mine: torch.Tensor, empty: Any) -> list[Pair]:
        dist.reduce(mine, 0)
        return [(mine, TOTAL)] if RANK == 0 else []

    @staticmethod
    def gather(mine: torch.Tensor, empty: Any) -> list[Pair]:
        out = [empty(COUNT) for _ in RANKS] if RANK == 0 else None
        dist.gather(mine, out)
        return list(zip(out or [], EVERY, strict=False))

    @staticmethod
    def scatter(mine: torch.Tensor, empty: Any) -> list[Pair]:
        out = empty(COUNT)
        dist.scatter(out, [mine + 10_000 * rank for rank in RANKS] if RANK == 0 else None)
        return [(out, of(RANK))]

    @staticmethod
    def all_gather(mine: torch.Tensor, empty: Any) -> list[Pair]:
        out = [empty(COUNT) for _ in RANKS]
        dist.all_gather(out, mine)
        return list(zip(out, EVERY, strict=True))

    @staticmethod
    def all_gather_into_tensor(mine: torch.Tensor, empty: Any) -> list[Pair]:
        found = []
        for shape in ((WORLD * COUNT,), (WORLD, COUNT), (1, WORLD * COUNT)):
            dist.all_gather_into_tensor(out := empty(*shape), mine)
            found.append((out.view(WORLD, COUNT), EVERY))
        return found

    @staticmethod
    def all_gather_functional(mine: torch.Tensor, empty: Any) -> list[Pair]:
        return [(all_gather_tensor(mine, 0, list(RANKS)).view(WORLD, COUNT), EVERY)]

    @staticmethod
    def reduce_scatter(mine: torch.Tensor, empty: Any) -> list[Pair]:
        out = empty(HALF)
        dist.reduce_scatter(out, list(mine.split(HALF)))
        return [(out, TOTAL.view(WORLD, HALF)[RANK])]

    @staticmethod
    def reduce_scatter_tensor(mine: torch.Tensor, empty: Any) -> list[Pair]:
        found = []
        for shape in ((COUNT,), (WORLD, HALF), (1, COUNT)):
            dist.reduce_scatter_tensor(out := empty(HALF), mine.view(shape))
            found.append((out, TOTAL.view(WORLD, HALF)[RANK]))
        return found

    @staticmethod
    def all_to_all_single(mine: torch.Tensor, empty: Any) -> list[Pair]:
        dist.all_to_all_single(out := empty(COUNT), mine)
        dist.all_to_all_single(split := empty(COUNT), mine, [HALF] * WORLD, [HALF] * WORLD)
        return [(out.view(WORLD, HALF), PARTS), (split.view(WORLD, HALF), PARTS)]

    @staticmethod
    def all_to_all(mine: torch.Tensor, empty: Any) -> list[Pair]:
        out = [empty(HALF) for _ in RANKS]
        dist.all_to_all(out, list(mine.split(HALF)))
        return list(zip(out, PARTS, strict=True))

    @staticmethod
    def barrier(mine: torch.Tensor, empty: Any) -> list[Pair]:
        dist.barrier()
        return []

    @staticmethod
    def send_and_recv(mine: torch.Tensor, empty: Any) -> list[Pair]:
        out, back = empty(COUNT), empty(COUNT)
        if RANK == 0:
            dist.send(mine, 1)
            dist.recv(out, 1)
        else:
            dist.recv(out, 0)
            dist.send(mine, 0)
        if RANK == 0:
            dist.send(mine, 1)
            return [(out, of(1))]
        source = dist.recv(back)
        return [(out, of(0)), (back, of(0)), (torch.tensor([source]), torch.tensor([0]))]

    @staticmethod
    def batch_isend_irecv(mine: torch.Tensor, empty: Any) -> list[Pair]:
        out, other = empty(COUNT), 1 - RANK
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, out, other)]):
            work.wait()
        return [(out, of(other))]

    @staticmethod
    def all_gather_coalesced(mine: torch.Tensor, empty: Any) -> list[Pair]:
        outputs = [[empty(COUNT), empty(7)] for _ in RANKS]
        dist.all_gather_coalesced(outputs, [mine, mine[:7] * 2])
        return [pair for rank in RANKS for pair in zip(outputs[rank], (of(rank), 2 * of(rank)[:7]), strict=True)]


def wrong_of_all(device: torch.device, busy: Callable[[float], None]) -> list[str]:
    """What is to be said of those that raised, or gave other values."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)

    wrong = []
    for name in (name for name in vars(Calls) if not name.startswith("_")):
        mine = empty(COUNT)
        busy(3.0)
        mine.copy_(of(RANK), non_blocking=True)
        try:
            pairs = getattr(Calls, name)(mine, empty)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}"[:300])
            continue
        for at, (found, want) in enumerate(pairs):
            if not torch.equal(found.cpu(), want):
                wrong.append(f"{name}, result {at}: {found.flatten()[:3].tolist()}, not {want.flatten()[:3].tolist()}")
    return wrong
