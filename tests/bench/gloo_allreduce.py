# SPDX-License-Identifier: Apache-2.0
"""One rank of the rival: torch.distributed's Gloo, timed as `ultima perf` times Ultima.

Reads torchrun's variables and GLOO_SOCKET_IFNAME. Each counted iteration starts behind a barrier, and lasts until the
slowest rank has its result. Rank 0 prints one line of JSON with every iteration's microseconds.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist


def timed_us(bucket: torch.Tensor, iterations: int) -> list[float]:
    """Microseconds of each iteration on this rank. Raises RuntimeError if a sum is wrong."""
    world = dist.get_world_size()
    taken = []
    for _ in range(iterations):
        bucket.fill_(1.0)
        dist.barrier()
        start = time.perf_counter_ns()
        dist.all_reduce(bucket)
        taken.append((time.perf_counter_ns() - start) / 1e3)
    if not torch.all(bucket == world):
        raise RuntimeError(f"a sum of {world} ones is not {world} everywhere")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of Gloo's allreduce benchmark.")
    parser.add_argument("--bytes", type=int, required=True, help="of float32, per rank")
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bucket = torch.empty(options.bytes // 4)
    timed_us(bucket, options.warmup)
    slowest = torch.tensor(timed_us(bucket, options.iterations), dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps({"us": slowest.tolist()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
