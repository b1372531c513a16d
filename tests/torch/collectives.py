# SPDX-License-Identifier: Apache-2.0
"""What one rank does in the tests of the collectives besides all-reduce. As `cases.py`.

Every collective is called on every type, form and odd shape against values made here; `who` says for each whether
Ultima had a part in it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor

import ultima
import ultima.torch
from tests.torch.cases import part_of
from tests.torch.in_turn import in_turn
from tests.torch.shapes import shaped

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MOVED = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
REDUCED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)
COUNTS = (0, 1, 7, 1000)
RANKS = range(WORLD)


def filled(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return part_of(rank, count, torch.float32).to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in every other element of some memory."""
    memory = tensor.new_zeros(2 * tensor.numel())
    memory[::2] = tensor
    return memory[::2]


def ops() -> int:
    return ultima.torch.receipt_summary().ops


class Calls:
    """Each collective as a function of (rank's tensor) -> result, and what it must be."""

    @staticmethod
    def broadcast(mine: torch.Tensor) -> list[torch.Tensor]:
        dist.broadcast(mine, src=1)
        return [mine]

    @staticmethod
    def all_gather(mine: torch.Tensor) -> list[torch.Tensor]:
        out = [torch.empty_like(mine) for _ in RANKS]
        dist.all_gather(out, mine)
        return out

    @staticmethod
    def all_gather_into_tensor(mine: torch.Tensor) -> list[torch.Tensor]:
        out = mine.new_empty(WORLD * mine.numel())
        dist.all_gather_into_tensor(out, mine)
        return list(out.split(mine.numel())) if mine.numel() else [mine] * WORLD

    @staticmethod
    def all_to_all_single(mine: torch.Tensor) -> list[torch.Tensor]:
        out = mine.new_empty(mine.numel() * WORLD)
        dist.all_to_all_single(out, torch.cat([mine] * WORLD))
        return list(out.split(mine.numel())) if mine.numel() else [mine] * WORLD

    @staticmethod
    def all_to_all(mine: torch.Tensor) -> list[torch.Tensor]:
        out = [torch.empty_like(mine) for _ in RANKS]
        dist.all_to_all(out, [mine] * WORLD)
        return out


def moved() -> dict[str, Any]:
    """What is only moved, of every type; and in memory that is not one run."""
    wrong, used = [], {}
    for name, call in ((name, getattr(Calls, name)) for name in vars(Calls) if not name.startswith("_")):
        before = ops()
        for dtype in MOVED:
            for count in COUNTS:
                for form in (torch.Tensor.clone, strided):
                    found = call(form(filled(RANK, count, dtype)))
                    expected = (
                        [filled(1, count, dtype)] if name == "broadcast" else [filled(r, count, dtype) for r in RANKS]
                    )
                    if not all(torch.equal(got, want) for got, want in zip(found, expected, strict=True)):
                        wrong.append(f"{name} {dtype} {count} {form.__name__}")
        used[name] = ops() - before
    return {"wrong": wrong, "used": used, "calls": len(MOVED) * len(COUNTS) * 2}


def reduced() -> dict[str, Any]:
    """reduce_scatter in both forms, of every type and operation."""
    wrong = []
    before = ops()
    for dtype in REDUCED:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
            for count in COUNTS:
                whole = [filled(rank, WORLD * count, dtype).double() for rank in RANKS]
                stacked = torch.stack(whole)
                total = stacked.amax(0) if op == dist.ReduceOp.MAX else stacked.sum(0)
                if op == dist.ReduceOp.AVG:
                    total = total / WORLD if dtype.is_floating_point else (total / WORLD).trunc()
                want = total[RANK * count : (RANK + 1) * count].to(dtype)
                out = torch.empty(count, dtype=dtype)
                mine = filled(RANK, WORLD * count, dtype)
                dist.reduce_scatter_tensor(out, strided(mine), op=op)
                listed = strided(torch.zeros(count, dtype=dtype))
                dist.reduce_scatter(listed, [mine[r * count : (r + 1) * count] for r in RANKS], op=op)
                if not torch.equal(out, want) or not torch.equal(listed, want):
                    wrong.append(f"{dtype} {op} {count}: {out[:4]} {listed[:4]} {want[:4]}")
    return {"wrong": wrong, "ops": ops() - before, "calls": 2 * len(REDUCED) * 3 * len(COUNTS)}


def odd() -> dict[str, Any]:
    """Parts of given sizes, sparse, complex and 8-bit floating-point tensors, and a broadcast of several pieces."""
    found: dict[str, Any] = {}
    sizes = [2, 5]
    taken = torch.zeros(2 * sizes[RANK])
    dist.all_to_all_single(taken, torch.full((7,), float(RANK)), [sizes[RANK]] * 2, sizes)
    found["split all_to_all"] = taken.tolist() == [float(r) for r in RANKS for _ in range(sizes[RANK])]
    sparse = torch.sparse_coo_tensor(torch.tensor([[RANK, 2]]), torch.tensor([1.0, 2.0]), (4,), check_invariants=True)
    dist.all_reduce(sparse)
    found["sparse"] = sparse.to_dense().tolist() == [1.0, 1.0, 4.0, 0.0]
    numbers = torch.complex(filled(RANK, 9, torch.float32), torch.full((9,), float(RANK)))
    both = dist.group.WORLD.allreduce([numbers], dist.AllreduceOptions())
    both.wait()
    found["complex"] = bool(
        torch.equal(numbers, torch.complex(sum(filled(r, 9, torch.float32) for r in RANKS), torch.ones(9)))
    )
    small = torch.full((6,), float(RANK)).to(torch.float8_e4m3fn)
    dist.broadcast(small, src=1)
    half = torch.full((9,), 60000.0 + 64 * RANK, dtype=torch.float16)  # a sum of two is none
    dist.all_reduce(half, op=dist.ReduceOp.AVG)
    found["average of large halves"] = half.tolist() == [60000.0 + 32 * (WORLD - 1)] * 9 or half.tolist()
    found["float8 moved"] = small.float().tolist() == [1.0] * 6
    eight = torch.float8_e4m3fn
    for name, call in {
        "coalesced": lambda: dist.all_reduce_coalesced([small]),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.zeros(3, dtype=eight), small),
        "reduce": lambda: dist.reduce(small, 0),
        "all_reduce": lambda: dist.all_reduce(small),
    }.items():
        try:
            call()
            found[f"float8 {name}"] = "no error"
        except ultima.InvalidArgument as error:
            found[f"float8 {name}"] = "tensor.dtype is torch.float8_e4m3fn" in str(error)
    for name, call in {
        "broadcast": lambda: dist.broadcast(sparse, 0),
        "all_gather": lambda: dist.all_gather([sparse, sparse], sparse),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.zeros(4), [sparse, sparse]),
        "reduce": lambda: dist.reduce(sparse, 0),
        "max": lambda: dist.all_reduce(sparse, op=dist.ReduceOp.MAX),
    }.items():
        try:
            call()
            found[f"sparse {name}"] = "no error"
        except RuntimeError as error:
            found[f"sparse {name}"] = any(word in str(error) for word in ("dense", "sparse")) or str(error)
    large = torch.full((ultima.torch.PIECE_BYTES_MAX + 5,), RANK, dtype=torch.uint8)
    before = ops()
    dist.broadcast(large, src=1)
    found["large"] = (int(large.min()), int(large.max()), ops() - before) == (1, 1, 2)
    return {"wrong": [name for name, right in found.items() if right is not True]}


def inference() -> dict[str, Any]:
    """Results are written by other threads, into tensors that may be written in inference mode alone."""
    mine = float(RANK)
    with torch.inference_mode():
        gathered, exchanged = ([torch.zeros(3) for _ in RANKS] for _ in range(2))
        total, column = torch.full((1 << 19,), mine), torch.full((4, 3), mine)[:, 1]
        sparse = torch.eye(WORLD)[RANK].to_sparse()
        dist.all_gather(gathered, torch.full((3,), mine), async_op=True).wait()
        dist.all_to_all(exchanged, [torch.full((3,), mine)] * WORLD, async_op=True).wait()
        for tensor in (total, column, sparse):
            dist.all_reduce(tensor, async_op=True).get_future().wait()
    found = {
        "all_gather": [each.tolist() for each in gathered] == [[float(rank)] * 3 for rank in RANKS],
        "all_to_all": [each.tolist() for each in exchanged] == [[float(rank)] * 3 for rank in RANKS],
        "all_reduce": bool((total == sum(RANKS)).all()),
        "strided": bool((column == sum(RANKS)).all()),
        "sparse": sparse.to_dense().tolist() == [1.0] * WORLD,
    }
    return {"wrong": [name for name, right in found.items() if not right]}


class Laid:
    """Ways in which the same values may lie in memory. Each returns the tensor, and what lies around it, all 99."""

    @staticmethod
    def gaps(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory = values.new_full((*values.shape, 2), 99)
        memory[..., 0] = values
        return memory[..., 0], memory[..., 1]

    @staticmethod
    def transposed(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return values.transpose(0, 1).contiguous().transpose(0, 1), values[:0]

    @staticmethod
    def channels_last(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return values.contiguous(memory_format=torch.channels_last), values[:0]

    @staticmethod
    def negated(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.complex(torch.zeros_like(values), -values).conj().imag, values[:0]


WAYS: tuple[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], ...] = (
    Laid.gaps,
    Laid.transposed,
    Laid.channels_last,
    Laid.negated,
)


def laid() -> dict[str, Any]:
    """Tensors that lie in memory in one way on this rank and in another one on others, in and out of each collective.

    Gloo takes them all for runs of elements: what it would then write beside the tensor belongs to others.
    """
    return {"wrong": [text for turn in range(len(WAYS)) for text in wrong_where_laid(turn)]}


def wrong_where_laid(turn: int) -> list[str]:
    values, zeros = [torch.arange(24.0).view(2, 3, 2, 2) + 100 * rank for rank in RANKS], torch.zeros(2, 3, 2, 2)
    ways, wrong, total = [WAYS[(turn + rank) % len(WAYS)] for rank in RANKS], [], sum(values)

    def mine() -> tuple[torch.Tensor, torch.Tensor]:
        return ways[RANK](values[RANK])

    def out() -> tuple[torch.Tensor, torch.Tensor]:
        return ways[RANK](zeros)

    def each(of: list[torch.Tensor]) -> list[torch.Tensor]:
        return [way(tensor)[0] for way, tensor in zip(ways, of, strict=True)]

    def check(name: str, got: torch.Tensor, around: torch.Tensor, want: torch.Tensor) -> None:
        if not torch.equal(got, want) or not bool((around == 99).all()):
            wrong.append(f"{name} {ways[RANK].__name__}: {got.flatten().tolist()} {around.flatten().tolist()}")

    tensor, around = mine()
    dist.reduce(tensor, 0)
    check("reduce", tensor if RANK == 0 else total, around, total)
    tensor, around = out()
    dist.scatter(tensor, each(values) if RANK == 0 else None, 0)
    check("scatter", tensor, around, values[RANK])
    tensor, around = mine()
    dist.broadcast(tensor, 1)
    check("broadcast", tensor, around, values[1])
    tensor, around = mine()
    dist.all_reduce(tensor)
    check("all_reduce", tensor, around, total)
    small, around = Laid.gaps(torch.full((3, 2), RANK + 1, dtype=torch.uint8))
    dist.all_reduce(small)
    check("all_reduce of uint8", small, around, torch.full((3, 2), sum(range(1, WORLD + 1)), dtype=torch.uint8))
    tensor, around = out()
    dist.all_to_all_single(tensor, mine()[0])
    check("all_to_all_single", tensor, around, torch.cat([values[rank][RANK : RANK + 1] for rank in RANKS]))
    tensor, around = out()
    dist.reduce_scatter(tensor, each(values))
    check("reduce_scatter", tensor, around, WORLD * values[RANK])
    gathered, exchanged, collected = (each([zeros] * WORLD) for _ in range(3))
    dist.all_gather(gathered, mine()[0])
    dist.all_to_all(exchanged, [mine()[0]] * WORLD)
    dist.gather(mine()[0], collected if RANK == 0 else None)
    for rank in RANKS:
        check("all_gather", gathered[rank], zeros[:0], values[rank])
        check("all_to_all", exchanged[rank], zeros[:0], values[rank])
        check("gather", collected[rank] if RANK == 0 else values[rank], zeros[:0], values[rank])
    return wrong


def expanded() -> dict[str, Any]:
    """Elements that share memory: given they are as good as others, a result cannot be written into them."""
    shared = torch.ones(1).expand(4)
    found: dict[str, bool] = {}

    def own() -> torch.Tensor:
        return torch.zeros(4)

    def lists() -> list[torch.Tensor]:
        return [own() for _ in RANKS]

    for name, call in {
        "all_reduce": lambda: dist.all_reduce(shared),
        "all_reduce, async": lambda: dist.all_reduce(torch.ones(1).expand(1 << 20), async_op=True),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([own(), shared]),
        "complex": lambda: dist.all_reduce(torch.ones(1, dtype=torch.complex64).expand(4)),
        "uint8": lambda: dist.all_reduce(torch.ones(1, dtype=torch.uint8).expand(4)),
        "windows": lambda: dist.all_reduce(torch.ones(6).unfold(0, 3, 1)),
        "broadcast": lambda: dist.broadcast(shared, 0),
        "reduce": lambda: dist.reduce(shared, 0),
        "scatter": lambda: dist.scatter(shared, lists() if RANK == 0 else None, 0),
        "all_gather": lambda: dist.all_gather([shared] * WORLD, own()),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.ones(1).expand(4 * WORLD), own()),
        "reduce_scatter": lambda: dist.reduce_scatter(shared, lists()),
        "all_to_all": lambda: dist.all_to_all([shared] * WORLD, lists()),
        "all_to_all_single": lambda: dist.all_to_all_single(shared, own()),
    }.items():
        try:
            call()
            found[name] = False
        except ultima.InvalidArgument as error:
            found[name] = "share memory" in str(error) and "clone()" in str(error)
    gathered, part, scattered = lists(), own(), own()
    dist.all_gather(gathered, shared)
    dist.reduce_scatter(part, [shared] * WORLD)
    dist.scatter(scattered, [shared] * WORLD if RANK == 0 else None, 0)
    found["given"] = bool((torch.stack([*gathered, part / WORLD, scattered]) == 1).all())
    return {"wrong": [name for name, right in found.items() if not right]}


def left() -> dict[str, Any]:
    """Ops whose Work nobody waits for: right once a later op has ended, whatever its kind, and in the end anyway."""

    def begun() -> tuple[list[torch.Tensor], list[Any]]:
        each, whole, mine = torch.zeros(2), torch.full((2 * WORLD,), 1.0), torch.full((2,), 1.0)
        found = [torch.full((count,), 1.0) for count in (3, 1 << 19, 3, 3)]
        found += [torch.zeros(2 * WORLD), each, torch.zeros(2 * WORLD), torch.full((4, 3), 1.0)[:, 1]]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in (*found[:2], found[7])]
        works.append(dist.broadcast(found[2].mul_(RANK), src=1, async_op=True))
        works.append(dist.all_reduce(found[3], op=dist.ReduceOp.MAX, async_op=True))
        works.append(dist.all_gather_into_tensor(found[4], mine, async_op=True))
        works.append(dist.reduce_scatter_tensor(each, whole, async_op=True))
        works.append(dist.all_to_all_single(found[6], whole, async_op=True))
        return found, works

    def right(found: list[torch.Tensor]) -> bool:
        wanted = (WORLD, WORLD, 1, 1, 1, WORLD, 1, WORLD)
        return all(bool((tensor == value).all()) for tensor, value in zip(found, wanted, strict=True))

    total, held = torch.ones(1), begun()
    dist.all_reduce(total, async_op=True).wait()
    answers = {"an op": right(held[0])}
    dropped = begun()[0]
    dist.barrier()
    answers["a barrier"] = right(dropped)
    dropped = begun()[0]
    large = dist.all_reduce(torch.ones(1 << 19), async_op=True)
    large.get_future().wait()
    answers["a future"] = right(dropped)
    dropped, limit = begun()[0], time.monotonic() + 20
    while not right(dropped) and time.monotonic() < limit:
        time.sleep(0.01)
    answers["nothing"] = right(dropped)
    return {"wrong": [name for name, answer in answers.items() if not answer]}


def coalesced() -> dict[str, Any]:
    """Several at once, by the coalescing manager and by the functional collectives."""
    found: dict[str, Any] = {}
    tensors = [filled(RANK, 10 + i, torch.float32) for i in range(3)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    found["all_reduce"] = all(
        torch.equal(t, sum(filled(r, 10 + i, torch.float32) for r in RANKS)) for i, t in enumerate(tensors)
    )
    outs = [torch.zeros(2 * (i + 1)) for i in range(3)]
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for i, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((i + 1,), float(RANK)))
    manager.wait()
    found["all_gather"] = [out.tolist() for out in outs] == [[0.0] * i + [1.0] * i for i in (1, 2, 3)]
    for kind in (torch.float32, torch.uint8):  # Ultima's, and Gloo's
        tensors = [torch.full((1 << 18,), RANK + 1, dtype=kind) for _ in range(3)]
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
            for tensor in tensors:
                dist.all_reduce(tensor)
        found[f"{kind}, waited for by the manager"] = all(bool((t == sum(RANKS) + WORLD).all()) for t in tensors)
    gathered = all_gather_tensor(torch.full((3,), float(RANK)), 0, list(RANKS))
    found["functional"] = gathered.tolist() == [0.0] * 3 + [1.0] * 3
    return {"wrong": [name for name, right in found.items() if right is not True]}


def together() -> dict[str, Any]:
    """Different collectives of two groups, all under way at once and waited for in another order."""
    other = dist.new_group(list(RANKS))
    works, checks = [], []
    for i in range(6):
        for group in (None, other):
            total, copied = filled(RANK, 50 + i, torch.float32), filled(RANK, 30 + i, torch.float32)
            rows = torch.zeros(WORLD * (20 + i))
            works += [
                dist.all_reduce(total, group=group, async_op=True),
                dist.broadcast(copied, src=0, group=group, async_op=True),
                dist.all_gather_into_tensor(rows, filled(RANK, 20 + i, torch.float32), group=group, async_op=True),
                dist.barrier(group=group, async_op=True),
            ]
            checks += [
                (total, sum(filled(r, 50 + i, torch.float32) for r in RANKS)),
                (copied, filled(0, 30 + i, torch.float32)),
                (rows, torch.cat([filled(r, 20 + i, torch.float32) for r in RANKS])),
            ]
    for work in reversed(works):
        work.wait()
    dist.destroy_process_group(other)
    return {"right": all(torch.equal(got, want) for got, want in checks), "checked": len(checks)}


def who() -> dict[str, Any]:
    """For each collective, whether it left receipts of Ultima's."""
    ones, halves = torch.ones(WORLD * 2), [torch.ones(2) for _ in RANKS]
    other = 1 - RANK
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(ones.clone()),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([ones.clone()]),
        "broadcast": lambda: dist.broadcast(ones.clone(), 0),
        "all_gather": lambda: dist.all_gather(halves, torch.ones(2)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(ones, torch.ones(2)),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.ones(2), halves),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.ones(2), ones),
        "all_to_all_single": lambda: dist.all_to_all_single(ones.clone(), ones),
        "barrier": dist.barrier,
        "all_to_all": lambda: dist.all_to_all([torch.ones(2) for _ in RANKS], halves),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced([[torch.ones(2)] for _ in RANKS], [torch.ones(2)]),
        "reduce": lambda: dist.reduce(ones.clone(), 0),
        "gather": lambda: dist.gather(torch.ones(2), halves if RANK == 0 else None),
        "scatter": lambda: dist.scatter(torch.ones(2), halves if RANK == 0 else None),
        "send": lambda: dist.send(ones, 1) if RANK == 0 else dist.recv(ones, 0),
        "recv": lambda: dist.recv(ones, 1) if RANK == 0 else dist.send(ones, 0),
        "isend": lambda: (dist.isend(ones, 1) if RANK == 0 else dist.irecv(ones, 0)).wait(),
        "irecv": lambda: (dist.irecv(ones, 1) if RANK == 0 else dist.isend(ones, 0)).wait(),
        "batch_isend_irecv": lambda: [
            work.wait()
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, ones, other), dist.P2POp(dist.irecv, torch.ones(4), other)]
            )
        ],
    }
    found = {}
    for name, call in calls.items():
        before = ops()
        call()
        found[name] = "ultima" if ops() > before else "gloo"
    return found


SHARED: tuple[Callable[[], dict[str, Any]], ...] = (
    moved,
    reduced,
    odd,
    shaped,
    laid,
    expanded,
    inference,
    left,
    coalesced,
    together,
    who,
)


def shared() -> dict[str, Any]:
    return in_turn(SHARED, 30)


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert sys.argv[1] == "shared"
    print(json.dumps(shared()), flush=True)
