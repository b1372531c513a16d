# SPDX-License-Identifier: Apache-2.0
"""What sparse gradients cost in accuracy: `python -m tests.bench.sparse_accuracy`, a few minutes.

LeNet and the CNN of `make tta` on its images, four ranks' worth of gradients a step, dense and with SparseState's
memories at equal steps. All ranks are in one process and nothing is sent: an average that is complete has the same
values over any network. For time over a network there are `make tta`, `ultima demo --sparse 1%` and the lab.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.bench.tta.rank import EVALUATION_BATCH, MODELS, batches, rate
from ultima.demo import data
from ultima.demo.train import to_batch
from ultima.sparse import Feedback
from ultima.torch.hooks.parts import Part
from ultima.torch.sparse.memory import Memories

WORLD = 4
MOMENTUM = 0.9
DENSE_BELOW = 1000


@dataclass(frozen=True)
class Plan:
    """How a model is trained: steps, images of a rank in a step, the optimizer's rate."""

    steps: int
    batch: int
    learning_rate: float


PLANS = {"lenet": Plan(1000, 16, 0.05), "wide": Plan(150, 16, 0.05)}


@dataclass(frozen=True)
class Way:
    """How gradients go: |ratio| None for dense; with |momentum| in the memories or in the optimizer."""

    ratio: float | None = None
    momentum: bool = False
    start_step: int = 10
    warmup: float = 0.0
    """Share of the steps that send more than |ratio|."""
    by_rate: bool = False
    """Memories hold steps, learning rate times gradient: a rate that falls meanwhile does not count for what is old."""


WAYS = {
    "dense": Way(),
    "1 %": Way(0.01),
    "1 % after a warm-up": Way(0.01, warmup=0.2),
    "1 %, momentum corrected": Way(0.01, momentum=True),
    "1 %, momentum corrected, after a warm-up": Way(0.01, momentum=True, warmup=0.2),
    "1 %, by rate, after a warm-up": Way(0.01, warmup=0.2, by_rate=True),
    "1 %, by rate, momentum corrected, after a warm-up": Way(0.01, momentum=True, warmup=0.2, by_rate=True),
    "0.1 %, momentum corrected": Way(0.001, momentum=True),
}


def train(name: str, way: Way, seed: int, images: data.Images, steps: int | None) -> tuple[float, float]:
    """The share of the test images that is named rightly in the end, and the share of the elements that was sent."""
    plan = PLANS[name]
    count = steps or plan.steps
    torch.manual_seed(seed)
    model = MODELS[name]()
    inner = 0.0 if way.momentum else MOMENTUM
    outer = 1.0 if way.by_rate else plan.learning_rate
    optimizer = torch.optim.SGD(model.parameters(), lr=outer, momentum=inner)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if way.by_rate else rate(step, count))
    rules = Feedback(0, way.ratio or 1, momentum=MOMENTUM if way.momentum else 0, choose="sampled",
                     warmup_steps=int(way.warmup * count))  # fmt: skip
    memories = [Memories(rules, DENSE_BELOW, "float32") for _ in range(WORLD)]
    sent = given = 0
    for number, batch in enumerate(batches(len(images.train_labels), seed, count, plan.batch * WORLD)):
        total: torch.Tensor | None = None
        for rank in range(WORLD):
            mine = batch[rank * plan.batch :][: plan.batch]
            model.zero_grad()
            nn.functional.cross_entropy(
                model(to_batch(images, images.train_images[mine], images.train_labels[mine])[0]),
                torch.from_numpy(images.train_labels[mine].astype(np.int64)),
            ).backward()
            flat, parts = bucket_of(model)
            if way.by_rate:
                flat *= plan.learning_rate * rate(number, count)
            if way.ratio is None:
                given_now = flat
            elif number < way.start_step:
                memories[rank].take_all(flat, parts)
                given_now = flat
            else:
                chosen = memories[rank].choose(flat, parts)
                sent, given = sent + chosen.indices.size, given + flat.numel()
                given_now = torch.zeros_like(flat)
                given_now.numpy()[chosen.indices] = chosen.values
            total = given_now if total is None else total.add_(given_now)
        assert total is not None
        for part in parts:
            part.parameter.grad = (total[part.start :][: part.size] / WORLD).view_as(part.parameter)  # type: ignore[union-attr, arg-type]
        optimizer.step()
        schedule.step()
    return evaluate(model, images), sent / given if given else 1.0


def bucket_of(model: nn.Module) -> tuple[torch.Tensor, list[Part]]:
    """All gradients in one flat tensor, and where each parameter's is."""
    parts, at = [], 0
    for parameter in model.parameters():
        parts.append(Part(parameter, at, parameter.numel(), parameter.dim()))
        at += parameter.numel()
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    return torch.cat([gradient.reshape(-1) for gradient in gradients]), parts


def evaluate(model: nn.Module, images: data.Images) -> float:
    right = 0
    with torch.no_grad():
        for start in range(0, len(images.test_labels), EVALUATION_BATCH):
            pixels, labels = to_batch(
                images, images.test_images[start:][:EVALUATION_BATCH], images.test_labels[start:][:EVALUATION_BATCH]
            )
            right += int((model(pixels).argmax(1) == labels).sum())
    return right / len(images.test_labels)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy with sparse gradients beside dense ones, at equal steps.")
    parser.add_argument("--model", choices=tuple(PLANS), action="append")
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    parser.add_argument("--way", choices=tuple(WAYS), action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load(options.data)
    for name in options.model or PLANS:
        found: dict[str, list[float]] = {}
        for seed in options.seed or (1, 2, 3):
            for way in options.way or WAYS:
                began = time.process_time()
                accuracy, share = train(name, WAYS[way], seed, images, options.steps)
                found.setdefault(way, []).append(accuracy)
                took = time.process_time() - began
                print(f"{name}, seed {seed}, {way}: {accuracy:.2%}, {share:.2%} sent, {took:.0f} s CPU", flush=True)
        for way, each in found.items():
            apart = statistics.mean(each) - statistics.mean(found.get("dense", each))
            print(f"{name}, {way}: mean {statistics.mean(each):.2%}, {100 * apart:+.2f} points to dense", flush=True)


if __name__ == "__main__":
    main()
