# SPDX-License-Identifier: Apache-2.0
"""What one rank does in sparse/test_sparse_hook.py: see hook_cases.py, whose network this trains, too."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ultima
from tests.torch.cases import RANK, WORLD
from tests.torch.hook_cases import data, flat, gradients, loss_of, mean_gradients, network, off
from tests.torch.in_turn import in_turn
from ultima.sparse import Feedback
from ultima.torch import HookState, SparseState, average_hook, guard, hook_fsdp, sparse_hook

RATIO, BELOW = 0.05, 100


def twin_of(model: nn.Module, memories: list[dict[str, Feedback]], step: int) -> list[float]:
    """The gradients that all ranks should have: each parameter's mean over ranks of what its memory there lets go."""
    found: dict[str, Any] = {}
    for rank in range(WORLD):
        alone = copy.deepcopy(model)
        loss_of(alone, data(rank, step)).backward()
        for name, parameter in alone.named_parameters():
            given = parameter.grad.detach().reshape(-1)
            if parameter.dim() > 1 and given.numel() >= BELOW:
                memory = memories[rank].setdefault(name, Feedback(given.numel(), RATIO, choose="sampled"))
                given = torch.from_numpy(memory.select(given).dense())
            found[name] = found.get(name, 0) + given / WORLD
    return flat(found.values())


def ddp() -> dict[str, Any]:
    """Step by step against `twin_of`: a dense step, in which DDP cuts its buckets anew, then sparse ones."""
    found = {}
    for name, options in {"small": {"bucket_cap_mb": 0.008}, "views": {"gradient_as_bucket_view": True}}.items():
        model, state = network(), SparseState(ratio=RATIO, start_step=1, dense_below=BELOW)
        wrapped = DistributedDataParallel(copy.deepcopy(model), **options)
        state.name_parameters(wrapped)
        wrapped.register_comm_hook(state, sparse_hook)
        memories: list[dict[str, Feedback]] = [{} for _ in range(WORLD)]
        errors = []
        for step in range(5):
            wrapped.zero_grad()
            loss_of(wrapped, data(RANK, step)).backward()
            want = mean_gradients(model, lambda rank: [data(rank, 0)]) if not step else twin_of(model, memories, step)
            errors.append(off(gradients(wrapped), want))
        state.step_ok()
        told = state.summary()
        counts = [told.ops, told.sparse_ops, told.steps, told.missing_bytes, told.returned]
        found[name] = {"errors": errors, "counts": counts, "text": str(told)}
    return found


def learns() -> dict[str, Any]:
    """Sixty steps of a regression at 5 % with a guard and momentum: the loss falls as with dense SGD."""
    losses, finals = {}, {}
    for name in ("dense", "sparse"):
        state = SparseState(ratio=RATIO, start_step=5, momentum=0.9, dense_below=BELOW) if name == "sparse" else None
        model = DistributedDataParallel(network())
        model.register_comm_hook(state or HookState(), sparse_hook if state else ultima.torch.allreduce_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0 if state else 0.9)
        if state:
            guard(optimizer, state)
        for step in range(60):
            optimizer.zero_grad()
            loss = loss_of(model, data(RANK, step % 6))
            loss.backward()
            optimizer.step()
        losses[name], finals[name] = float(loss.detach()), flat(model.parameters())
    return {"losses": losses, "finals": finals}


def fsdp() -> dict[str, Any]:
    """Each rank a shard group of its own: memories by parameter, and what is not sent is kept."""
    mesh = dist.device_mesh.DeviceMesh("cpu", torch.arange(WORLD).view(WORLD, 1), mesh_dim_names=("copies", "shards"))
    model = network()
    sharded = copy.deepcopy(model)
    for layer in sharded[::2]:
        fully_shard(layer, mesh=mesh["shards"])
    fully_shard(sharded, mesh=mesh["shards"])
    state = SparseState(ratio=RATIO, start_step=0, dense_below=BELOW)
    state.name_parameters(sharded)
    hook_fsdp(sharded, state)
    memories: list[dict[str, Feedback]] = [{} for _ in range(WORLD)]
    errors = []
    for step in range(3):
        sharded.zero_grad()
        loss_of(sharded, data(RANK, step)).backward()
        found = flat(parameter.grad.to_local() for parameter in sharded.parameters())
        errors.append(off(found, twin_of(model, memories, step)))
        state.step_ok()
    return {"errors": errors, "kept": sorted(name for name, sum in state.kept().items() if sum)}


def pickled() -> dict[str, Any]:
    """A state in use, there and back: the copy goes on where it was, in another model of the same kind."""
    state, model = SparseState(ratio=RATIO, start_step=0, dense_below=BELOW), network()
    first = DistributedDataParallel(copy.deepcopy(model))
    first.register_comm_hook(state, sparse_hook)
    loss_of(first, data(RANK, 0)).backward()
    again = pickle.loads(pickle.dumps(state))
    kept = again.state_dict()
    second = DistributedDataParallel(copy.deepcopy(model))
    second.register_comm_hook(again, sparse_hook)
    found = []
    for each in (first, second):
        each.zero_grad()
        loss_of(each, data(RANK, 1)).backward()
        found.append(gradients(each))
    return {"same": found[0] == found[1], "memories": sorted(kept["memories"])}


class Table(nn.Module):
    """An embedding with sparse gradients, and a layer with dense ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.table = nn.Embedding(1000, 8, sparse=True)
        self.layer = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(self.table(rows))
        return found


def rows(rank: int) -> torch.Tensor:
    return torch.tensor([3, 5, 5, 700 + rank, 900])[: 4 + rank]


def embedding() -> dict[str, Any]:
    """DDP as it is, and with each hook: the mean of the ranks' gradients, as a sparse tensor."""
    model = Table()
    want = torch.zeros(1000, 8)
    for rank in range(WORLD):
        alone = copy.deepcopy(model)
        (alone(rows(rank)).square().sum() / WORLD).backward()
        want += alone.table.weight.grad.to_dense()
    found = {}
    hooks: dict[str, Any] = {
        "none": None,
        "average": (None, average_hook),
        "allreduce": (HookState(), ultima.torch.allreduce_hook),
        "sparse": (SparseState(start_step=0), sparse_hook),
    }
    for name, hook in hooks.items():
        wrapped = DistributedDataParallel(copy.deepcopy(model))
        if hook is not None:
            wrapped.register_comm_hook(*hook)
        optimizer = torch.optim.SparseAdam([wrapped.module.table.weight])
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(rows(RANK)).square().sum().backward()
        grad = wrapped.module.table.weight.grad
        optimizer.step()
        dense = wrapped.module.layer.weight.grad
        found[name] = {
            "error": float((grad.to_dense() - want).abs().max()),
            "sparse": grad.is_sparse,
            "rows": grad.coalesce().indices()[0].tolist(),
            "dense": float(dense.abs().sum()) > 0,
        }
    return found


def coordinates() -> dict[str, Any]:
    """`dist.all_reduce` of sparse tensors of several shapes and types, and one that only a rank has entries in."""
    errors, ops = {}, ultima.torch.receipt_summary().ops
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for dims, sparse_dim in (((40,), 1), ((30, 4), 1), ((5, 6, 3), 2)):
            given = []
            for rank in range(WORLD):
                generator = np.random.default_rng([rank, *dims])
                dense = torch.from_numpy(generator.integers(-3, 4, dims) * (generator.random(dims) < 0.1))
                given.append(dense.to(kind) * (rank == 0 or kind is not torch.int64))
            tensor = given[RANK].to_sparse(sparse_dim)
            dist.all_reduce(tensor)
            errors[f"{kind} {dims}"] = bool((tensor.to_dense() == sum(given)).all()) and tensor.is_coalesced()
    tensor = torch.sparse_coo_tensor([[1, 1, 4]], [1.0, 2.0, 4.0 + RANK], (6,), check_invariants=True)  # not coalesced
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    assert work is not None
    work.wait()
    average = tensor.to_dense().tolist()
    empty = torch.zeros(7, 5).to_sparse(1)
    dist.all_reduce(empty)
    took = ultima.torch.receipt_summary().ops - ops
    other = torch.sparse_coo_tensor([[1]], [1.0], (6 + RANK,), check_invariants=True)
    told = ""
    try:
        dist.all_reduce(other)
    except ultima.Desync as error:
        told = str(error)
    return {"right": errors, "average": average, "empty": empty._nnz(), "ops": took, "told": told}


def defaults() -> dict[str, Any]:
    """A model in bfloat16, where the program's default element type is that, or a wider one."""
    found, given = {}, [data(RANK, step).bfloat16() for step in range(2)]
    for default in (torch.float32, torch.bfloat16, torch.float64):
        net = network(torch.bfloat16)
        state = SparseState(ratio=RATIO, start_step=0, dense_below=BELOW)
        torch.set_default_dtype(default)
        try:
            model = DistributedDataParallel(net)
            model.register_comm_hook(state, sparse_hook)
            for step in range(2):
                loss_of(model, given[step]).backward()
        finally:
            torch.set_default_dtype(torch.float32)
        found[str(default)] = flat(parameter.grad.float() for parameter in net.parameters())
    return found


SHARED: tuple[Callable[[], dict[str, Any]], ...] = (ddp, learns, fsdp, pickled, embedding, coordinates, defaults)


def shared() -> dict[str, Any]:
    return in_turn(SHARED, 30)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(shared()), flush=True)
