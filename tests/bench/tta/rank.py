# SPDX-License-Identifier: Apache-2.0
"""One rank of a contender, Gloo or Ultima, that trains on request and says how accurate the model was when.

It joins its group as torchrun's variables say, prints "ready", and then answers each line of JSON on its input with
one on its output. All ranks are asked the same. A training is stock DDP; for Ultima with a hook that asks for an
average, so that what is missing does not count as zero. The clock stands still while a model is evaluated, and it
starts again behind a barrier.

A request: model, seed, steps, batch (images per rank and step), learning_rate, evaluate_every (steps), images (of the
test set, for the points of the curve; the end is always measured with all of them), deadline (seconds of an op, or
null), ratio (share of the gradients that is sent, or null), wire (form of the gradients, or null), alone (without the
network: how long the work itself takes).
An answer: points (step, seconds, right, of), final (right, of), step_ms, and what Ultima's receipts add up to.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ultima.demo import data
from ultima.demo.model import LeNet5
from ultima.demo.train import to_batch

EVALUATION_BATCH = 500
SYNC_EVERY = 20  # steps; trainings here are short
WARMUP = 10  # of so many steps, one sends more
COUNTS = ("ops", "complete", "partial", "insufficient", "failed", "expected_bytes", "missing_bytes", "repaired_bytes")


class WideCnn(nn.Module):
    """float32[n, 1, 28, 28] to ten scores. 6.2 million parameters, 24.8 MB, nearly all in one matrix: much to send, and
    little to compute where four ranks share two cores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7, 7808),
            nn.ReLU(),
            nn.Linear(7808, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(images)
        return scores


MODELS: dict[str, type[nn.Module]] = {"lenet": LeNet5, "wide": WideCnn}


def train(request: dict[str, Any], images: data.Images, own: bool) -> dict[str, Any]:
    """Answers one request; see the head of this file. |own|: the group is Ultima's."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(request["seed"])
    model = DistributedDataParallel(MODELS[request["model"]]())
    steps, share = request["steps"], request["batch"]
    optimizer = torch.optim.SGD(model.parameters(), lr=request["learning_rate"], momentum=0.9, fused=True)
    if own:
        _hook_up(model, optimizer, request)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    before = _receipts(own)
    points: list[list[float]] = []
    step_ms: list[float] = []
    seconds = 0.0
    dist.barrier()
    started = time.perf_counter()
    for step, batch in enumerate(batches(len(images.train_labels), request["seed"], steps, share * world), 1):
        began = time.perf_counter()
        mine = batch[rank * share :][:share]
        pixels, labels = to_batch(images, images.train_images[mine], images.train_labels[mine])
        optimizer.zero_grad()
        with model.no_sync() if request["alone"] else nullcontext():
            nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
        schedule.step()
        ended = time.perf_counter()
        step_ms.append((ended - began) * 1e3)
        if step % request["evaluate_every"] == 0 or step == steps:
            seconds += ended - started
            right, of = evaluate(model.module, images, request["images"])
            points.append([step, seconds, right, of])
            dist.barrier()
            started = time.perf_counter()
    after = _receipts(own)
    answer = {"points": points, "final": evaluate(model.module, images, len(images.test_labels)), "step_ms": step_ms}
    return {**answer, "receipts": {name: after[name] - before[name] for name in after}, "op_ms": _op_ms(own)}


def rate(step: int, steps: int) -> float:
    """Share of the learning rate at a step: up over the first tenth, then down to nothing. Without the rise the first
    steps amplify whatever differs, down to the order of additions, and curves part for no reason.
    """
    rise = max(1, steps // 10)
    return min(1.0, (step + 1) / rise) * max(0.0, 1 - step / steps)


def batches(count: int, seed: int, steps: int, batch: int) -> list[np.ndarray[Any, Any]]:
    """Which of |count| images each step takes: the same on every rank, each image once before any comes again."""
    of_epoch = count // batch
    orders = [np.random.default_rng((seed, epoch)).permutation(count) for epoch in range(-(-steps // of_epoch))]
    return [orders[step // of_epoch][step % of_epoch * batch :][:batch] for step in range(steps)]


def evaluate(model: nn.Module, images: data.Images, count: int) -> tuple[int, int]:
    """How many of the first |count| test images are named rightly, and |count|. Each rank looks at its own share with
    its own replica, so where replicas differ this is the mean over them.
    """
    right = torch.zeros((), dtype=torch.int64)
    count = min(count, len(images.test_labels))
    mine = np.arange(dist.get_rank(), count, dist.get_world_size())
    with torch.no_grad():
        for start in range(0, len(mine), EVALUATION_BATCH):
            part = mine[start : start + EVALUATION_BATCH]
            pixels, labels = to_batch(images, images.test_images[part], images.test_labels[part])
            right += (model(pixels).argmax(1) == labels).sum()
    dist.all_reduce(right)
    return int(right), count


def _hook_up(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, request: dict[str, Any]) -> None:
    """An average over the ranks whose gradients came, by the deadline if there is one. What may go missing has no bound
    here: the curves are to show what it costs. In best effort replicas that differ are averaged now and then. With a
    ratio the largest entries alone are sent, after the first tenth of the steps; with a wire all travel in its form.
    """
    from ultima.torch import QuantState, SparseState, quantize_hook, sparse_hook
    from ultima.torch.hooks import HookState, allreduce_hook, guard

    common: dict[str, Any] = {"deadline": request["deadline"], "budget": None, "sync_every": SYNC_EVERY}
    if request["ratio"] is not None:
        warmup = request["steps"] // WARMUP
        state: HookState = SparseState(ratio=request["ratio"], start_step=0, warmup_steps=warmup, **common)
        model.register_comm_hook(state, sparse_hook)
    elif request["wire"] is not None:
        state = QuantState(request["wire"], **common)
        model.register_comm_hook(state, quantize_hook)
    else:
        state = HookState(**common)
        model.register_comm_hook(state, allreduce_hook)
    if os.environ.get("ULTIMA_MODE") == "best_effort":
        guard(optimizer, state)


def _receipts(own: bool) -> dict[str, int]:
    if not own:
        return {}
    import ultima.torch

    summary = ultima.torch.receipt_summary()
    return {name: getattr(summary, name) for name in COUNTS}


def _op_ms(own: bool) -> float | None:
    """Median time of the largest ops that are remembered: those of the model that was trained last."""
    if not own:
        return None
    import ultima.torch

    kept = ultima.torch.last_receipts(200)
    most = max((receipt.bytes_expected for receipt in kept[-20:]), default=0)
    return 1e3 * median([receipt.elapsed_s for receipt in kept if receipt.bytes_expected > most / 2] or [0.0])


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of a contender of the time to accuracy.")
    parser.add_argument("contender", choices=("gloo", "ultima"))
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    options = parser.parse_args()
    # What the libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    images = data.load(options.data)
    own = options.contender == "ultima"
    if own:
        import ultima.torch  # noqa: F401  # registers the backend
    dist.init_process_group(options.contender)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(train(json.loads(line), images, own)), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
