# SPDX-License-Identifier: Apache-2.0
"""Sites that are far apart train one model: each by itself, and every --every steps they average how far they came.

One rank at each site, here as two sites on one machine, and on two machines with a secret that both have:

    ultima run --nproc-per-node 1 -- python examples/diloco.py
    ultima run --nnodes 2 --node-rank 0 --master 203.0.113.1:29500 --job-secret job.secret -- python examples/diloco.py
    ultima run --nnodes 2 --node-rank 1 --master 203.0.113.1:29500 --job-secret job.secret -- python examples/diloco.py

Several ranks at each site, over which FSDP2 cuts the model; --meet is the daemon of site 0, which all others reach:

    torchrun --standalone --nproc-per-node 4 examples/diloco.py --site 0 --sites 2 --meet 203.0.113.1:29520
    torchrun --standalone --nproc-per-node 4 examples/diloco.py --site 1 --sites 2 --meet 203.0.113.1:29520

The model learns a function of numbers that it draws; a site of several ranks trains as any program under FSDP2 does.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import ultima
from ultima.torch import DiLoCo

INPUTS, BATCH = 16, 64


def wanted(inputs: torch.Tensor) -> torch.Tensor:
    """What the model is to learn."""
    return torch.sin(2 * inputs[:, :1]) + inputs[:, 1:2] * inputs[:, 2:3]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--site", type=int, help="of this host, from 0 on: the site has several ranks")
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--meet", help="HOST:PORT of the daemon of site 0")
    parser.add_argument("--every", type=int, default=20, help="steps between two rounds")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--wire", default="int8")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(INPUTS, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    within = None
    if arguments.site is None:
        job = ultima.connect("diloco")
    else:
        dist.init_process_group("gloo")  # of this site alone; "nccl" where it has GPUs
        place, within = dist.get_rank(), dist.group.WORLD
        fully_shard(model, mesh=DeviceMesh.from_group(within, "cpu"))
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)  # torchrun's, and not of the job: each shard has one, with a rank for each site
        job = ultima.connect(
            f"diloco-{place}", rank=arguments.site, world_size=arguments.sites, rendezvous=arguments.meet
        )
    torch.manual_seed(100 * job.rank + (0 if within is None else dist.get_rank()))  # what each one draws is its own
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with (
        job,
        DiLoCo(model, inner, arguments.every, job=job, wire=arguments.wire, inner_group=within) as outer,
    ):
        for _ in range(arguments.steps):
            inputs = torch.randn(BATCH, INPUTS)
            inner.zero_grad()
            nn.functional.mse_loss(model(inputs), wanted(inputs)).backward()
            inner.step()
            outer.step(tokens=BATCH)
        outer.meet()
        inputs = torch.randn(4000, INPUTS, generator=torch.Generator().manual_seed(9))
        with torch.no_grad():
            loss = float(nn.functional.mse_loss(model(inputs), wanted(inputs)))
        print(f"site {job.rank} of {job.world_size}: loss {loss:.6f}; {outer.summary()}", flush=True)
        print(*outer.last.explain(), sep="\n", flush=True)
    if within is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
