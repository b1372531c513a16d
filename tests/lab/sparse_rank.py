# SPDX-License-Identifier: Apache-2.0
"""A rank that exchanges containers on a host of the lab: `python -m tests.lab.sparse_rank FILE`. For each step it
writes a digest of the sum, whether every part was what its rank had packed, and what was lost on the way."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import ultima
from ultima.sparse import Feedback, Sparse, decode, encode, exchange

SIZE, STEPS = 300_000, 4
CODECS = (("delta", "raw"), ("bloom-p2", "qsgd"), ("huffman", "fit-poly"), ("rle", "deflate"))


def packed(rank: int, step: int, memory: Feedback) -> tuple[bytes, Sparse]:
    """What |rank| sends; each rank can compute it of all others."""
    gradient = np.random.default_rng([rank, step]).laplace(size=SIZE).astype(np.float32)
    chosen = memory.select(gradient)
    index, value = CODECS[(rank + step) % len(CODECS)]
    data = encode(chosen.indices, chosen.values, SIZE, index=index, value=value, seed=step)
    arrived = decode(data, SIZE)
    memory.settle(chosen, arrived)
    return data, arrived


def main(path: Path) -> None:
    told = []
    with ultima.connect(timeout=60, arena="16M") as job:
        memories = [Feedback(SIZE, 0.02 * (rank + 1)) for rank in range(job.world_size)]
        for step in range(STEPS):
            all_of_them = [packed(rank, step, memory) for rank, memory in enumerate(memories)]
            found = exchange(job, all_of_them[job.rank][0], SIZE, deadline="50s")
            same = all(part.dense().tobytes() == arrived.dense().tobytes()
                       for part, (_, arrived) in zip(found.parts, all_of_them, strict=True))  # fmt: skip
            told.append({"digest": hashlib.sha256(found.sum().tobytes()).hexdigest(), "same": same})
        job.barrier(deadline="50s")
    path.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
