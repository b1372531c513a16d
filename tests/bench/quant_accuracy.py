# SPDX-License-Identifier: Apache-2.0
"""What few bits an element cost in accuracy: `make quant-accuracy`; ARGS="--steps 300" takes minutes.

LeNet of `make tta` on its images, four ranks' worth of gradients a step, in float32 and in each form at equal steps,
with error feedback and without. All ranks are in one process and nothing is sent: contributions and results are rounded
as a job's are, slot by slot (ultima.quant), and a complete average has the same values over any network. For time over
a network there are `make tta`, `ultima demo --wire int8` and the lab.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tests.bench.sparse_accuracy import MOMENTUM, PLANS, WORLD, bucket_of, evaluate
from tests.bench.tta.rank import MODELS, batches, rate
from ultima.demo import data
from ultima.demo.train import to_batch
from ultima.quant import Draws, rounded
from ultima.quant.coding import Floats


@dataclass(frozen=True)
class Way:
    """How gradients go: |wire| None for float32; with |feedback| to nearest, and what rounding takes is kept."""

    wire: str | None = None
    answer: str | None = None
    feedback: bool = False


WAYS = {
    "float32": Way(),
    "int16": Way("int16"),
    "int8": Way("int8"),
    "int8, feedback": Way("int8", feedback=True),
    "int4": Way("int4"),
    "int4, feedback": Way("int4", feedback=True),
    "int4, feedback, answer int8": Way("int4", "int8", feedback=True),
}


def averaged(given: list[Floats], way: Way, step: int, left: list[Floats]) -> Floats:
    """The average that all ranks get of what each gives; |left| are their residuals, which become what rounding took
    with feedback. Chunk c is owned by rank c."""
    if way.wire is None:
        return np.asarray(np.mean(given, axis=0, dtype=np.float64), np.float32)
    result = np.empty_like(given[0])
    for chunk, part in enumerate(np.array_split(np.arange(result.size), len(given))):
        at = slice(part[0], part[-1] + 1)
        total = np.zeros(part.size, np.float32)
        for rank, values in enumerate(given):
            if way.feedback:
                total += rounded(values[at], way.wire, residual=left[rank][at])
            else:
                total += rounded(values[at], way.wire, Draws(step, rank, chunk))
        average = total / np.float32(len(given))
        result[at] = rounded(average, way.answer or way.wire, Draws(step, chunk, chunk, answer=True))
    return result


def train(way: Way, seed: int, images: data.Images, steps: int | None) -> float:
    """The share of the test images that is named rightly in the end."""
    plan = PLANS["lenet"]
    count = steps or plan.steps
    torch.manual_seed(seed)
    model = MODELS["lenet"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, count))
    size = sum(parameter.numel() for parameter in model.parameters())
    left = [np.zeros(size, np.float32) for _ in range(WORLD)]
    for number, batch in enumerate(batches(len(images.train_labels), seed, count, plan.batch * WORLD)):
        given = []
        for rank in range(WORLD):
            mine = batch[rank * plan.batch :][: plan.batch]
            model.zero_grad()
            pixels, labels = to_batch(images, images.train_images[mine], images.train_labels[mine])
            nn.functional.cross_entropy(model(pixels), labels).backward()
            flat, parts = bucket_of(model)
            given.append(flat.numpy())
        total = torch.from_numpy(averaged(given, way, number, left))
        for part in parts:
            part.parameter.grad = total[part.start :][: part.size].view_as(part.parameter)  # type: ignore[union-attr, arg-type]
        optimizer.step()
        schedule.step()
    return evaluate(model, images)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy with gradients of few bits beside float32, at equal steps.")
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    parser.add_argument("--way", choices=tuple(WAYS), action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load(options.data)
    found: dict[str, list[float]] = {}
    for seed in options.seed or (1, 2, 3):
        for way in options.way or WAYS:
            began = time.process_time()
            found.setdefault(way, []).append(train(WAYS[way], seed, images, options.steps))
            print(f"seed {seed}, {way}: {found[way][-1]:.2%}, {time.process_time() - began:.0f} s CPU", flush=True)
    for way, each in found.items():
        apart = statistics.mean(each) - statistics.mean(found.get("float32", each))
        print(f"{way}: mean {statistics.mean(each):.2%}, {100 * apart:+.2f} points to float32", flush=True)


if __name__ == "__main__":
    main()
