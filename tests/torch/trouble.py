# SPDX-License-Identifier: Apache-2.0
"""What one rank does in the tests of trouble: ranks that disagree, leave, fork, or lose their daemon. As `cases.py`."""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ultima
import ultima.torch
from tests.patience import be_patient

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
be_patient()


def start(seconds: float = 20) -> None:
    dist.init_process_group("ultima", timeout=timedelta(seconds=seconds))


def raised(call: Callable[[], Any]) -> dict[str, Any]:
    """The error that a call ends with, as the test compares it."""
    try:
        call()
    except ultima.Desync as error:
        return {"kind": "Desync", "field": error.field, "rank": error.rank, "mine": error.mine, "theirs": error.theirs}
    except ultima.UltimaError as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": ""}


def disagreements() -> dict[str, Any]:
    """One difference after the other, each in a group of its own, for it is of no use afterwards."""
    start()
    asked: dict[str, list[tuple[torch.Tensor, Any]]] = {
        "shape": [(torch.ones(3, 4 + RANK), SUM)],
        "dtype": [(torch.ones(12, dtype=(torch.float32, torch.float64)[RANK]), SUM)],
        "operation": [(torch.ones(12, dtype=torch.int32), (SUM, MAX)[RANK])],
        "order": [(torch.ones(12), SUM), (torch.ones(7), SUM)][:: 1 - 2 * RANK],
    }
    found: dict[str, Any] = {}
    for name, calls in asked.items():
        group = dist.new_group(list(range(WORLD)))
        works = [dist.all_reduce(tensor, op=op, group=group, async_op=True) for tensor, op in calls]
        found[name] = [raised(work.wait) for work in works]
    # What Gloo does on one of them, or on both.
    copied = [torch.ones(2) for _ in range(WORLD)]
    for name, call in {
        "bytes": lambda group: dist.all_reduce(
            torch.ones(12, dtype=(torch.float32, torch.uint8)[RANK]), group=group, async_op=True
        ),
        "reduce": lambda group: (
            dist.reduce(torch.ones(12), 0, group=group, async_op=True)
            if RANK
            else dist.broadcast(torch.ones(12), 0, group=group, async_op=True)
        ),
        "sizes": lambda group: (
            dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [2, 2], group=group, async_op=True)
            if RANK
            else dist.all_to_all_single(torch.ones(4), torch.ones(4), group=group, async_op=True)
        ),
        "lists": lambda group: (
            dist.gather(copied[0], group=group, group_dst=0, async_op=True)
            if RANK
            else dist.all_gather(copied, torch.ones(2), group=group, async_op=True)
        ),
    }.items():
        group = dist.new_group(list(range(WORLD)))
        found[name] = [raised(call(group).wait)]
        dist.destroy_process_group(group)
    # Ultima's, on both.
    for name, call in {
        "root": lambda group: dist.broadcast(torch.ones(12), RANK, group=group, async_op=True),
        "gathered": lambda group: dist.all_gather_into_tensor(
            torch.ones(2 * (4 + RANK)), torch.ones(4 + RANK), group=group, async_op=True
        ),
        "scattered": lambda group: dist.reduce_scatter_tensor(
            torch.ones(4 + RANK), torch.ones(2 * (4 + RANK)), group=group, async_op=True
        ),
    }.items():
        found[name] = [raised(call(dist.new_group(list(range(WORLD)))).wait)]
    # One call more on rank 0: it meets what rank 1 calls next.
    group = dist.new_group(list(range(WORLD)))
    dist.all_reduce(torch.ones(3), group=group)
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True) if RANK == 0 else dist.barrier(group, True)
    found["number"] = [raised(work.wait)]
    return found


def disagreements_with_gloo() -> dict[str, Any]:
    """What Gloo does on all ranks: first all ask alike, then the last one asks for something else. To leave
    the groups takes no time, though Gloo's timeout is longer than the test has.
    """
    start(300)
    odd = RANK == WORLD - 1
    lists = [torch.ones(3) for _ in range(WORLD)]
    all_ranks = list(range(WORLD))

    def gather(group: Any, size: int = 3, root: int = 0) -> Any:
        outputs = [torch.ones(size) for _ in range(WORLD)] if root == RANK else None
        return dist.gather(torch.ones(size), outputs, dst=root, group=group, async_op=True)

    def scatter(group: Any) -> Any:
        return dist.scatter(torch.ones(3), None if RANK else lists, src=0, group=group, async_op=True)

    def reduce(group: Any, root: int = 0, dtype: torch.dtype = torch.float32, op: Any = SUM) -> Any:
        return dist.reduce(torch.ones(6, dtype=dtype), root, op=op, group=group, async_op=True)

    found: dict[str, Any] = {}
    for name, usual, other in (
        ("collective", gather, scatter),
        ("barrier", gather, lambda group: dist.barrier(group, async_op=True)),
        ("root", reduce, lambda group: reduce(group, root=1)),
        ("op", reduce, lambda group: reduce(group, op=MAX)),
        ("dtype", reduce, lambda group: reduce(group, dtype=torch.int32)),
        ("count", gather, lambda group: gather(group, size=5)),
    ):
        group = dist.new_group(all_ranks)
        usual(group).wait()
        found[name] = raised((other if odd else usual)(group).wait)
        dist.destroy_process_group(group)
    return found


def calls() -> dict[str, Any]:
    """Rank 0 makes one call more than rank 1, which leaves the group as if all were done."""
    start()
    dist.all_reduce(torch.ones(10))
    found: dict[str, Any] = {}
    if RANK == 0:
        found = raised(lambda: dist.all_reduce(torch.ones(10)))
    dist.destroy_process_group()
    return found


def exits() -> dict[str, Any]:
    """Rank 1 ends without a word."""
    start()
    dist.all_reduce(torch.ones(10))
    if RANK == 1:
        sys.exit(0)
    return raised(lambda: dist.all_reduce(torch.ones(10)))


def trains_alone() -> dict[str, Any]:
    """Rank 1 ends without a word between two steps of DDP."""
    start()
    model = DistributedDataParallel(nn.Linear(4, 2, bias=False))

    def step() -> None:
        model.zero_grad()
        model(torch.ones(1, 4)).sum().backward()

    for _ in range(3):  # in the second DDP builds its buckets anew, reliably
        step()
    if RANK == 1:
        sys.exit(0)
    assert model.module.weight.grad[0, 0] == 1
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        while True:  # until the daemon has seen that rank 1 is gone
            found = raised(step)
            receipt = ultima.torch.last_receipts(1)[0]
            if found["kind"] or receipt.status is ultima.Status.INSUFFICIENT:
                break
    own = [str(each.message) for each in told if issubclass(each.category, ultima.UltimaWarning)]
    return {**found, "warnings": own, "receipt": receipt.as_dict()}


def destroy_in_flight() -> dict[str, Any]:
    """Rank 0 destroys the group while an op of its is under way that rank 1 never calls."""
    start(60)
    dist.all_reduce(torch.ones(10))
    found: dict[str, Any] = {}
    if RANK == 0:
        first, second = (dist.all_reduce(torch.ones(10), async_op=True) for _ in range(2))
        third = dist.reduce(torch.ones(10), 1, async_op=True)  # by Gloo
        dist.destroy_process_group()
        found = {"waited": raised(first.wait), "reduce": raised(third.wait), "future": ""}
        try:
            second.get_future().wait()
        except Exception as error:
            found["future"] = str(error)
    return found


class Numbers(Dataset[torch.Tensor]):
    """Items that say what a collective in a data loader's worker ends with."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        error = raised(lambda: dist.all_reduce(torch.ones(4)))
        return torch.tensor([float(index + RANK), float(error["kind"] == "ForkedHandle")])


def slow_rank() -> dict[str, Any]:
    """ULTIMA_DEADLINE is short, and rank 1 late: for what may be lossy a result in part, for the rest no error."""
    start()
    dist.barrier()
    time.sleep(0.5 * RANK)
    tensor, number, copied = torch.ones(10), torch.ones(10, dtype=torch.int64), torch.full((3,), float(RANK))
    if RANK == 0:
        dist.all_reduce(tensor)
    reliable = dist.new_group(list(range(WORLD)))
    time.sleep(0.5 * RANK)
    dist.all_reduce(number, group=reliable)
    time.sleep(0.5 * RANK)
    dist.broadcast(copied, 0, group=reliable)
    time.sleep(0.5 * RANK)
    dist.barrier(group=reliable)
    return {"alone": float(tensor[0]), "number": int(number[0]), "copied": float(copied[0])}


def data_loader() -> dict[str, Any]:
    """Two epochs with forked workers, which come and go while the group works on."""
    start()
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    refused = 0.0
    for _ in range(2):
        for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            refused += float(batch[:, 1].sum())
            optimizer.zero_grad()
            model(batch[:, :1]).square().mean().backward()
            optimizer.step()
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {"refused": refused, "total": float(total), "weights": [float(p.sum()) for p in model.parameters()]}


def restart() -> dict[str, Any]:
    """Steps of a training; the test restarts a daemon, or both, between two of them.

    The daemon that stayed does not wait for the other: its rank may end an op alone, and says so in the receipt. Then
    the step is made again.
    """
    start(40)
    folder = Path(os.environ["ULTIMA_TEST_FOLDER"])
    sums, alone = [], 0
    for step in range(3):
        while True:
            tensor = torch.full((1000,), float(RANK + step))
            dist.all_reduce(tensor)
            if ultima.torch.last_receipts(1)[0].complete:
                break
            alone += 1
            time.sleep(0.01)
        sums.append(float(tensor[0]))
        (folder / f"step{step}-{RANK}").touch()
        while not (folder / f"go{step}").exists():
            time.sleep(0.01)
    dist.destroy_process_group()
    return {"sums": sums, "alone": alone}


def upgraded() -> dict[str, Any]:
    """A training whose model has buffers, which DDP broadcasts before each step, until the test says stop; the ranks
    agree on the last step."""
    start(60)
    folder = Path(os.environ["ULTIMA_TEST_FOLDER"])
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(2 + RANK)
    steps, stop = 0, torch.zeros(1, dtype=torch.int64)
    while not int(stop):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        steps += 1
        (folder / f"at-{RANK}-{steps}").touch()
        stop[0] = (folder / "stop").exists()
        dist.all_reduce(stop)
    dist.destroy_process_group()
    return {"steps": steps, "weights": [float(each.double().sum()) for each in model.parameters()]}


def interrupted() -> dict[str, Any]:
    """Waits for a peer that does not come, in the way that the test names, until Ctrl-C ends it."""
    start(300)
    how, folder = os.environ["ULTIMA_TEST_WAIT"], Path(os.environ["ULTIMA_TEST_FOLDER"])
    model = DistributedDataParallel(nn.Linear(4, 1))
    loss = model(torch.ones(1, 4)).sum()
    dist.barrier()
    (folder / f"ready{RANK}").touch()
    if RANK == 1:
        time.sleep(300)
    {
        "ddp": loss.backward,
        "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
        "barrier": dist.barrier,
    }[how]()
    return {"ended": True}


def handled() -> dict[str, Any]:
    """A program that handles Ctrl-C itself keeps its groups: what is under way ends as if nothing had happened."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    start()
    work = dist.all_reduce(torch.ones(4), async_op=True) if RANK == 0 else None
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    tensor = torch.ones(4)
    work = work or dist.all_reduce(tensor, async_op=True)
    work.wait()
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return {"heard": heard, "still": signal.getsignal(signal.SIGINT) is not signal.default_int_handler}


CASES = {
    function.__name__: function
    for function in (
        disagreements,
        disagreements_with_gloo,
        calls,
        exits,
        trains_alone,
        destroy_in_flight,
        slow_rank,
        data_loader,
        restart,
        upgraded,
        interrupted,
        handled,
    )
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt):
        print(json.dumps(CASES[sys.argv[1]]()), flush=True)
        sys.exit(0)
    sys.exit(130)
