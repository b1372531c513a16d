# SPDX-License-Identifier: Apache-2.0
"""One site of a contender, Gloo or Ultima, that trains on request and says how long everything took.

It joins its group as torchrun's variables say, prints "ready", and then answers each line of JSON on its input with
one on its output. All sites are asked the same. A request has `how`, one of HOWS:

    ddp        plain DDP                                   steps, batch, seed, rate, every, seconds, target, images
    diloco     ultima.torch.DiLoCo, beside it wire         the same
    torchft    torchft's DiLoCo over Gloo, beside it port  the same
    rounds     DiLoCo of a model of size elements whose    size, rounds, wire, every, step_s, delay, fragments
               steps sleep for step_s

A training ends after `steps`, after `seconds`, or when a look at the test images finds the accuracy `target`. It is
looked at each `every` steps, which for DiLoCo is after each round; the clock stands still meanwhile. An answer has
points (step, seconds, accuracy), seconds and steps in all, and of DiLoCo the seconds of each `every` steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.bench.tta.rank import batches, evaluate
from ultima.demo import data
from ultima.demo.model import LeNet5
from ultima.demo.train import to_batch

TORCHFT = Path(__file__).parents[3] / "build/torchft"
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
TORCHFT_S = 300.0  # of any op
MOVE = 1e-3  # what a step that sleeps adds to each element, at most

Step = Callable[[float], None]


@contextmanager
def plain(model: nn.Module, inner: torch.optim.Optimizer, request: dict[str, Any]) -> Iterator[tuple[nn.Module, Step]]:
    """What is called in place of `model`, and what follows each of its steps."""
    yield DistributedDataParallel(model), lambda tokens: None


@contextmanager
def diloco(model: nn.Module, inner: torch.optim.Optimizer, request: dict[str, Any]) -> Iterator[tuple[nn.Module, Step]]:
    import ultima.torch

    with ultima.torch.DiLoCo(model, inner, request["every"], wire=request["wire"]) as outer:
        yield model, outer.step


@contextmanager
def torchft(
    model: nn.Module, inner: torch.optim.Optimizer, request: dict[str, Any]
) -> Iterator[tuple[nn.Module, Step]]:
    """As its documents have it, with all of the model in one allreduce: an allreduce for each tensor takes longer."""
    sys.path.insert(0, str(TORCHFT))
    from torch.distributed import TCPStore
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    rank, world, port = dist.get_rank(), dist.get_world_size(), request["port"]
    house = LighthouseServer(bind=f"0.0.0.0:{port}", min_replicas=world, join_timeout_ms=10_000) if rank == 0 else None
    dist.barrier()
    mine = request["addresses"][rank]
    store = TCPStore(mine, 0, is_master=True, wait_for_workers=False)
    often = {"timeout": timedelta(seconds=TORCHFT_S), "quorum_timeout": timedelta(seconds=TORCHFT_S)}
    manager = Manager(  # all begin with the same seed, so no model has to be fetched
        ProcessGroupGloo(timedelta(seconds=TORCHFT_S)), None, None, min_replica_size=world, use_async_quorum=False,
        init_sync=False, rank=0, world_size=1, store_addr=mine, store_port=store.port, hostname=mine,
        replica_id=f"site{rank}", lighthouse_addr=f"http://{request['addresses'][0]}:{port}", **often,
    )  # fmt: skip
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)
    try:
        with DiLoCo(manager, [model], inner, outer, sync_every=request["every"], use_bucketization=True):
            yield model, lambda tokens: None
        dist.barrier()
    finally:
        manager.shutdown(wait=False)
        if house is not None:
            house.shutdown()


HOWS = {"ddp": plain, "diloco": diloco, "torchft": torchft}


def train(request: dict[str, Any], images: data.Images) -> dict[str, Any]:
    """Answers a request to train."""
    rank, world, share, every = dist.get_rank(), dist.get_world_size(), request["batch"], request["every"]
    torch.manual_seed(request["seed"])
    model, loss_of = LeNet5(), nn.CrossEntropyLoss()
    inner = torch.optim.AdamW(model.parameters(), lr=request["rate"])
    points: list[tuple[int, float, float]] = []
    rounds: list[float] = []
    seconds = 0.0
    with HOWS[request["how"]](model, inner, request) as (called, follow):
        dist.barrier()
        began = time.perf_counter()
        for step, batch in enumerate(
            batches(len(images.train_labels), request["seed"], request["steps"], share * world), 1
        ):
            mine = batch[rank * share :][:share]
            pixels, labels = to_batch(images, images.train_images[mine], images.train_labels[mine])
            inner.zero_grad()
            loss_of(called(pixels), labels).backward()
            inner.step()
            follow(share)
            if step % every:
                continue
            rounds.append(time.perf_counter() - began)
            seconds += rounds[-1]
            right, of = evaluate(model, images, request["images"])
            slowest = torch.tensor([seconds], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            points.append((step, float(slowest), right / of))
            if right / of >= request["target"] or float(slowest) > request["seconds"]:
                break
            dist.barrier()
            began = time.perf_counter()
    return {"points": points, "rounds": rounds, "steps": points[-1][0], "seconds": points[-1][1]}


def sleep(request: dict[str, Any]) -> dict[str, Any]:
    """Answers a request of rounds: how much of the time was computed, and the seconds of each round's op."""
    import ultima.torch

    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(request["size"]))})
    random = np.random.default_rng(dist.get_rank())
    move = torch.from_numpy(random.uniform(-MOVE, MOVE, request["size"]).astype(np.float32))
    keys = ("fragments", "delay", "wire")
    told: list[float] = []
    with ultima.torch.DiLoCo(model, None, request["every"], **{key: request[key] for key in keys}) as outer:
        outer.on_round = lambda each: told.append(each.receipt.elapsed_s) if each.receipt is not None else None
        dist.barrier()
        while outer.summary().rounds < request["rounds"]:
            time.sleep(request["step_s"])
            with torch.no_grad():
                model["w"] += move
            outer.step()
        summary = outer.summary()
    words = {"computed": summary.computed, "waited_s": summary.waited_s, "spent_s": summary.spent_s}
    return {**words, "elapsed_s": summary.elapsed_s, "rounds": told, "text": str(summary)}


def main() -> None:
    parser = argparse.ArgumentParser(description="One site of a contender.")
    parser.add_argument("contender", choices=("gloo", "ultima"))
    options = parser.parse_args()
    # What the libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    images = data.load("auto")
    if options.contender == "ultima":
        import ultima.torch  # noqa: F401  # registers the backend
    dist.init_process_group(options.contender)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = sleep(request) if request["how"] == "rounds" else train(request, images)
        print(json.dumps(answer), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
