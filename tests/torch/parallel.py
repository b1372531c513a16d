# SPDX-License-Identifier: Apache-2.0
"""What one rank does in the tests of torch's own layers over the collectives: functional collectives, DTensor, FSDP2 on
a mesh of two dimensions. As `cases.py`; four ranks.

Values are small whole numbers, so that sums are exact in any order, except for what was trained.
"""

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import ultima.torch
from tests.torch.cases import RANK, WORLD, part_of
from tests.torch.hook_cases import data, flat, loss_of, mean_gradients, network, off
from tests.torch.in_turn import in_turn
from ultima.torch.hooks import HookState, hook_fsdp

RANKS = list(range(WORLD))
COUNT = 12  # of the elements of each rank; each of WORLD gets as many


def of(rank: int, count: int = COUNT) -> torch.Tensor:
    return part_of(rank, count, torch.float32)


def total(count: int = COUNT) -> torch.Tensor:
    return torch.stack([of(rank, count) for rank in RANKS]).sum(0)


def wrong(found: dict[str, bool]) -> dict[str, Any]:
    return {"wrong": [name for name, right in found.items() if not right], "checked": len(found)}


def functional() -> dict[str, Any]:
    """Every functional collective, and one that writes into a given tensor."""
    ops, before = torch.ops._c10d_functional, ultima.torch.receipt_summary().ops
    name = dist.group.WORLD.group_name
    mine, part = of(RANK), slice(RANK * COUNT // WORLD, (RANK + 1) * COUNT // WORLD)
    whole = torch.cat([of(rank) for rank in RANKS])
    found = {
        "all_reduce": torch.equal(funcol.all_reduce(mine, "sum", RANKS), total()),
        "all_reduce max": torch.equal(
            funcol.all_reduce(mine, "max", RANKS), torch.stack([of(rank) for rank in RANKS]).amax(0)
        ),
        "broadcast": torch.equal(funcol.broadcast(mine, 1, RANKS), of(1)),
        "all_gather": torch.equal(funcol.all_gather_tensor(mine, 0, RANKS), whole),
        "all_gather, other dimension": torch.equal(
            funcol.all_gather_tensor(mine.view(3, -1), 1, RANKS),
            torch.cat([of(rank).view(3, -1) for rank in RANKS], 1),
        ),
        "reduce_scatter": torch.equal(funcol.reduce_scatter_tensor(mine, "sum", 0, RANKS), total()[part]),
        "all_to_all": torch.equal(
            funcol.all_to_all_single(mine, None, None, RANKS), torch.cat([of(rank)[part] for rank in RANKS])
        ),
        "all_to_all, sizes": torch.equal(
            funcol.all_to_all_single(of(RANK, 10), [RANK + 1] * WORLD, [1, 2, 3, 4], RANKS),
            torch.cat([of(rank, 10).split([1, 2, 3, 4])[RANK] for rank in RANKS]),
        ),
    }
    several = [mine, of(RANK, 2 * COUNT)]
    wanted = [total(), total(2 * COUNT)]
    found["all_reduce coalesced"] = all(map(torch.equal, funcol.all_reduce_coalesced(several, "sum", RANKS), wanted))
    gathered = funcol.all_gather_into_tensor_coalesced(several, RANKS)
    found["all_gather coalesced"] = torch.equal(gathered[0], whole) and gathered[1].numel() == 2 * COUNT * WORLD
    scattered = funcol.reduce_scatter_tensor_coalesced(several, "sum", [0, 0], RANKS)
    found["reduce_scatter coalesced"] = torch.equal(scattered[0], total()[part])
    out = torch.empty(COUNT // WORLD)
    ops.wait_tensor(ops.reduce_scatter_tensor_out(mine, "sum", WORLD, name, out=out))
    found["reduce_scatter into"] = torch.equal(out, total()[part])
    return {**wrong(found), "ops": ultima.torch.receipt_summary().ops - before}


def into_given() -> dict[str, Any]:
    """The one functional collective for which torch asks its own C++ for a backend: the result, or what torch says."""
    name, out = dist.group.WORLD.group_name, torch.empty(COUNT * WORLD)
    try:
        torch.ops._c10d_functional.all_gather_into_tensor_out(of(RANK), WORLD, name, out=out)
        torch.ops._c10d_functional.wait_tensor(out)
    except RuntimeError as error:
        return {"text": str(error)}
    return {"right": torch.equal(out, torch.cat([of(rank) for rank in range(WORLD)]))}


def gradients() -> dict[str, Any]:
    """The backward passes of the functional collectives: what was scattered is gathered, and the other way round."""
    whole = torch.arange(COUNT * WORLD, dtype=torch.float32)
    leaf = of(RANK).requires_grad_()
    (funcol.all_gather_tensor_autograd(leaf, 0, RANKS) * whole).sum().backward()
    found = {"all_gather": torch.equal(leaf.grad, WORLD * whole.view(WORLD, -1)[RANK])}
    leaf = of(RANK).requires_grad_()
    (funcol.reduce_scatter_tensor_autograd(leaf, "sum", 0, RANKS) * (RANK + 1)).sum().backward()
    found["reduce_scatter"] = torch.equal(leaf.grad, torch.arange(1.0, WORLD + 1).repeat_interleave(COUNT // WORLD))
    leaf = of(RANK).requires_grad_()
    (funcol.all_to_all_single_autograd(leaf, [3] * WORLD, [3] * WORLD, RANKS) * (RANK + 1)).sum().backward()
    found["all_to_all"] = torch.equal(leaf.grad, torch.arange(1.0, WORLD + 1).repeat_interleave(COUNT // WORLD))
    return wrong(found)


def dtensor() -> dict[str, Any]:
    """Tensors that are spread over a mesh: taken apart, put together, spread another way, and multiplied."""
    mesh = init_device_mesh("cpu", (WORLD,))
    found = {}
    for rows in (8, 7, 2):  # equal shards, unequal ones, and ranks with nothing
        whole = of(0, rows * 6).view(rows, 6)
        spread = distribute_tensor(whole, mesh, [Shard(0)])
        found[f"{rows} full_tensor"] = torch.equal(spread.full_tensor(), whole)
        across = spread.redistribute(mesh, [Shard(1)])
        mine = torch.chunk(whole, WORLD, 1)
        found[f"{rows} across"] = torch.equal(across.to_local(), mine[RANK] if len(mine) > RANK else whole[:, :0])
        found[f"{rows} across and back"] = torch.equal(across.full_tensor(), whole)
        everywhere = spread.redistribute(mesh, [Replicate()])
        found[f"{rows} replicate"] = torch.equal(everywhere.to_local(), whole)
        summed = DTensor.from_local(of(RANK, rows * 6).view(rows, 6), mesh, [Partial()], run_check=False)
        wanted = total(rows * 6).view(rows, 6)
        found[f"{rows} partial"] = torch.equal(summed.full_tensor(), wanted)
        found[f"{rows} partial to shards"] = torch.equal(summed.redistribute(mesh, [Shard(0)]).full_tensor(), wanted)
        other = of(1, 6 * 4).view(6, 4)
        product = spread @ distribute_tensor(other, mesh, [Replicate()])
        found[f"{rows} product"] = torch.equal(product.full_tensor(), whole @ other)
        inner = across @ distribute_tensor(other, mesh, [Shard(0)])
        found[f"{rows} inner product"] = torch.equal(inner.full_tensor(), whole @ other)
    found["random"] = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).sum().full_tensor().item() == 16
    return wrong(found)


def whole_gradients(model: nn.Module) -> list[float]:
    return flat(parameter.grad.full_tensor() for parameter in model.parameters())


def mesh_of_two() -> Any:
    return init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("copies", "shards"))


def fsdp_replicates() -> dict[str, Any]:
    """FSDP2's own replication: shards of two, each on two ranks."""
    model = network()
    sharded = copy.deepcopy(model)
    mesh = mesh_of_two()
    for layer in sharded[::2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    errors = []
    for step in range(2):
        sharded.zero_grad()
        loss_of(sharded, data(RANK, step)).backward()
        wanted = mean_gradients(model, lambda rank, step=step: [data(rank, step)])
        errors.append(off(whole_gradients(sharded), wanted))
    return {"error": max(errors)}


def fsdp_hooked() -> dict[str, Any]:
    """The same shards, replicated by our hook over the other dimension of the mesh."""
    model = network()
    sharded = copy.deepcopy(model)
    mesh = mesh_of_two()
    for layer in sharded[::2]:
        fully_shard(layer, mesh=mesh["shards"])
    fully_shard(sharded, mesh=mesh["shards"])
    state = HookState(group=mesh["copies"].get_group())
    hook_fsdp(sharded, state)
    errors = []
    for step in range(2):
        sharded.zero_grad()
        loss_of(sharded, data(RANK, step)).backward()
        wanted = mean_gradients(model, lambda rank, step=step: [data(rank, step)])
        errors.append(off(whole_gradients(sharded), wanted))
        taken = state.step_ok()
    return {"error": max(errors), "taken": taken, "ops": state.summary().ops > 0}


def fsdp_mixed() -> dict[str, Any]:
    """Parameters gathered in bfloat16, gradients reduced in float32."""
    model = network()
    sharded = copy.deepcopy(model)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(sharded, mesh=mesh_of_two(), mp_policy=policy)
    loss_of(sharded, data(RANK, 0)).backward()
    wanted = mean_gradients(model, lambda rank: [data(rank, 0)])
    return {"error": off(whole_gradients(sharded), wanted), "dtype": str(next(sharded.parameters()).grad.dtype)}


def ddp_mixed() -> dict[str, Any]:
    """DDP's own mixed precision, with Gloo and with Ultima: the gradients, or what torch says."""
    found = {}
    for name, group in {"ultima": None, "gloo": dist.new_group(RANKS, backend="gloo")}.items():
        model = network()
        try:
            half = _MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
            ddp = DistributedDataParallel(copy.deepcopy(model), process_group=group, mixed_precision=half)
            loss_of(ddp, data(RANK, 0)).backward()
            wanted = mean_gradients(model, lambda rank: [data(rank, 0)])
            found[name] = {"error": off(flat(p.grad for p in ddp.parameters()), wanted)}
        except RuntimeError as error:
            found[name] = {"text": str(error).splitlines()[0]}
    return found


SHARED: tuple[Callable[[], dict[str, Any]], ...] = (
    functional,
    into_given,
    gradients,
    dtensor,
    fsdp_replicates,
    fsdp_hooked,
    fsdp_mixed,
    ddp_mixed,
)


def shared() -> dict[str, Any]:
    return in_turn(SHARED, 40)


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert sys.argv[1] == "shared"
    print(json.dumps(shared()), flush=True)
