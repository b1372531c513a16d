# SPDX-License-Identifier: Apache-2.0
"""A plain DDP script: all that it does for Ultima is one import and one word.

    torchrun --nproc-per-node 2 examples/ddp.py
    ultima run --nproc-per-node 2 -- python examples/ddp.py      # the same without torchrun, and without a daemon

A small network learns to do as a fixed random one does. With --checkpoint, a script that is started again goes on where
it was; torchrun starts it again after a rank has died (--max-restarts).
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ultima.torch  # the import registers the backend

INPUTS, SAVE_EVERY = 20, 25


def network(seed: int, width: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="ultima")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", help="file of the training's state; read if it is there")
    options = parser.parse_args()

    dist.init_process_group(options.backend)  # the line that changes: "gloo" before
    rank, world = dist.get_rank(), dist.get_world_size()
    teacher, model = network(1, 8), DistributedDataParallel(network(2, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = 0
    if options.checkpoint and os.path.exists(options.checkpoint):
        state = torch.load(options.checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    print(f"rank {rank} of {world}, process {os.getpid()}, from step {first}", flush=True)

    loss = torch.zeros(())
    for step in range(first, options.steps):
        generator = torch.Generator().manual_seed(step * world + rank)  # each rank has images of its own
        inputs = torch.randn(64, INPUTS, generator=generator)
        with torch.no_grad():
            wanted = teacher(inputs)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        if options.checkpoint and rank == 0 and (step + 1) % SAVE_EVERY == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, options.checkpoint + ".new")
            os.replace(options.checkpoint + ".new", options.checkpoint)

    if rank == 0:
        print(f"loss {loss.item():.4f} after {options.steps} steps")
        if options.backend == "ultima":
            summary = ultima.torch.receipt_summary()
            print(f"{summary.ops} all-reduces, {summary.complete} of them complete")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
