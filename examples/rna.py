# SPDX-License-Identifier: Apache-2.0
"""RNA in numpy: one thread computes and never waits, another one fetches the results of ops.

    ultima run --nproc-per-node 4 -- python examples/rna.py

A plane is fitted to noisy points, and rank 0 is three times as slow as the others. The op of a step is started by the
first of two ranks that has a gradient (policy "probe", or "seeded" without a controller). Several gradients that a rank
gave between two ops become one, a mean in which the newest weighs most.
"""

import argparse
import threading
import time

import numpy as np

import ultima

INPUTS, POINTS, RATE = 512, 64, 0.5


class Updates:
    """Results that were fetched and are not applied yet: all of them count, not the newest alone."""

    def __init__(self, slot: ultima.Partial) -> None:
        self._slot = slot
        self._sum, self._ops = np.zeros(INPUTS), 0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._fetch)
        self._thread.start()

    def _fetch(self) -> None:
        while not self._done.is_set():
            result = self._slot.wait(deadline="100ms")
            if result is not None:
                with self._lock:
                    # A mean over the ranks in it: the learning rate grows with their number.
                    self._sum += self._slot.rate_factor(result.receipt) * result.array
                    self._ops += 1

    def take(self) -> tuple[np.ndarray, int]:
        """What came since the last time, and of how many ops."""
        with self._lock:
            taken = self._sum, self._ops
            self._sum, self._ops = np.zeros(INPUTS), 0
        return taken

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="seeded")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()

    plane = np.random.default_rng(1).standard_normal(INPUTS)
    weights = np.zeros(INPUTS)
    steps = ops = 0
    with ultima.connect(options=ultima.Options(policy=arguments.policy, probes=2)) as job:
        slot, rank, world, name = job.partial(), job.rank, job.world_size, job.name
        rate = RATE / world / (1 + INPUTS / (POINTS * world))
        updates = Updates(slot)
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            points = np.random.default_rng([steps, rank])
            inputs = points.standard_normal((POINTS, INPUTS))
            wanted = inputs @ plane + 0.1 * points.standard_normal(POINTS)
            gradient = inputs.T @ (inputs @ weights - wanted) / POINTS
            time.sleep(0.03 if rank == 0 else 0.01)

            slot.give(gradient)  # does not wait for an op
            update, count = updates.take()
            weights -= rate * update
            steps, ops = steps + 1, ops + count
        updates.stop()
    with ultima.connect(f"{name}-model") as models:  # the replicas have drifted apart a little: level them
        models.sync_model([weights], deadline="60s")
    error = float(np.linalg.norm(weights - plane) / np.linalg.norm(plane))
    print(f"rank {rank}: {steps} steps, {ops} ops, error {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
