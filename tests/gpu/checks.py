# SPDX-License-Identifier: Apache-2.0
"""What a rank of `make gpu` does: `main.py` starts two of them on one device, with the names of the checks.

    python -m tests.gpu.checks [--fake] NAME...

For each check a rank prints one line of JSON: its name, whether all was right, what was wrong, and figures. A rank
whose check failed ends, since it and the other may no longer agree on what comes next.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ultima.torch as ut
from tests.gpu.collectives import wrong_of_all
from tests.gpu.hardware import Fake, Real
from tests.torch.hook_cases import data, loss_of, mean_gradients, network, off
from ultima.sparse import Feedback
from ultima.torch.backend.staging import PAGE
from ultima.torch.hooks.state import HookState
from ultima.torch.sparse import SparseState
from ultima.torch.sparse.device import DeviceFeedback

Found = dict[str, Any]
GROUP_S = 30
EXACT = 1e-4  # single precision, sums in another order and on another device

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def reliable() -> HookState:
    return HookState(mode="reliable", deadline=GROUP_S, budget=None)


def milliseconds(here: Real | Fake, act: Callable[[], object], times: int) -> float:
    act()
    here.wait()
    started = time.perf_counter()
    for _ in range(times):
        act()
    here.wait()
    return round((time.perf_counter() - started) / times * 1e3, 3)


def pinning(here: Real | Fake) -> Found:
    """Whether the driver pins the arena, and whether a refusal stays behind as the error of the next kernel."""
    job: Any = ut.group_of(None).job
    room = torch.from_numpy(job.empty(16 * PAGE, "uint8"))
    block = room[-room.data_ptr() % PAGE :][: 8 * PAGE]
    card: Any = here.card
    card.pin(block)
    taken = block.data_ptr() in card._pinned
    card.pin(block)  # is refused: it is pinned
    here.cuda._sleep(1)
    here.wait()
    card.unpin(block)
    here.cuda._sleep(1)
    here.wait()
    return {"wrong": [] if taken else ["the arena is not pinned: copies are slow"]}


def values(here: Real | Fake) -> Found:
    """Staged averages of several types, sizes and strides, filled by slow kernels just before, twenty times eight."""
    wrong, state = [], reliable()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for count in (1, 1023, 40_007):
            plain = (torch.arange(count) % 61).to(dtype)
            tensor = here.tensor(plain * (RANK + 1))
            state.send(tensor, 0, True).wait()
            if not torch.equal(tensor.cpu().double(), (plain * 1.5).double()):
                wrong.append(f"{dtype}, {count} elements")
    strided = here.tensor(torch.full((6, 8), float(RANK))).t()
    state.send(strided, 0, True).wait()
    wrong += [] if float(strided.cpu().sum()) == 24.0 else ["a transposed tensor"]
    for turn in range(3 if here.fake else 20):
        tensors = [here.tensor(torch.zeros(2048)) for _ in range(8)]
        sent = []
        for at, tensor in enumerate(tensors):
            here.fill(tensor, float(turn * 8 + at + RANK), 1.0)
            sent.append(state.send(tensor, at, at == 7))
        for at, each in enumerate(sent):
            each.wait()
            if set(tensors[at].cpu().tolist()) != {turn * 8 + at + 0.5}:
                wrong.append(f"bucket {at} of turn {turn}")
    return {"wrong": wrong[:4]}


def staging(here: Real | Fake) -> Found:
    """Copies through the arena beside plain ones, and whether a whole averaging ends while kernels go on, by events.
    Ranks share the device and its time, so no duration is compared; of three turns one is enough.
    """
    job: Any = ut.group_of(None).job
    count, state, times = here.bytes // 4, reliable(), 2 if here.fake else 10
    there = here.tensor(torch.full((count,), float(RANK)))
    room = torch.from_numpy(job.empty(here.bytes + PAGE, "uint8"))
    block = room[-room.data_ptr() % PAGE :][: here.bytes]
    card: Any = here.card
    pageable = block.clone()
    card.pin(block)
    figures: Found = {}
    for name, memory in (("arena", block), ("pageable", pageable)):
        host = memory.view(torch.float32)
        for way, target, source in (("out", host, there), ("in", there, host)):

            def copy(target: Any = target, source: Any = source) -> None:
                target.copy_(source, non_blocking=True)

            took = milliseconds(here, copy, times)
            if not here.fake:
                figures[f"{name}_{way}_GBps"] = round(here.bytes / took / 1e6, 1)
    card.unpin(block)
    there.fill_(float(RANK))
    # The whole way there and back, alone, then beside kernels that take ten times as long.
    alone = milliseconds(here, lambda: state.send(there, 0, True).wait(), times)
    engine = float(np.median([receipt.elapsed_s for receipt in ut.last_receipts(times)])) * 1e3
    turns = [beside(here, state, there, max(10 * alone, 100.0)) for _ in range(3)]
    figures |= {"MB": round(here.bytes / 1e6, 1), "average_ms": alone, "of_it_engine_ms": round(engine, 2)}
    figures["beside_kernels_ms"] = [round(op, 2) for op, _, _ in turns]
    figures["kernels_ms"] = [round(compute, 2) for _, compute, _ in turns]
    figures["kernels_went_on"] = sum(went_on for _, _, went_on in turns)
    wrong = [] if float(there.cpu()[0]) == 0.5 else ["the average"]
    if not figures["kernels_went_on"]:
        wrong.append(f"no averaging ended before the kernels beside it: {figures}")
    return {"wrong": wrong, **figures}


def beside(here: Real | Fake, state: HookState, tensor: Any, ms: float) -> tuple[float, float, bool]:
    """An averaging that begins together with kernels of about |ms| milliseconds: how long it and they took, and whether
    they went on when it had ended. One that waits for them ends after them, however long they take.
    """
    tensor.fill_(float(RANK))
    here.wait()
    dist.barrier()
    began = here.moment()
    sent = state.send(tensor, 0, True)
    for _ in range(10):
        here.busy(ms / 10)
    computed = here.moment()
    with here.cuda.stream(here.cuda.Stream()):
        sent.wait()
        averaged = here.moment()
    averaged.synchronize()
    went_on = not computed.query()
    here.wait()
    return began.elapsed_time(averaged), began.elapsed_time(computed), went_on


def streams(here: Real | Fake) -> Found:
    """all_reduce of a tensor from a stream that is not the default one: sent when it is ready, read when it is back."""
    wrong = []
    stream = here.cuda.Stream()
    for turn in range(4 if here.fake else 40):
        tensor = here.tensor(torch.zeros(4096))
        here.wait()
        with here.cuda.stream(stream):
            here.fill(tensor, RANK + 1.0, 3.0)
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            if turn % 2:
                work.get_future().wait()
            else:
                work.wait()
            seen = set(tensor.clone().cpu().tolist())
        if seen != {3.0}:
            wrong.append(f"turn {turn}: {sorted(seen)[:3]}")
    return {"wrong": wrong[:4]}


def between(here: Real | Fake) -> Found:
    """Other collectives between staged buckets whose kernels are slow on one rank: all ranks keep one order."""
    wrong, state = [], reliable()
    for turn in range(2 if here.fake else 20):
        tensors = [here.tensor(torch.zeros(500)) for _ in range(3)]
        here.fill(tensors[0], float(RANK), 20.0 * RANK)
        sent = [state.send(tensors[0], 0, False)]
        here.fill(tensors[1], float(RANK), 0.1)
        dist.all_reduce(tensors[1])
        host = torch.full((500,), float(RANK))
        dist.all_reduce(host)
        here.fill(tensors[2], 4.0 + RANK, 0.1)
        sent.append(state.send(tensors[2], 1, True))
        for each in sent:
            each.wait()
        found = [float(tensor.cpu()[0]) for tensor in (*tensors, host)]
        if found != [0.5, 1.0, 4.5, 1.0]:
            wrong.append(f"turn {turn}: {found}")
    if not here.fake:
        net = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)) for _ in range(6)))
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net).to(here.device)
        model = DistributedDataParallel(net, device_ids=[0], bucket_cap_mb=0.002)  # type: ignore[arg-type]
        model.register_comm_hook(reliable(), ut.allreduce_hook)
        for _ in range(20):
            model.zero_grad()
            model(torch.randn(4, 8, 16, 16, device=here.device)).square().mean().backward()
        wrong += _apart([parameter.grad for parameter in model.parameters()], "gradients with SyncBatchNorm")
    return {"wrong": wrong[:4]}


def collectives(here: Real | Fake) -> Found:
    """All others, by Gloo; without a device, those of the CPU."""
    return {"wrong": wrong_of_all(here.device, here.busy)}


def ddp(here: Real | Fake) -> Found:
    """DDP without a hook and with each, beside Gloo's: the gradients that both halves give together, and a step's time.
    A size of its own for times, since the model whose gradients are checked is small: `step_MB` of gradients, which
    are copied out and in once a step, in as many pieces as `ops`. `alone_ms` is a step without another rank.
    """
    gloo = dist.new_group(backend="gloo")
    state, sparse = reliable(), SparseState(ratio=0.1, mode="reliable", deadline=GROUP_S)
    ways: dict[str, tuple[Any, Any, Any]] = {
        "gloo": (gloo, None, None),
        "unhooked": (None, None, None),
        "average_hook": (None, None, ut.average_hook),
        "allreduce_hook": (None, state, ut.allreduce_hook),
        "sparse_hook": (None, sparse, ut.sparse_hook),
    }
    wide, steps = 64 if here.fake else 2048, 5
    given = torch.randn(16, wide, device=here.device)
    layers = nn.Sequential(*(nn.Linear(wide, wide) for _ in range(4))).to(here.device)
    wrong, figures = [], Found()
    figures["step_MB"] = round(sum(parameter.nbytes for parameter in layers.parameters()) / 1e6, 1)
    figures["alone_ms"] = milliseconds(here, lambda: layers(given).square().mean().backward(), steps)
    layers.zero_grad()
    for name, (group, hook_state, hook) in ways.items():
        plain = network()
        model = DistributedDataParallel(copy.deepcopy(plain).to(here.device), process_group=group)
        if hook is not None:
            model.register_comm_hook(hook_state, hook)
        for step in range(3):
            model.zero_grad()
            loss_of(model, data(RANK, step).to(here.device)).backward()
            if name == "sparse_hook":
                continue
            wanted = mean_gradients(plain, lambda rank, step=step: [data(rank, step)])  # type: ignore[misc]
            found = torch.cat([parameter.grad.cpu().double().view(-1) for parameter in model.parameters()]).tolist()
            if off(found, wanted) > EXACT:
                wrong.append(f"{name}: step {step} is off by {off(found, wanted):.2g}")
        wrong += _apart([parameter.grad for parameter in model.parameters()], f"gradients of {name}")
        large = DistributedDataParallel(copy.deepcopy(layers), process_group=group)
        if hook is not None:
            fresh = type(hook_state)(mode="reliable", deadline=GROUP_S) if hook_state is not None else None
            large.register_comm_hook(fresh, hook)
        before = ut.receipt_summary().ops
        figures[f"{name}_ms"] = milliseconds(here, lambda: large(given).square().mean().backward(), steps)  # noqa: B023
        if ops := ut.receipt_summary().ops - before:
            figures[f"{name}_ops"] = round(ops / (steps + 1), 1)
    return {"wrong": wrong[:4], **figures}


def selection(here: Real | Fake) -> Found:
    """The entries that a sparse hook chooses on the device: those of the host, to the bit; and the time it takes."""
    size = 60_000 if here.fake else 25_000_000
    rules, wrong = Feedback(0, 0.01, choose="sampled"), []
    host, there = Feedback(size, 0.01, choose="sampled"), DeviceFeedback(size, here.device, rules)
    random = np.random.default_rng(5)
    for turn in range(3):
        given = random.standard_normal(size, np.float32)
        want = host.select(given)
        indices, values = there.select(torch.from_numpy(given).to(here.device))
        same = np.array_equal(indices.cpu().numpy(), want.indices)
        if not same or values.cpu().numpy().tobytes() != want.values.tobytes():
            wrong.append(f"turn {turn}")
    given = torch.from_numpy(given).to(here.device)
    return {"wrong": wrong, "elements": size, "select_ms": milliseconds(here, lambda: there.select(given), 5)}


def fsdp(here: Real | Fake) -> Found:
    """FSDP2 in groups of one rank, replicas by `hook_fsdp`."""
    from torch.distributed.fsdp import fully_shard

    kind = here.device.type
    # Each rank shards over itself alone, by a backend that the device has whatever else it is.
    mesh = dist.device_mesh.DeviceMesh(kind, torch.arange(WORLD).view(WORLD, 1), mesh_dim_names=("copies", "shards"))
    plain = network()
    sharded = copy.deepcopy(plain).to(here.device)
    for layer in sharded[::2]:
        fully_shard(layer, mesh=mesh["shards"])
    fully_shard(sharded, mesh=mesh["shards"])
    ut.hook_fsdp(sharded, reliable())
    wrong = []
    for step in range(3):
        sharded.zero_grad()
        loss_of(sharded, data(RANK, step).to(here.device)).backward()
        wanted = mean_gradients(plain, lambda rank, step=step: [data(rank, step)])  # type: ignore[misc]
        locals_ = [parameter.grad.to_local().cpu().double().view(-1) for parameter in sharded.parameters()]
        found = torch.cat(locals_).tolist()
        if off(found, wanted) > EXACT:
            wrong.append(f"step {step} is off by {off(found, wanted):.2g}")
    return {"wrong": wrong}


def _apart(tensors: list[Any], what: str) -> list[str]:
    """What to say where the ranks' tensors are not the same to the bit."""
    mine = torch.cat([tensor.detach().cpu().view(-1) for tensor in tensors]).numpy().tobytes()
    both: list[Any] = [None] * WORLD
    dist.all_gather_object(both, mine)
    return [] if both[0] == both[1] else [f"{what} differ between ranks"]


CHECKS: dict[str, Callable[[Any], Found]] = {
    each.__name__: each for each in (pinning, values, staging, streams, between, collectives, ddp, selection, fsdp)
}


def main(arguments: list[str]) -> int:
    here = Fake() if "--fake" in arguments else Real()
    dist.init_process_group("ultima", timeout=timedelta(seconds=GROUP_S))
    here.join()
    status = 0
    for name in arguments:
        if name not in CHECKS:
            continue
        started = time.perf_counter()
        try:
            told = CHECKS[name](here)
        except Exception as error:
            told = {"wrong": [f"{type(error).__name__}: {error}"[:400]], "trace": traceback.format_exc()[-6000:]}
        seconds = round(time.perf_counter() - started, 1)
        print(
            json.dumps({"check": name, "rank": RANK, "ok": not told["wrong"], "seconds": seconds, **told}), flush=True
        )
        if told["wrong"]:
            status = 1
            break
    sys.stdout.flush()
    os._exit(status)  # the other may wait for a collective that this one has given up


if __name__ == "__main__":
    main(sys.argv[1:])
