# SPDX-License-Identifier: Apache-2.0
"""What one rank does in quant/test_quantize_hook.py: see hook_cases.py, whose network this trains, too."""

import copy
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ultima.torch
from tests.torch.cases import RANK, WORLD
from tests.torch.hook_cases import data, flat, gradients, loss_of, mean_gradients, network
from tests.torch.in_turn import in_turn
from ultima.torch import HookState, QuantState, average_hook, guard, hook_fsdp, quantize_hook


def error(found: list[float], wanted: list[float]) -> float:
    """The squared error over the squared size."""
    return sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True)) / sum(b * b for b in wanted)


def ddp() -> dict[str, Any]:
    """Gradients of three steps against means that are made here, in each form."""
    found = {}
    for wire in ("int16", "int8", "int4"):
        model = network()
        state = QuantState(wire, feedback=False, dense_below=0)
        wrapped = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.008)
        wrapped.register_comm_hook(state, quantize_hook)
        errors, bits = [], []
        for step in range(3):
            wrapped.zero_grad()
            loss_of(wrapped, data(RANK, step)).backward()
            want = mean_gradients(model, lambda rank, step=step: [data(rank, step)])
            bits.append(gradients(wrapped))
            errors.append(error(bits[-1], want))
        state.step_ok()
        told = state.summary()
        receipts = ultima.torch.last_receipts(told.quantised_ops + told.steps)
        wires = sorted({receipt.wire for receipt in receipts if receipt.wire})
        missing = told.missing_bytes
        found[wire] = {"errors": errors, "bits": bits, "ops": [told.quantised_ops, told.ops, missing], "wires": wires}
    return found


def learns() -> dict[str, Any]:
    """Sixty steps of a regression in int4 with feedback and a guard: the loss falls as with dense SGD."""
    losses, finals = {}, {}
    for name in ("dense", "int4"):
        state = HookState() if name == "dense" else QuantState("int4", dense_below=0)
        model = DistributedDataParallel(network())
        model.register_comm_hook(state, ultima.torch.allreduce_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        guard(optimizer, state)
        for step in range(60):
            optimizer.zero_grad()
            loss = loss_of(model, data(RANK, step % 6))
            loss.backward()
            optimizer.step()
        losses[name], finals[name] = float(loss.detach()), flat(model.parameters())
        if isinstance(state, QuantState):
            again = pickle.loads(pickle.dumps(state))
            kept = {name: sum(state.kept().values()) > 0, "same": again.kept() == state.kept()}
    return {"losses": losses, "finals": finals, "kept": kept}


def fsdp() -> dict[str, Any]:
    """Each rank a shard group of its own."""
    mesh = dist.device_mesh.DeviceMesh("cpu", torch.arange(WORLD).view(WORLD, 1), mesh_dim_names=("copies", "shards"))
    model = network()
    sharded = copy.deepcopy(model)
    for layer in sharded[::2]:
        fully_shard(layer, mesh=mesh["shards"])
    fully_shard(sharded, mesh=mesh["shards"])
    state = QuantState("int8", feedback=True, dense_below=0)
    state.name_parameters(sharded)
    hook_fsdp(sharded, state)
    errors, bits = [], []
    for step in range(3):
        sharded.zero_grad()
        loss_of(sharded, data(RANK, step)).backward()
        bits.append(flat(parameter.grad.to_local() for parameter in sharded.parameters()))
        errors.append(error(bits[-1], mean_gradients(model, lambda rank, step=step: [data(rank, step)])))
        state.step_ok()
    return {"errors": errors, "bits": bits, "kept": sorted(name for name, sum in state.kept().items() if sum)}


def unasked() -> dict[str, Any]:
    """Under ULTIMA_WIRE=int8: DDP's gradients travel so, and nothing else does."""
    torch.manual_seed(5)
    layers = torch.nn.Sequential(torch.nn.Linear(20, 400), torch.nn.Tanh(), torch.nn.Linear(400, 7))
    found = {}
    for name in ("plain", "own"):
        model = DistributedDataParallel(copy.deepcopy(layers))
        if name == "own":
            model.register_comm_hook(None, average_hook)
        loss_of(model, data(RANK, 0)).backward()
        want = mean_gradients(layers, lambda rank: [data(rank, 0)])
        found[name] = {"error": error(gradients(model), want), "wire": ultima.torch.last_receipts(1)[0].wire}
    metric = torch.full((10_000,), 1 / 3 + RANK)
    dist.all_reduce(metric)
    exact = bool((metric == torch.full((), 1 / 3) + torch.full((), 1 / 3 + 1)).all())
    return {**found, "metric": [exact, ultima.torch.last_receipts(1)[0].wire]}


SHARED: list[Callable[[], dict[str, Any]]] = [ddp, learns, fsdp]


def shared() -> dict[str, Any]:
    return in_turn(SHARED, 30)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(in_turn([unasked], 30) if "unasked" in sys.argv[1:] else shared()), flush=True)
