# SPDX-License-Identifier: Apache-2.0
"""What one rank does in the tests of this folder; `ranks.py` starts it. The last line of its output is JSON.

Values are small whole numbers, so that sums are exact in every type and any order. A function of SHARED runs in the
same processes as all others of that table, in its order; what it returns is its result on this rank.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ultima
import ultima.torch
from tests.patience import be_patient
from tests.torch.in_turn import in_turn
from ultima.torch.backend.work import UltimaWork

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
be_patient()
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)
OPS = {
    "SUM": (dist.ReduceOp.SUM, lambda parts: sum(parts)),
    "AVG": (dist.ReduceOp.AVG, lambda parts: _average(parts)),
    "MIN": (dist.ReduceOp.MIN, lambda parts: torch.stack(parts).amin(0)),
    "MAX": (dist.ReduceOp.MAX, lambda parts: torch.stack(parts).amax(0)),
    "PRODUCT": (dist.ReduceOp.PRODUCT, lambda parts: torch.stack(parts).prod(0)),
}
COUNTS = (0, 1, 2, 63, 1000, 40_001)


def part_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What |rank| contributes: whole numbers from -4 to 4, different on every rank and at every index."""
    return ((torch.arange(count) * 5 + rank * 7) % 9 - 4).to(dtype)


def _average(parts: list[torch.Tensor]) -> torch.Tensor:
    total = torch.stack(parts).double().sum(0) / len(parts)
    return total if parts[0].is_floating_point() else total.trunc()


def expected(op: str, count: int, dtype: torch.dtype) -> torch.Tensor:
    parts = [part_of(rank, count, dtype) for rank in range(WORLD)]
    result: torch.Tensor = OPS[op][1](parts)
    return result.to(dtype)


def values() -> dict[str, Any]:
    """Every type, operation and count, against sums made here."""
    wrong, checked = [], 0
    before = ultima.torch.receipt_summary().ops
    for dtype in TYPES:
        for op, (torch_op, _) in OPS.items():
            for count in COUNTS:
                tensor = part_of(RANK, count, dtype)
                dist.all_reduce(tensor, op=torch_op)
                checked += 1
                if not torch.equal(tensor, expected(op, count, dtype)):
                    wrong.append(f"{dtype} {op} {count}")
    return {"wrong": wrong, "checked": checked, "ops": ultima.torch.receipt_summary().ops - before}


def shapes() -> dict[str, Any]:
    """Memory that is not one run of elements: the result must come back into it, and nothing else may change."""
    base = torch.zeros(6, 8)
    base[:, 1:5] = part_of(RANK, 24, torch.float32).view(6, 4)
    view = base[:, 1:5]
    dist.all_reduce(view)
    strided = bool(torch.equal(view.reshape(-1), expected("SUM", 24, torch.float32)))
    outside = float(base[:, 0].abs().sum() + base[:, 5:].abs().sum())
    scalar = torch.tensor(RANK + 1)
    dist.all_reduce(scalar)
    leaf = nn.Parameter(part_of(RANK, 10, torch.float32))
    dist.all_reduce(leaf)
    return {
        "strided": strided,
        "outside": outside,
        "scalar": int(scalar),
        "leaf": bool(torch.equal(leaf.detach(), expected("SUM", 10, torch.float32))),
    }


def asynchronous() -> dict[str, Any]:
    """Many at once, waited for in the wrong order, by every way that torch has to wait."""
    tensors = [part_of(RANK, 500 + index, torch.float32) for index in range(12)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    ours = all(isinstance(work, UltimaWork) for work in works)
    for work in reversed(works[:4]):
        work.wait()
    for work in works[4:8]:
        work.get_future().wait()
    halves = [work.get_future().then(lambda done: done.value()[0] / 2) for work in works[8:]]
    halved = all(
        torch.equal(half.wait(), expected("SUM", 508 + index, torch.float32) / 2) for index, half in enumerate(halves)
    )
    right = all(torch.equal(tensor, expected("SUM", 500 + i, torch.float32)) for i, tensor in enumerate(tensors))
    last = works[-1]
    last.wait(timedelta(seconds=10))
    return {
        "ours": ours,
        "right": right,
        "halved": halved,
        "completed": last.is_completed() and last.is_success() and last.exception() is None,
        "result": last.result()[0] is tensors[-1],
        "receipts": [receipt.status for receipt in last.receipts],
    }


def unasked() -> dict[str, Any]:
    """Threads that a group has started after async ops of each size, waited for and nothing else."""
    group = dist.new_group([0, 1])
    found = {}
    for name, count in {"small": 1000, "small again": 1000, "large": 1 << 20}.items():
        tensor = torch.full((count,), float(RANK))
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        found[name] = {"sum": float(tensor[-1]), "threads": len(group._finishers._threads)}
    dist.destroy_process_group(group)
    return found


def nested() -> dict[str, Any]:
    """A callback that itself reduces and waits, as PowerSGD's hook does: one thread for all would wait for itself."""

    def again(done: Any) -> torch.Tensor:
        tensor: torch.Tensor = done.value()[0].clone()
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        return tensor

    tensor = torch.ones(100)
    outer = dist.all_reduce(tensor, async_op=True).get_future().then(again)
    return {"value": float(outer.wait()[0])}


def patience() -> dict[str, Any]:
    """Waiting with a limit of one's own: NotDone, then the result all the same."""
    tensor = torch.ones(1000)
    if RANK == 1:
        time.sleep(0.4)
        dist.all_reduce(tensor)
        return {"gave_up": True, "value": float(tensor[0])}
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait(timedelta(milliseconds=100))
        gave_up = False
    except ultima.NotDone:
        gave_up = True
    work.wait()
    return {"gave_up": gave_up, "value": float(tensor[0])}


def pieces() -> dict[str, Any]:
    """A tensor of several pieces: all of it right, a receipt for each."""
    count = 3 * ultima.torch.PIECE_BYTES_MAX // 4 // 2
    tensor = part_of(RANK, count, torch.float32)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return {"right": bool(torch.equal(tensor, expected("SUM", count, torch.float32))), "receipts": len(work.receipts)}


def others() -> dict[str, Any]:
    """Other collectives, and the all-reduces that Ultima has no elements for."""
    found: dict[str, Any] = {}
    tensor = part_of(RANK, 10, torch.float32)
    dist.broadcast(tensor, src=1)
    found["broadcast"] = torch.equal(tensor, part_of(1, 10, torch.float32))
    gathered = [torch.zeros(3) for _ in range(WORLD)]
    dist.all_gather(gathered, torch.full((3,), float(RANK)))
    found["all_gather"] = [int(part[0]) for part in gathered] == list(range(WORLD))
    scattered = torch.zeros(2)
    dist.reduce_scatter(scattered, [torch.full((2,), float(RANK + index)) for index in range(WORLD)])
    found["reduce_scatter"] = float(scattered[0]) == sum(rank + RANK for rank in range(WORLD))
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, {"rank": RANK})
    found["all_gather_object"] = [item["rank"] for item in objects] == list(range(WORLD))
    if RANK == 0:
        dist.send(torch.full((2,), 7.0), 1)
    else:
        received = torch.zeros(2)
        dist.recv(received, 0)
        found["recv"] = float(received[0]) == 7.0
    dist.barrier()
    small = torch.full((4,), RANK + 1, dtype=torch.uint8)
    dist.all_reduce(small)
    found["uint8"] = int(small[0]) == sum(range(1, WORLD + 1))
    flags = torch.full((1,), 1 << RANK, dtype=torch.int32)
    dist.all_reduce(flags, op=dist.ReduceOp.BOR)
    found["BOR"] = int(flags) == (1 << WORLD) - 1
    return {"wrong": [name for name, right in found.items() if not right]}


def unsupported() -> dict[str, Any]:
    """Elements that nobody can reduce: one sentence, on the rank that asked, before anything is sent."""
    try:
        dist.all_reduce(torch.zeros(4, dtype=torch.float8_e4m3fn))
    except ultima.InvalidArgument as error:
        return {"error": str(error)}
    return {"error": ""}


def subgroups() -> dict[str, Any]:
    """Groups beside the default one are jobs of their own; one of a single rank needs no daemon."""
    both = dist.new_group([0, 1])
    alone = dist.new_group([RANK], use_local_synchronization=True)
    first, second, third = (part_of(RANK, 100, torch.float32) for _ in range(3))
    in_default = dist.all_reduce(first, async_op=True)
    in_both = dist.all_reduce(second, group=both, async_op=True)
    dist.all_reduce(third, group=alone)
    in_both.wait()
    in_default.wait()
    receipts = len(ultima.torch.last_receipts(group=both))
    dist.destroy_process_group(both)
    dist.all_reduce(first)
    return {
        "right": all(torch.equal(tensor, expected("SUM", 100, torch.float32)) for tensor in (second,)),
        "twice": bool(torch.equal(first, 2 * expected("SUM", 100, torch.float32))),
        "alone": bool(torch.equal(third, part_of(RANK, 100, torch.float32))),
        "receipts": receipts,
    }


def not_ours() -> dict[str, Any]:
    """Receipts of a group that keeps none."""
    gloo = dist.new_group([0, 1], backend="gloo")
    try:
        ultima.torch.receipt_summary(gloo)
    except ultima.InvalidArgument as error:
        return {"error": str(error)}
    return {"error": ""}


def _train(group: Any, hook: Any = None) -> tuple[list[float], list[float]]:
    """Five steps of a small network under DDP; its parameters afterwards, and the loss of each step."""
    torch.manual_seed(11)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)),
        process_group=group,
        bucket_cap_mb=0.01,  # type: ignore[arg-type]  # several buckets, so that several are under way
    )
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + RANK)
    losses = []
    for _ in range(5):
        inputs = torch.randn(16, 20, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :3]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist(), losses


def ddp() -> dict[str, Any]:
    """The same training with Ultima, with Gloo, and with Ultima's own hook."""
    before = ultima.torch.receipt_summary().ops
    mine, losses = _train(None)
    ops = ultima.torch.receipt_summary().ops - before
    hooked, _ = _train(None, ultima.torch.average_hook)
    theirs, _ = _train(dist.new_group(list(range(WORLD)), backend="gloo"))
    return {"ultima": mine, "gloo": theirs, "hooked": hooked, "losses": losses, "ops": ops}


def receipts() -> dict[str, Any]:
    """The last receipts are those of the last ops, oldest first; the summary counts on."""
    before = ultima.torch.receipt_summary()
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    after = ultima.torch.receipt_summary()
    last = ultima.torch.last_receipts(3)
    return {
        "ops": after.ops - before.ops,
        "complete": after.complete - before.complete,
        "expected": after.expected_bytes - before.expected_bytes,
        "missing": after.missing_bytes,
        "failed": after.failed,
        "numbers": [receipt.op_seq for receipt in last],
        "contributors": [list(receipt.contributors) for receipt in last],
        "times": 0 < after.p50_us <= after.p99_us,
    }


def unhurried() -> dict[str, Any]:
    """What an op has when all know by now how long such an op takes."""
    for _ in range(45):
        dist.all_reduce(torch.ones(1000))
    last = ultima.torch.last_receipts(1)[0]
    return {"measured": last.t_b_s is not None, "seconds": last.deadline_s}


def retimed() -> dict[str, Any]:
    """Another timeout for a group, in each of torch's two ways: what its ops have then, lossy and reliable."""
    group, found = dist.new_group([0, 1]), []
    for seconds in (7, 9):
        limit = timedelta(seconds=seconds)
        if seconds == 7:
            dist.distributed_c10d._set_pg_timeout(limit, group)
        else:
            group.set_timeout(limit)
        dist.all_reduce(torch.ones(10), group=group)
        dist.all_reduce(torch.ones(10, dtype=torch.int64), group=group)
        dist.barrier(group=group)
        told = [receipt.deadline_s for receipt in ultima.torch.last_receipts(3, group)]
        gloo = group._get_backend(torch.device("cpu"))
        found.append({"seconds": told, "group": group.timeout_s, "gloo": gloo.options._timeout.total_seconds()})
    dist.destroy_process_group(group)
    return {"found": found}


def desync() -> dict[str, Any]:
    """Another count on one rank, in a group of its own: an error that says so on both."""
    group = dist.new_group([0, 1])
    started = time.monotonic()
    try:
        dist.all_reduce(torch.ones(100 + RANK), group=group)
    except ultima.Desync as error:
        return {
            "field": error.field,
            "rank": error.rank,
            "mine": error.mine,
            "theirs": error.theirs,
            "seconds": time.monotonic() - started,
            "failed": ultima.torch.receipt_summary(group).failed,
        }
    return {"field": "", "rank": None}


SHARED: tuple[Callable[[], dict[str, Any]], ...] = (
    values,
    shapes,
    asynchronous,
    unasked,
    nested,
    patience,
    pieces,
    others,
    unsupported,
    subgroups,
    not_ours,
    ddp,
    receipts,
    unhurried,
    retimed,
    desync,
)


def shared() -> dict[str, Any]:
    return in_turn(SHARED, 20)


def no_destroy() -> dict[str, Any]:
    """A script that just ends, with an op under way that will never be complete."""
    dist.init_process_group("ultima", timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(10))
    if RANK == 0:
        dist.all_reduce(torch.ones(10), async_op=True)
    return {"ended": True}


def destroyed() -> dict[str, Any]:
    """What is left of a group that was destroyed while DDP still holds it."""
    dist.init_process_group("ultima", timeout=timedelta(seconds=20))
    group = dist.group.WORLD
    assert group is not None
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(torch.ones(10), async_op=True).wait()
    names, before = (group.group_name, group.group_desc, dist.get_backend()), threads()
    dist.destroy_process_group()
    try:
        group.broadcast([torch.ones(2)], dist.BroadcastOptions())
        error = ""
    except ultima.ClosedHandle as closed:
        error = str(closed)
    return {"names": names, "before": before, "after": threads(), "error": error}


def threads() -> list[str]:
    """Names of this process's threads that are Gloo's or ours: as the kernel knows them, and as Python does."""
    kernel = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    python = [thread.name for thread in threading.enumerate()]
    return sorted({name for name in kernel + python if name.startswith(("pt_gloo", "ultima-torch"))})


def start_only() -> dict[str, Any]:
    """Joins; the error instead where that fails."""
    try:
        dist.init_process_group("ultima", timeout=timedelta(seconds=15))
    except ultima.UltimaError as error:
        return {"error": str(error), "kind": type(error).__name__}
    dist.destroy_process_group()
    return {"error": "", "kind": ""}


def one_leaves() -> dict[str, Any]:
    """Rank 1 is killed: rank 0 goes on, and its receipt says who is missing."""
    dist.init_process_group("ultima", timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(1000))
    if RANK == 1:
        os.kill(os.getpid(), 9)
    tensor = torch.full((1000,), 3.0)
    started = time.monotonic()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    receipt = ultima.torch.last_receipts(1)[0]
    return {
        "value": float(tensor[0]),
        "status": receipt.status,
        "missing": list(receipt.missing_ranks),
        "seconds": time.monotonic() - started,
    }


ALONE = {function.__name__: function for function in (shared, no_destroy, destroyed, start_only, one_leaves)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(ALONE[sys.argv[1]]()), flush=True)
