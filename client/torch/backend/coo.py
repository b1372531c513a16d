# SPDX-License-Identifier: Apache-2.0
"""Sums and averages of torch's sparse tensors (`nn.Embedding(sparse=True)`), which hold some rows of a large table.

The ranks tell each other how many rows they have; then every rank's rows travel to all others, reliably, and each rank
adds them up in the order of the ranks, so that all have the same bits. The table itself is never made: memory and bytes
follow the rows that are there, times the number of ranks. Elements of any type travel as they are.

The first exchange is over before the call returns, for what follows depends on it; the rows are under way afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

import ultima
from ultima.base.durations import Duration
from ultima.base.errors import Desync, InvalidArgument
from ultima.sparse.exchange import PIECE_BYTES_MAX, start_gather
from ultima.sparse.kernels import Bytes
from ultima.torch.backend.elements import FLOATS, INTEGERS

SUMMED = ("sum", "avg")
_KINDS = sorted((*FLOATS, *INTEGERS, torch.int16, torch.int8, torch.uint8), key=str)
_PLACE_BYTES = 8
_DIMS_MAX = 8
_ALIKE = ("dtype", "sparse_dim", *(f"shape[{at}]" for at in range(_DIMS_MAX)))
_FACTS = len(_ALIKE) + 2  # and this rank's rows and room


def summed_here(tensor: torch.Tensor, op: str | None) -> bool:
    """Whether Ultima reduces such a tensor: sparse, in coordinates, of a type whose sums are of it, on any device. An
    average is of floating-point numbers."""
    if tensor.layout is not torch.sparse_coo or op not in SUMMED:
        return False
    return tensor.dtype in _KINDS and tensor.dim() <= _DIMS_MAX and (op == "sum" or tensor.dtype in FLOATS)


def start(
    job: ultima.Job, tensor: torch.Tensor, op: str, deadline: Duration
) -> tuple[list[ultima.Handle], Callable[[], None]]:
    """Starts reducing a sparse tensor over all ranks. Returns what to wait for, and what writes the result into the
    tensor then: coalesced, with all rows that any rank had.

    Raises Desync when another rank's tensor has another shape or type, and as `ultima.Job.all_gather`.
    """
    mine = tensor.detach().coalesce().cpu()
    places, values = _flat_places(mine), mine.values().contiguous()
    elements, rows = tensor.numel(), places.numel()
    width = math.prod(values.shape[1:])
    sizes = [*tensor.shape, *[-1] * (_DIMS_MAX - tensor.dim())]
    room = min(PIECE_BYTES_MAX, job.bucket_bytes_max, job.arena_bytes // 4)
    facts = np.array([_KINDS.index(tensor.dtype), tensor.sparse_dim(), *sizes, rows, room], np.int64)
    assert facts.size == _FACTS
    told, handle = start_gather(job, facts.view(np.uint8), deadline)
    handle.wait()
    theirs = told.view(np.int64)
    _check(facts, theirs)
    each = _PLACE_BYTES + width * values.element_size()
    counts = theirs[:, len(_ALIKE)].tolist()
    for rank, count in enumerate(counts):
        if not 0 <= count * max(1, width) <= elements:
            raise InvalidArgument(f"tensor of rank {rank}", f"{count} rows", f"0 to {elements // max(1, width)}")
    longest = -(-max(counts) * each // 4) * 4
    piece = max(4, int(theirs[:, -1].min()) // job.world_size // 4 * 4)
    packed = np.zeros(longest, np.uint8)
    split = _PLACE_BYTES * rows
    packed[:split] = places.numpy().view(np.uint8)
    packed[split : rows * each] = values.reshape(-1).view(torch.uint8).numpy()
    started = [start_gather(job, packed[at : at + piece], deadline) for at in range(0, longest, piece)]

    def finish() -> None:
        got = np.concatenate([rows for rows, _ in started], axis=1) if started else np.empty((len(counts), 0), np.uint8)
        found = [_unpacked(got[rank, : count * each], count, values) for rank, count in enumerate(counts)]
        with torch.no_grad():  # not into a detached one: it would have indices of its own
            tensor.copy_(_sum(found, mine, len(counts) if op == "avg" else 1))

    return [handle for _, handle in started], finish


def _check(facts: npt.NDArray[np.int64], told: npt.NDArray[np.int64]) -> None:
    for other, row in enumerate(told):
        for at, field in enumerate(_ALIKE):
            if row[at] != facts[at]:
                mine, its = (_KINDS[int(each[at])] if field == "dtype" else int(each[at]) for each in (facts, row))
                raise Desync(other, field, mine, its)


def _flat_places(tensor: torch.Tensor) -> torch.Tensor:
    """Of a coalesced tensor: the number of each of its rows in the order of the table, ascending."""
    places = torch.zeros(tensor.indices().shape[1], dtype=torch.int64, device="cpu")
    for indices, size in zip(tensor.indices(), tensor.shape, strict=False):
        places = places * size + indices
    return places


def _unpacked(data: Bytes, count: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (count, *like.shape[1:])
    if not data.size:
        return torch.empty(0, dtype=torch.int64, device="cpu"), like.new_empty(shape)
    places, values = (np.array(half) for half in np.split(data, [_PLACE_BYTES * count]))
    return torch.from_numpy(places.view(np.int64)), torch.from_numpy(values).view(like.dtype).view(shape)


def _sum(found: list[tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor, divisor: int) -> torch.Tensor:
    """Rank after rank into the rows that any of them has."""
    union, at = torch.unique(torch.cat([places for places, _ in found]), return_inverse=True)
    total, first = like.values().new_zeros(union.numel(), *like.values().shape[1:]), 0
    for places, values in found:
        total.index_add_(0, at[first : first + places.numel()], values)
        first += places.numel()
    if divisor > 1:
        total /= divisor
    sizes = like.shape[: like.sparse_dim()]
    indices = []
    for size in reversed(sizes):
        indices.append(union % size)
        union = union // size
    return torch.sparse_coo_tensor(
        torch.stack(indices[::-1]), total, like.shape, is_coalesced=True, check_invariants=False
    )
