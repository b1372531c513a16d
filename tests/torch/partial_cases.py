# SPDX-License-Identifier: Apache-2.0
"""What one rank does in test_partial_hook.py, over real daemons. As in cases.py, the last line of its output is JSON.

The functions of SHARED run one after the other in the same processes.
"""

import copy
import json
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.torch.cases import RANK, WORLD
from tests.torch.hook_cases import data, gradients, loss_of, mean_gradients, network, off
from tests.torch.in_turn import in_turn
from ultima.base.errors import InvalidArgument
from ultima.torch import RNA, EagerSGD, PartialState, partial_hook


def wrapped(policy: str, model: nn.Module, **options: Any) -> tuple[DistributedDataParallel, PartialState]:
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.008)
    state = PartialState(ddp, policy, **{"sync_every": 0, **options})
    ddp.register_comm_hook(state, partial_hook)
    return ddp, state


def flag(name: str, whose: int) -> None:
    """Rank |whose| says that it is so far; the others wait for that."""
    store = dist.distributed_c10d._get_default_store()
    if whose == RANK:
        store.set(f"partial/{name}", "there")
    store.wait([f"partial/{name}"])


def values() -> dict[str, Any]:
    """Gradients of three steps against means that are made here; DDP cuts its buckets anew after the first."""
    model = network()
    ddp, state = wrapped("full", copy.deepcopy(model))
    errors = []
    for step in range(3):
        ddp.zero_grad()
        loss_of(ddp, data(RANK, step)).backward()
        errors.append(off(gradients(ddp), mean_gradients(model, lambda rank, step=step: [data(rank, step)])))
    found = {
        "error": max(errors),
        "rounds": state.rounds,
        "fresh": state.summary().fresh,
        "steps": state.summary().steps,
    }
    state.finish()
    return found


def late() -> dict[str, Any]:
    """Rank 1 is held up before its third backward pass until rank 0 has made six more rounds, and takes the newest."""
    model = network()
    ddp, state = wrapped("solo", copy.deepcopy(model))
    for step in range(2):  # DDP itself meets in the second forward pass
        ddp.zero_grad()
        loss_of(ddp, data(RANK, step)).backward()
    dist.barrier()
    before = state.rounds
    if RANK == 0:
        for step in range(6):
            ddp.zero_grad()
            loss_of(ddp, data(0, step)).backward()
        flag("six rounds", 0)
    else:
        flag("six rounds", 0)
        until_here(state, before + 5)
        ddp.zero_grad()
        loss_of(ddp, data(1, 9)).backward()
    newest = [value / WORLD for value in alone(model, 0, 5)]
    found = {"error": off(gradients(ddp), newest)}
    found |= {
        "rounds": state.rounds - before,
        "missed": state.summary().missed,
        "averaged": state.summary().averaged,
        "steps": state.summary().steps,
    }
    state.finish()
    return found


def until_here(state: PartialState, op_seq: int) -> None:
    """Waits for the result of op |op_seq| on this host, which other hosts may have a moment earlier; takes nothing."""
    partial = state._rounds.partial
    assert partial is not None
    ends = time.monotonic() + 30
    while partial._connection.session.words().results <= op_seq:
        assert time.monotonic() < ends, f"no result of op {op_seq}"
        time.sleep(0.001)


def alone(model: nn.Module, rank: int, step: int) -> list[float]:
    mine = copy.deepcopy(model)
    loss_of(mine, data(rank, step)).backward()
    return gradients(mine)


def meetings() -> dict[str, Any]:
    """Replicas that made other steps are equal after meetings that neither asked for, and again in the end."""
    ddp, state = wrapped("solo", network(), sync_every=5)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    while state.rounds < 12:
        optimizer.zero_grad()
        loss_of(ddp, data(RANK, state.rounds)).backward()
        optimizer.step()
    syncs = state.summary().sync.syncs
    state.finish()
    return {"syncs": syncs, "parameters": fingerprint(ddp)}


def fingerprint(model: nn.Module) -> list[float]:
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


def optimizers() -> dict[str, Any]:
    """Both wrappers train the same small problem over real daemons."""
    found: dict[str, Any] = {}
    for name, make in {
        "eager majority": lambda inner: EagerSGD(inner, "majority", sync_every=20),
        "eager quorum": lambda inner: EagerSGD(inner, "quorum", sync_every=20),
        "rna probe": lambda inner: RNA(inner, "probe", scale="mean", sync_every=20),
        "rna seeded": lambda inner: RNA(inner, "seeded", scale="mean", sync_every=20),
    }.items():
        model = network()
        first = float(loss_of(model, data(7, 7)).detach())
        with make(torch.optim.SGD(model.parameters(), lr=0.2)) as optimizer:
            while optimizer.rounds < 60:
                optimizer.zero_grad()
                loss_of(model, data(RANK, optimizer.rounds)).backward()
                optimizer.step()
            included = [optimizer.summary().included_ratio(rank) for rank in range(WORLD)]
        last = float(loss_of(model, data(7, 7)).detach())
        found[name] = {"gain": last / first, "included": included, "parameters": fingerprint(model)}
    return found


def hierarchy() -> dict[str, Any]:
    """Rank 1 says that it is slow: two groups of one rank, at 2 and 6, which see each other's model. Then one again."""
    parameter = nn.Parameter(torch.zeros(1000))
    optimizer = RNA(torch.optim.SGD([parameter], lr=0.0), "seeded", hierarchy=True)
    groups = []
    for slow in (1.0, 9.0, 1.0):
        for _ in range(20):
            assert optimizer._hierarchy is not None
            optimizer._hierarchy.note(slow if RANK == 1 else 1.0)
        optimizer.regroup()
        groups.append(optimizer.groups)
        if len(optimizer.groups) > 1:
            with torch.no_grad():
                parameter.fill_(2.0 if RANK == 0 else 6.0)
            dist.barrier()
            for _ in range(10):
                optimizer.zero_grad()
                (parameter * 1.0).sum().backward()
                optimizer.step()
            shared = float(parameter[0].detach())
            dist.barrier()
    optimizer.finish()
    return {"groups": groups, "shared": shared, "last": parameter.tolist()}


def refusals() -> dict[str, Any]:
    found = {}
    for name, model, options in (
        ("find_unused_parameters", network(), {"find_unused_parameters": True}),
        ("broadcast_buffers", nn.Sequential(nn.Linear(20, 7), nn.BatchNorm1d(7)), {}),
    ):
        ddp = DistributedDataParallel(model, **options)
        try:
            PartialState(ddp)
        except InvalidArgument as error:
            found[name] = [error.field, str(error)]
    try:
        PartialState(network())  # type: ignore[arg-type]
    except InvalidArgument as error:
        found["model"] = [error.field, str(error)]
    return found


SHARED = (values, late, meetings, optimizers, hierarchy, refusals)

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(in_turn(SHARED, 30)), flush=True)
