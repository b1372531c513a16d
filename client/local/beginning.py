# SPDX-License-Identifier: Apache-2.0
"""What all ranks do once, before the first round: compare what they train, and begin with the same outer model."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from ultima.api.handle import Handle
from ultima.api.job import Job
from ultima.base.errors import InvalidArgument
from ultima.local.round_kernels import Floats
from ultima.local.values import Layout, difference

_PIECE, _AHEAD = 1 << 20, 2  # elements; pieces under way, so that the way is not idle between two


def agree_on_layout(job: Job, layout: Layout) -> None:
    """Raises InvalidArgument, on all ranks, if one of them trains other tensors or has other settings."""
    if job.world_size == 1:
        return
    text = layout.text().encode()
    sizes = np.empty(job.world_size, np.int64)
    job.all_gather(np.array([len(text)], np.int64), sizes)
    room = int(sizes.max())
    told = np.empty(job.world_size * room, np.uint8)
    job.all_gather(np.frombuffer(text.ljust(room), np.uint8).copy(), told)
    texts = [bytes(told[rank * room : (rank + 1) * room]).rstrip().decode() for rank in range(job.world_size)]
    for rank, other in enumerate(texts):
        if said := difference(text.decode(), other, rank):
            raise InvalidArgument("arrays", said, "the same tensors and settings on all ranks")


def adopt_first(job: Job, theta: Floats) -> float:
    """Gives all ranks the outer model of rank 0. Returns how many seconds that took.

    It goes in pieces, each with the deadline of an op: a large model may take longer than one op is given.
    """
    began = time.monotonic()
    if job.world_size > 1:
        most = min(_PIECE, job.bucket_bytes_max // 4)
        handles: deque[Handle] = deque()
        for low in range(0, theta.size, most):
            if len(handles) == _AHEAD:
                handles.popleft().wait()
            handles.append(job.broadcast_async(theta[low : low + most]))
        for handle in handles:
            handle.wait()
    np.add(theta, np.float32(0), out=theta)
    return time.monotonic() - began
