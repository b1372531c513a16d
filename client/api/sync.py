# SPDX-License-Identifier: Apache-2.0
"""Makes a model the same on all ranks again.

Where data is lost for good, each rank averages what reached it, and the replicas of a model drift apart. A reliable
average of the parameters themselves, now and then, brings them together. The tensors pass through the shared memory in
pieces, so a model may be larger than the arena.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ultima.base.buffers import AnyArray, elements
from ultima.base.durations import DURATION_MAX_S, Duration, deadline_s
from ultima.base.errors import InvalidArgument
from ultima.base.words import BFLOAT16, DType

if TYPE_CHECKING:
    from ultima.api.job import Job

PIECE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a sync found. The same on all ranks, but for the time."""

    divergence: float
    """The largest difference of any element on any rank to the average; infinite if some were NaN and others not."""
    tensors: int
    """How many tensors were averaged."""
    elements: int
    """How many elements they have together."""
    elapsed_s: float
    """How long the call took, in seconds."""


def sync_model(job: Job, tensors: Any, deadline: Duration) -> SyncResult:
    """See `Job.sync_model`."""
    started = time.monotonic()
    until = started + min(deadline_s(deadline, "deadline"), DURATION_MAX_S)
    by_type: dict[str, tuple[DType, list[AnyArray]]] = {}
    given = _tensors_of(tensors)
    for index, tensor in enumerate(given):
        array, kind = elements(tensor, None, f"tensors[{index}]", writable=True)
        by_type.setdefault(kind.name, (kind, []))[1].append(array.reshape(-1).view(kind.numpy))
    largest = 0.0
    for name in sorted(by_type):
        kind, arrays = by_type[name]
        largest = max(largest, _average(job, kind, arrays, until))
    told = job.empty(1, "float64")
    told[0] = largest
    job.allreduce(told, op="max", mode="reliable", deadline=_left(until))
    count = sum(array.size for _, arrays in by_type.values() for array in arrays)
    return SyncResult(float(told[0]), len(given), count, time.monotonic() - started)


def _tensors_of(tensors: Any) -> list[Any]:
    if hasattr(tensors, "parameters") and hasattr(tensors, "buffers"):
        found = [*tensors.parameters(), *tensors.buffers()]
    elif isinstance(tensors, Mapping):
        found = list(tensors.values())
    elif isinstance(tensors, Iterable) and not isinstance(tensors, np.ndarray) and not hasattr(tensors, "detach"):
        found = list(tensors)
    else:
        raise InvalidArgument("tensors", type(tensors).__name__, "a module, a mapping, or an iterable of tensors")
    return [tensor.detach() if hasattr(tensor, "detach") else tensor for tensor in found]


def _average(job: Job, kind: DType, arrays: list[AnyArray], until: float) -> float:
    """Averages tensors of one type, in place; returns the largest difference to the average that there was here."""
    room = min(PIECE_BYTES_MAX, job.bucket_bytes_max, job.arena_bytes // 2) // kind.itemsize
    total = sum(array.size for array in arrays)
    if total == 0:
        return 0.0
    piece = job.empty(min(room, total), kind.name)
    largest, waiting, filled = 0.0, [], 0
    for array in arrays:
        done = 0
        while done < array.size:
            part = array[done : done + piece.size - filled]
            piece[filled : filled + part.size] = part
            waiting.append(part)
            filled += part.size
            done += part.size
            if filled == piece.size:
                largest = max(largest, _reduce(job, kind, piece, waiting, until))
                waiting, filled = [], 0
    if filled:
        largest = max(largest, _reduce(job, kind, piece[:filled], waiting, until))
    return largest


def _reduce(job: Job, kind: DType, piece: AnyArray, parts: list[AnyArray], until: float) -> float:
    job.allreduce(piece, op="avg", mode="reliable", dtype=kind.name, deadline=_left(until))
    largest, at = 0.0, 0
    for part in parts:
        mean = piece[at : at + part.size]
        largest = max(largest, _distance(_as_float64(kind, part), _as_float64(kind, mean)))
        part[:] = mean
        at += part.size
    return largest


def _as_float64(kind: DType, array: AnyArray) -> AnyArray:
    if kind is BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _distance(a: AnyArray, b: AnyArray) -> float:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    return float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())
