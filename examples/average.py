# SPDX-License-Identifier: Apache-2.0
"""Averages arrays with numpy alone: each rank gives its own number, and each gets the mean of all.

    ultima run --nproc-per-node 2 -- python examples/average.py

It needs no PyTorch.
"""

import numpy as np

import ultima


def main() -> None:
    with ultima.connect() as job:
        gradient = np.full(1_000_000, job.rank, dtype=np.float32)
        receipt = job.allreduce(gradient, op="avg", deadline="2s")  # in place
        print(f"rank {job.rank} of {job.world_size}: mean {gradient.mean():.2f}; {receipt}", flush=True)


if __name__ == "__main__":
    main()
