# SPDX-License-Identifier: Apache-2.0
"""`exchange`: every rank's container to every rank, whole or not at all, over the reliable collectives of a Job.

Containers differ in length from rank to rank and from step to step. So the ranks first tell each other how long theirs
are; then all travel in rows that are as long as the longest, in as many ops as the shared memory asks for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ultima.api.handle import Handle
from ultima.api.job import Job
from ultima.base.durations import DURATION_MAX_S, Duration, deadline_s
from ultima.base.errors import Desync, InvalidArgument, Unsupported
from ultima.sparse.codec import Sparse, check_size, decode
from ultima.sparse.container import OVERHEAD, parse
from ultima.sparse.kernels import Bytes, Floats

PIECE_BYTES_MAX = 16 << 20  # of all ranks' parts that travel in one op
BYTES_PER_ELEMENT_MAX = 16
SMALL = 4096
_FACTS = ("bytes", "size", "room")


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What an exchange brought, the same on all ranks."""

    parts: tuple[Sparse, ...]
    """The decoded tensors, by rank."""
    size: int
    """Elements of each of them."""
    container_bytes: tuple[int, ...]
    """Length of each rank's container."""
    row_bytes: int
    """Bytes that each rank sent to every other one: the longest container, rounded up."""
    gather_s: float
    """Seconds until all bytes were here; what follows is decoding."""
    elapsed_s: float
    """Seconds of the whole call."""

    def sum(self, out: Floats | None = None) -> Floats:
        """The sum of all parts, dense, in `out` (which it is added to) or a new array; ranks in order, so that all
        ranks have the same bits."""
        whole = np.zeros(self.size, np.float32) if out is None else out
        if whole.size != self.size or whole.dtype != np.float32 or not whole.flags.c_contiguous:
            raise InvalidArgument("out", f"{whole.size} elements of {whole.dtype}", f"{self.size} float32, contiguous")
        for part in self.parts:
            part.dense(whole.reshape(-1))
        return whole

    def mean(self) -> Floats:
        """The sum divided by the number of ranks."""
        whole = self.sum()
        whole /= np.float32(len(self.parts))
        return whole


def bytes_max(size: int) -> int:
    """The longest container of a tensor of `size` elements that an exchange carries."""
    return OVERHEAD + SMALL + BYTES_PER_ELEMENT_MAX * size


def exchange(job: Job, container: bytes, size: int, *, deadline: Duration | None = None) -> Exchanged:
    """Gathers the containers of all ranks and decodes them. All ranks must call it, for tensors of the same `size`.

    job: without a policy. Where ranks share hosts the containers travel in a sum instead of an all-gather, which takes
        up to twice the bytes.
    container: what `encode` gave. deadline: of the whole call; the job's by default.

    Raises InvalidArgument for a bad container here (before anything is sent) or of another rank (`field` names it; on
    all ranks alike); Desync with `field` "size" when the ranks' tensors differ; Unsupported in a job with a policy; and
    as `Job.all_gather`.
    """
    if job.policy != "none":
        raise Unsupported(
            "exchange", "a job with a policy has only allreduce and partial(); use a job without a policy"
        )
    started = time.monotonic()
    until = started + min(deadline_s(job.deadline_s if deadline is None else deadline, "deadline"), DURATION_MAX_S)
    parse(container, check_size(size))
    mine = np.frombuffer(container, np.uint8)
    if mine.size > bytes_max(size):
        raise InvalidArgument("container", f"{mine.size} bytes", f"to {bytes_max(size)} for {size} elements")
    # Numbers that differ between ranks would make ops that differ: all take the least of what any has room for.
    room = min(PIECE_BYTES_MAX, job.bucket_bytes_max, job.arena_bytes // 4)
    facts = np.array([mine.size, size, room], np.int64)
    told = _gather(job, facts.view(np.uint8), until).view(np.int64)
    lengths = _lengths(job.rank, told, size)
    row = -(-max(lengths) // 4) * 4
    width = max(4, int(told[:, _FACTS.index("room")].min()) // job.world_size // 4 * 4)
    padded = np.zeros(row, np.uint8)
    padded[: mine.size] = mine
    rows = np.empty((job.world_size, row), np.uint8)
    for at in range(0, row, width):
        rows[:, at : at + width] = _gather(job, padded[at : at + width], until)
    gathered = time.monotonic() - started
    parts = tuple(_decoded(rank, rows[rank, :length], size) for rank, length in enumerate(lengths))
    return Exchanged(parts, size, tuple(lengths), row, gathered, time.monotonic() - started)


def _gather(job: Job, mine: Bytes, until: float) -> Bytes:
    """One row per rank, reliably. A multiple of four bytes."""
    rows, handle = start_gather(job, mine, max(0.001, until - time.monotonic()))
    handle.wait()
    return rows


def start_gather(job: Job, mine: Bytes, deadline: Duration) -> tuple[Bytes, Handle]:
    """Starts bringing |mine|, a multiple of four bytes and the same number on all ranks, to every rank, reliably. The
    rows hold all ranks' when the handle says that the op has ended."""
    rows = np.zeros((job.world_size, mine.size), np.uint8)
    if "all_gather" in job.collectives:
        return rows, job.all_gather_async(np.ascontiguousarray(mine), rows, deadline=deadline)
    rows[job.rank] = mine  # all others are zero in this rank's summand
    total: npt.NDArray[np.int32] = rows.view(np.int32)
    return rows, job.allreduce_async(total, "sum", mode="reliable", deadline=deadline)


def _lengths(rank: int, told: npt.NDArray[np.int64], size: int) -> list[int]:
    """Raises Desync or InvalidArgument for what some rank told, on all ranks but for the words."""
    for other, its in enumerate(told[:, _FACTS.index("size")].tolist()):
        if its != size and other != rank:
            raise Desync(other, "size", size, its)
    lengths: list[int] = told[:, _FACTS.index("bytes")].tolist()
    for other, length in enumerate(lengths):
        if not OVERHEAD <= length <= bytes_max(size):
            allowed = f"{OVERHEAD} to {bytes_max(size)} for {size} elements"
            raise InvalidArgument(f"container of rank {other}", f"{length} bytes", allowed)
    return lengths


def _decoded(rank: int, row: Bytes, size: int) -> Sparse:
    try:
        return decode(np.ascontiguousarray(row), size)
    except InvalidArgument as error:
        raise InvalidArgument(f"container of rank {rank}", error.value, error.allowed) from error
