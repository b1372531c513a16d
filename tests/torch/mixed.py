# SPDX-License-Identifier: Apache-2.0
"""What one rank does in the tests of groups with a backend for each kind of device. As `cases.py`."""

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ultima
import ultima.torch
from tests.patience import be_patient
from ultima.torch import HookState, allreduce_hook
from ultima.torch.backend.group import group_of

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
be_patient()


def values(tensor: torch.Tensor) -> list[float]:
    return [float(value) for value in tensor.flatten()]


def beside() -> dict[str, Any]:
    """Ours for the CPU, Gloo in the place of NCCL for CUDA: each collective on the CPU, and who has which device."""
    dist.init_process_group("cpu:ultima,cuda:gloo", timeout=timedelta(seconds=20))
    group = dist.group.WORLD
    mine, others = torch.full((4,), 1.0 + RANK), [torch.zeros(4) for _ in range(WORLD)]
    found: dict[str, Any] = {
        "torch's own": type(group) is dist.ProcessGroup,
        "cuda": type(group._get_backend(torch.device("cuda"))).__name__,
    }
    total = mine.clone()
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    found["all_reduce"] = values(total)
    dist.broadcast(given := mine.clone(), src=1)
    found["broadcast"] = values(given)
    dist.all_gather(others, mine)
    found["all_gather"] = [values(each)[0] for each in others]
    dist.all_gather_into_tensor(whole := torch.zeros(4 * WORLD), mine)
    found["all_gather_into_tensor"] = values(whole[::4])
    dist.reduce_scatter_tensor(part := torch.zeros(2), mine)
    found["reduce_scatter_tensor"] = values(part)
    dist.all_to_all_single(taken := torch.zeros(4), mine)
    found["all_to_all_single"] = values(taken)
    dist.reduce(reduced := mine.clone(), dst=0)
    found["reduce"] = values(reduced)[0] if RANK == 0 else 3.0
    sparse = torch.eye(WORLD)[RANK].to_sparse()
    dist.all_reduce(sparse)
    found["sparse"] = values(sparse.to_dense())
    if RANK == 0:
        dist.send(mine, 1)
    else:
        dist.recv(given, 0)
        found["recv"] = values(given)[0]
    outs = [torch.zeros(WORLD * count) for count in (1, 2)]
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, mine[: out.numel() // WORLD])
    manager.wait()
    found["coalesced"] = [values(out) for out in outs]
    dist.barrier()
    before = ultima.torch.receipt_summary().ops
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    model.register_comm_hook(HookState(), allreduce_hook)
    model(mine.view(1, 4)).sum().backward()
    found["ddp"] = values(next(model.parameters()).grad)
    found["ops of DDP"] = ultima.torch.receipt_summary().ops > before
    found["receipts"] = len(ultima.torch.last_receipts()) > 0
    held = group_of(None)
    dist.destroy_process_group()
    found["closed"] = held.job is None
    return found


def other_way() -> dict[str, Any]:
    """Gloo for the CPU: no op of ours."""
    dist.init_process_group("cpu:gloo,cuda:ultima", timeout=timedelta(seconds=20))
    dist.all_reduce(total := torch.full((4,), 1.0 + RANK))
    found = {"all_reduce": values(total), "ops": ultima.torch.receipt_summary().ops}
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        answer = {case.__name__: case for case in (beside, other_way)}[sys.argv[1]]()
    except ultima.InvalidArgument as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer), flush=True)
