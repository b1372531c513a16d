# SPDX-License-Identifier: Apache-2.0
"""Replicas that come and go while training goes on: torchft's Manager over Ultima.

    pip install torchft==0.2.0
    torchft_lighthouse --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 10000 --bind 0.0.0.0:29510
    TORCHFT_LIGHTHOUSE=http://HOST:29510 REPLICA=0 python examples/torchft_ddp.py      # on one host
    TORCHFT_LIGHTHOUSE=http://HOST:29510 REPLICA=1 python examples/torchft_ddp.py      # on another

Kill one, and the others go on without it; start it again, and it takes the model from another and joins. Each host has
a daemon. With --die-at a replica kills itself before it votes on that step, once.
"""

import argparse
import os
import signal
import time

import torch
import torchft
from torch import nn

from ultima.torch.ft import ProcessGroupUltima

INPUTS = 20


def network(seed: int, width: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--die-at", type=int, default=-1)
    parser.add_argument("--pause", type=float, default=0, help="seconds of rest after each step")
    parser.add_argument("--lacking", default="discard", help="what of a step that lacks a member: discard, average")
    options = parser.parse_args()
    replica = int(os.environ["REPLICA"])

    teacher, model = network(1, 8), network(2, 32)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    def save() -> dict[str, dict[str, object]]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    # One rank a replica, which so has a store of its own.
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupUltima(lacking=options.lacking)
    manager = torchft.Manager(
        pg=group,
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        replica_id=f"replica_{replica}",
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
    )
    optimizer, trained = torchft.Optimizer(manager, inner), torchft.DistributedDataParallel(manager, model)
    while manager.current_step() < options.steps:
        step = manager.current_step()
        generator = torch.Generator().manual_seed(1000 * step + replica)  # each replica has data of its own
        inputs = torch.randn(64, INPUTS, generator=generator)
        with torch.no_grad():
            wanted = teacher(inputs)
        optimizer.zero_grad()  # asks the lighthouse who is there
        loss = nn.functional.mse_loss(trained(inputs), wanted)
        if step == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()  # taken if no member's gradient is missing
        print(f"step {step} of {manager.num_participants()} loss {loss.item():.4f}", flush=True)
        time.sleep(options.pause)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    print(f"weights {weights.double().sum().item():.12f} after {manager.current_step()} steps", flush=True)
    manager.shutdown(wait=False)
    group.shutdown()


if __name__ == "__main__":
    main()
