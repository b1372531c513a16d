# SPDX-License-Identifier: Apache-2.0
"""Trains LeNet-5 with stock DistributedDataParallel; which library averages the gradients is one word.

    torchrun --nproc-per-node 4 -m ultima.demo.train --backend ultima

Nothing here knows of Ultima but the import that registers the backend, the trainer of `trainers.py` if a policy is
asked for, and the receipts read at the end. One process per rank, with the variables that torchrun sets. `--events`
makes rank 0 write one JSON object a line for the program that started it; without it the lines are for people.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import sys
import time
from dataclasses import asdict
from hashlib import sha256
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ultima.demo import data
from ultima.demo.model import LeNet5
from ultima.demo.share import share_of
from ultima.demo.slow import Leaver, SlowRank
from ultima.demo.trainers import Local, trainer_of
from ultima.quant import FORMS

EVENT_PERIOD_S = 0.25
EVALUATION_BATCH = 500
# Steps before the allocator, the threads and the transport have settled; left out of the step time.
STEPS_SETTLING = 10


def main(arguments: list[str] | None = None) -> int:
    """Trains, evaluates, and reports on rank 0. Returns the exit status."""
    options = parse(arguments)
    torch.set_num_threads(1)
    if options.backend == "ultima":
        import ultima.torch  # noqa: F401  # registers the backend
    elif options.policy != "none" or options.coded or options.sparse is not None or options.wire or options.every:
        raise SystemExit("--policy, --coded, --sparse, --wire, --every: only with --backend ultima")
    if options.leave and not options.every:
        raise SystemExit("--leave: only with --every")
    dist.init_process_group(options.backend)
    try:
        result = train(options)
    finally:
        # A cycle in DDP keeps the group, and with it Gloo's threads, which abort the process if they outlive Python.
        gc.collect()
        dist.destroy_process_group()
    if result:
        say(options, "result", **result)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ultima.demo.train", description="LeNet-5 under unmodified DDP.")
    parser.add_argument("--backend", choices=("ultima", "gloo"), default="ultima")
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    parser.add_argument("--epochs", type=int, help="passes over the training images; the default suits the images")
    parser.add_argument("--batch", type=int, help="images per rank and step; the default suits the images")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="none", help="which ranks a step waits for; none: all, by plain DDP")
    parser.add_argument("--coded", type=int, default=0, help="coded gradients: ranks of each group that may be late")
    parser.add_argument("--sparse", type=share_of, metavar="SHARE", help="send the largest entries only, as in 1%%")
    parser.add_argument("--wire", choices=FORMS, help="send gradients in so few bits an element")
    parser.add_argument("--every", type=int, default=0, help="DiLoCo: steps between two rounds; 0 for plain DDP")
    parser.add_argument("--slow-rank", type=SlowRank.parse, metavar="RANK:TIME", help="a rank that sleeps in each step")
    parser.add_argument("--leave", type=Leaver.parse, metavar="SITE:TIME", help="a rank of DiLoCo that goes so early")
    parser.add_argument("--events", action="store_true", help="JSON lines on rank 0, for a program that reads them")
    return parser.parse_args(arguments)


def say(options: argparse.Namespace, event: str, **facts: Any) -> None:
    """Tells what happened, on rank 0 only."""
    if int(os.environ.get("RANK", "0")):
        return
    if options.events:
        print(json.dumps({"event": event, **facts}), flush=True)
    else:
        shown = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in facts.items()
        )
        print(f"{event}: {', '.join(shown)}", flush=True)


def train(options: argparse.Namespace) -> dict[str, Any]:
    """The loop that every DDP tutorial has. Returns the result on rank 0, an empty dict elsewhere."""
    rank, world = dist.get_rank(), dist.get_world_size()
    images = data.load(options.data)
    torch.manual_seed(options.seed)
    epochs, share = options.epochs or images.epochs, options.batch or images.batch
    trainer = trainer_of(
        options.policy, LeNet5(), options.learning_rate, options.coded, share, options.sparse, options.wire,
        options.every,
    )  # fmt: skip
    model, optimizer = trainer.model, trainer.optimizer
    loss_of = nn.CrossEntropyLoss()
    batch = share * world
    steps = len(images.train_labels) // batch
    if not steps:
        raise SystemExit(f"{len(images.train_labels)} training images are fewer than one batch of {world} x {share}")
    say(
        options, "start", backend=options.backend, data=images.source, ranks=world, seed=options.seed,
        train_images=len(images.train_labels), test_images=len(images.test_labels), epochs=epochs, steps=steps,
        batch=share, parameters=sum(p.numel() for p in model.parameters()), policy=options.policy,
        coded=options.coded, sparse=options.sparse, wire=options.wire, every=options.every,
        leaves=None if options.leave is None else [options.leave.rank, options.leave.seconds],
    )  # fmt: skip
    # A linear decay to nothing: the accuracy at the end depends less on the last few batches.
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=epochs * steps)
    sleep_s = options.slow_rank.seconds if options.slow_rank and options.slow_rank.rank == rank else 0.0
    leaves_s = options.leave.seconds if options.leave and options.leave.rank == rank else math.inf
    times: list[float] = []
    last_said = first = 0.0
    loss = torch.zeros(())
    # Rounds are averages that the ranks made together; without a policy a rank's every step is one.
    while (rounds := trainer.rounds) < epochs * steps:
        started = time.perf_counter()
        if times and started - first >= leaves_s:
            assert isinstance(trainer, Local)
            trainer.leave()
            break
        epoch, step = divmod(len(times), steps)
        if step == 0:
            # The same order on every rank; each takes its part of every batch.
            order = np.random.default_rng((options.seed, epoch)).permutation(len(images.train_labels))
        trainer.sleep(sleep_s)
        if not options.coded:
            optimizer.zero_grad()
        for mine, counts in trainer.shares(order[step * batch :][:batch]):
            pixels, labels = to_batch(images, images.train_images[mine], images.train_labels[mine])
            loss = loss_of(model(pixels), labels)
            (counts * loss).backward()
        trainer.step()
        for _ in range(min(trainer.rounds, epochs * steps) - rounds):
            schedule.step()
        now = time.perf_counter()
        times.append(now - started)
        first = first or now
        if now - last_said >= EVENT_PERIOD_S or trainer.rounds >= epochs * steps:
            last_said = now
            at = min(trainer.rounds, epochs * steps) - 1
            say(options, "step", epoch=at // steps + 1, step=at % steps + 1, loss=float(loss.detach()))
    else:
        trainer.finish()
    stayed = [each for each, told in enumerate(everyones({"here": trainer.rounds >= epochs * steps})) if told["here"]]
    right = evaluate(model, images, stayed)
    settled = times[STEPS_SETTLING:] or times
    result = {
        "accuracy": right / len(images.test_labels),
        "test_images": len(images.test_labels),
        "loss": float(loss.detach()),
        "step_ms": median(settled) * 1e3,
        "train_s": sum(times),
        "replicas_equal": replicas_equal(model, stayed),
        "stayed": stayed,
        "longest_step_ms": max(times[1:] or times) * 1e3,
        "receipts": everyones(asdict(trainer.receipts())) if options.backend == "ultima" else [],
        "rounds": trainer.rounds,
        "ranks": everyones(trainer.account(sum(times))),
    }
    return {} if rank else result


def to_batch(images: data.Images, pixels: data.Bytes, labels: data.Bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes to what the model reads: float32[n, 1, 28, 28] of mean 0 and deviation 1, int64[n]."""
    scaled = torch.from_numpy(np.ascontiguousarray(pixels)).unsqueeze(1).float() / 255
    return (scaled - images.mean) / images.deviation, torch.from_numpy(labels.astype(np.int64))


def evaluate(model: nn.Module, images: data.Images, ranks: list[int]) -> int:
    """Test images that the model names rightly; each of `ranks` looks at its own share, and all hear the sum."""
    right = torch.zeros((), dtype=torch.int64)
    model.eval()
    with torch.no_grad():
        place = ranks.index(dist.get_rank()) if dist.get_rank() in ranks else len(images.test_labels)
        mine = np.arange(place, len(images.test_labels), len(ranks))
        for start in range(0, len(mine), EVALUATION_BATCH):
            part = mine[start : start + EVALUATION_BATCH]
            pixels, labels = to_batch(images, images.test_images[part], images.test_labels[part])
            right += (model(pixels).argmax(1) == labels).sum()
    dist.all_reduce(right)
    return int(right)


def replicas_equal(model: nn.Module, ranks: list[int]) -> bool:
    """True if all of `ranks` hold the very same parameters, bit for bit."""
    mine = [sha256(parameter.detach().numpy().tobytes()).hexdigest() for parameter in model.parameters()]
    found = everyones({"digests": mine})
    return all(found[each] == found[ranks[0]] for each in ranks)


def everyones(mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank has, in order of rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


if __name__ == "__main__":
    sys.exit(main())
