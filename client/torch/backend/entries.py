# SPDX-License-Identifier: Apache-2.0
"""Averages of which each rank gives only some entries: summed by the engines, or gathered where they cannot.

Every rank must choose alike. So the choice looks only at what all daemons of a job agree on: whether the job has the
collective "allreduce_sparse". Without it the entries travel as containers to all ranks, reliably, before the call
returns; that costs more bytes with each rank, and is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

import ultima
from ultima.base.durations import Duration
from ultima.base.errors import UltimaError
from ultima.sparse import encode, exchange
from ultima.torch.backend.elements import pieces
from ultima.torch.backend.work import BY_WORK, Failed

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.uint32]

Ended = Callable[[slice, Floats | None, int], None]

NATIVE = "allreduce_sparse"
BITMAP_FROM = 0.12
"""Density from which a bit for each element takes less than the distances between indices."""


class EntriesPart:
    """Something to wait for (`work.Part`). |ended| is told once, before the wait returns or raises: what
    `Handle.returned` says of the entries, or None when the op failed.
    """

    def __init__(self, handle: ultima.Handle, ended: Callable[[tuple[Indices, Floats] | None], None]) -> None:
        self._handle, self._ended = handle, ended

    def wait(self) -> ultima.Receipt:
        try:
            receipt = self._handle.wait()
        except BaseException:
            self._ended(None)
            raise
        self._ended(self._handle.returned)
        return receipt


def average_entries(
    job: ultima.Job,
    out: torch.Tensor,
    indices: Indices,
    values: Floats,
    ended: Ended,
    *,
    form: str,
    down: str | None = None,
    hint: int,
    mode: str,
    deadline: Duration,
) -> Sequence[EntriesPart | Failed]:
    """Starts averaging into |out|, flat float32 on the CPU; |indices| ascend. Returns what to wait for.

    down: as for `allreduce_sparse`; where containers are exchanged nothing comes back rounded.
    ended: told once of each run of the entries, in any thread, when its op has ended: which entries these were; what
    was not delivered, None for nothing, else a value for each of the run, 0 for what was; and how many bytes of them a
    rank sent where that is known, else -1.

    Raises as `ultima.Job.allreduce_sparse_async` before anything is sent.
    """
    if NATIVE not in job.collectives:
        return _gathered(job, out, indices, values, ended, deadline)
    parts: list[EntriesPart] = []
    at, first = 0, 0
    try:
        for piece in pieces(out, job.bucket_bytes_max):
            end = at + piece.numel()
            last = int(np.searchsorted(indices, end))
            run = slice(first, last)
            share = -(-hint * piece.numel() // max(1, out.numel()))
            local = indices[run] - np.uint32(at)
            handle = job.allreduce_sparse_async(
                local, values[run], piece, hint=share, form=form, down=down, mode=mode, deadline=deadline
            )
            parts.append(EntriesPart(handle, partial(_told, ended, run, local, values[run])))
            at, first = end, last
    except BY_WORK as error:
        ended(slice(first, indices.size), values[first:], -1)
        return [*parts, Failed(error)]
    except Exception:
        # The pieces that went out must end before their memory may be touched again.
        for part in parts:
            with suppress(UltimaError):
                part.wait()
        raise
    return parts


def _told(ended: Ended, run: slice, indices: Indices, values: Floats, back: tuple[Indices, Floats] | None) -> None:
    if back is None:
        ended(run, values, -1)
    elif back[0].size:
        kept = np.zeros_like(values)
        kept[np.searchsorted(indices, back[0])] = back[1]
        ended(run, kept, -1)
    else:
        ended(run, None, -1)


def _gathered(
    job: ultima.Job,
    out: torch.Tensor,
    indices: Indices,
    values: Floats,
    ended: Ended,
    deadline: Duration,
) -> list[Failed]:
    """Nothing is to be waited for: the exchange is over when this returns."""
    size, run = out.numel(), slice(0, indices.size)
    packed = encode(indices, values, size, index="delta" if indices.size < BITMAP_FROM * size else "bitmap")
    try:
        found = exchange(job, packed, size, deadline=deadline)
    except Exception as error:
        ended(run, values, -1)
        return [Failed(error)]
    found.sum(out.zero_().numpy())
    out /= job.world_size
    ended(run, None, found.row_bytes * (job.world_size - 1))
    return []
