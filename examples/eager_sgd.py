# SPDX-License-Identifier: Apache-2.0
"""eager-SGD in numpy: no step waits for the slowest rank. What a rank brings too late is added to its next gradient.

    ultima run --nproc-per-node 4 -- python examples/eager_sgd.py --policy majority
    ultima run --nproc-per-node 4 -- python examples/eager_sgd.py --policy none          # every step waits for all

A plane is fitted to noisy points. In each step one rank, another one each time, takes --slow longer. For Ultima the
script has the policy of one job, and a second job in which all ranks average their models now and then.
"""

import argparse
import time

import numpy as np

import ultima

INPUTS, POINTS, RATE = 512, 64, 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="majority")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--slow", type=float, default=0.05, help="seconds")
    parser.add_argument("--sync-every", type=int, default=20, help="steps between two levellings of the models")
    arguments = parser.parse_args()

    plane = np.random.default_rng(1).standard_normal(INPUTS)
    weights = np.zeros(INPUTS)
    included, start = 0, time.monotonic()
    with (
        ultima.connect(options=ultima.Options(policy=arguments.policy)) as job,
        ultima.connect(f"{job.name}-model") as models,
    ):
        for step in range(arguments.steps):
            points = np.random.default_rng([step, job.rank])
            inputs = points.standard_normal((POINTS, INPUTS))
            wanted = inputs @ plane + 0.1 * points.standard_normal(POINTS)
            gradient = inputs.T @ (inputs @ weights - wanted) / POINTS
            if step % job.world_size == job.rank:
                time.sleep(arguments.slow)

            receipt = job.allreduce(gradient)  # over all ranks; of the late ones nothing, or what they gave before
            weights -= RATE * gradient / (1 + INPUTS / (POINTS * job.world_size))
            included += receipt.included if job.policy != "none" else len(receipt.contributors)

            if (step + 1) % arguments.sync_every == 0 or step + 1 == arguments.steps:
                models.sync_model([weights], deadline="60s")
        if job.rank == 0:
            seconds = time.monotonic() - start
            error = float(np.linalg.norm(weights - plane) / np.linalg.norm(plane))
            print(f"{job.policy}: {arguments.steps} steps in {seconds:.2f} s, error {error:.4f}")
            print(f"{included / arguments.steps:.2f} of {job.world_size} ranks in a step on average")


if __name__ == "__main__":
    main()
