# SPDX-License-Identifier: Apache-2.0
"""What few bits an element cost in accuracy: `make quant-accuracy`; ARGS=--quick takes a minute or two.

LeNet, the CNN and a small transformer (quant_tasks.py), four ranks' worth of gradients a step, in float32 and in each
form at equal steps, three seeds. All ranks are in one process and nothing is sent: contributions and results are
rounded as a job's are, slot by slot (ultima.quant), and a complete average has the same values over any network. For
time over a network there are `make tta`, `ultima demo --wire int8` and the lab.

The table says by how much each form ends worse than float32 with the same seed: the mean over seeds, and its standard
error. The quick form takes so few steps that it judges nothing; it shows that all of it works, and from what its steps
took it says how long the whole would take.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tests.bench.quant_tasks import Task, apart, of_images, transformer
from tests.bench.sparse_accuracy import WORLD, bucket_of
from tests.bench.tta.rank import rate
from ultima.demo import data
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
JUDGED = ("float32", "int8", "int4, feedback", "int4, feedback, answer int8")
"""Without `--way`: what QuantState does of itself, and int4 both ways."""
TASKS = ("lenet", "wide", "transformer")
SEEDS, QUICK_SEEDS = (1, 2, 3), (1, 2)
QUICK_STEPS = {"lenet": 8, "wide": 2, "transformer": 8}


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


@dataclass(frozen=True)
class Trained:
    """One training: what its task judged in the end, and what a step and the judging took, in seconds of CPU."""

    judged: float
    step_s: float
    judge_s: float


def train(task: Task, way: Way, seed: int, steps: int) -> Trained:
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    size = sum(parameter.numel() for parameter in model.parameters())
    left = [np.zeros(size, np.float32) for _ in range(WORLD if way.feedback else 0)]
    began = time.process_time()
    for step in range(steps):
        given = []
        for rank in range(WORLD):
            model.zero_grad()
            task.share(model, seed, steps, step, rank).backward()  # type: ignore[no-untyped-call]
            flat, parts = bucket_of(model)
            given.append(flat.numpy())
        total = torch.from_numpy(averaged(given, way, step, left))
        for part in parts:
            part.parameter.grad = total[part.start :][: part.size].view_as(part.parameter)  # type: ignore[union-attr, arg-type]
        optimizer.step()
        schedule.step()
    ended = time.process_time()
    judged = task.judge(model)
    return Trained(judged, (ended - began) / steps, time.process_time() - ended)


def table(found: dict[str, dict[str, list[Trained]]], units: dict[str, str]) -> list[str]:
    """Lines of Markdown: of each task and way what each seed ended with, and how much worse than float32 that is."""
    lines = ["| task | form | seeds | mean | worse than float32 |", "|---|---|---|---|---|"]
    for task, ways in found.items():
        unit = units[task]
        of = "points" if unit == "%" else "% of the loss"
        for way, each in ways.items():
            judged = [one.judged for one in each]
            shown = ", ".join(f"{one:.2f}" if unit == "%" else f"{one:.4f}" for one in judged)
            worse = (
                "" if way == "float32" or "float32" not in ways else _worse(unit, judged, ways["float32"]) + f" {of}"
            )
            mean = statistics.mean(judged)
            lines.append(f"| {task} | {way} | {shown} {unit} | {mean:.2f} | {worse} |" if unit == "%" else
                         f"| {task} | {way} | {shown} {unit} | {mean:.4f} | {worse} |")  # fmt: skip
    return lines


def _worse(unit: str, judged: Sequence[float], base: Sequence[Trained]) -> str:
    each = [apart(unit, mine, other.judged) for mine, other in zip(judged, base, strict=True)]
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    return f"{statistics.mean(each):+.2f} +- {error:.2f}"


def whole_s(found: dict[str, dict[str, list[Trained]]], steps: dict[str, int]) -> float:
    """Seconds of CPU of three seeds of these tasks and ways at full length, by what their steps took here."""
    per_seed = 0.0
    for task, ways in found.items():
        for each in ways.values():
            per_seed += steps[task] * statistics.median(one.step_s for one in each) + each[0].judge_s
    return len(SEEDS) * per_seed


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy with gradients of few bits beside float32, at equal steps.")
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto", help="of LeNet and CNN")
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--way", choices=tuple(WAYS), action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--steps", type=int, help="at most so many of each task")
    parser.add_argument("--quick", action="store_true", help="a few steps, and how long the whole takes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load(options.data)
    tasks = [transformer() if name == "transformer" else of_images(name, images) for name in options.task or TASKS]
    full = {task.name: task.steps for task in tasks}
    seeds = options.seed or (QUICK_SEEDS if options.quick else SEEDS)
    found: dict[str, dict[str, list[Trained]]] = {}
    for task in tasks:
        steps = min(options.steps or task.steps, QUICK_STEPS[task.name] if options.quick else task.steps)
        for seed in seeds:
            for way in options.way or JUDGED:
                one = train(task, WAYS[way], seed, steps)
                found.setdefault(task.name, {}).setdefault(way, []).append(one)
                took = f"{1e3 * one.step_s:.0f} ms of CPU a step"
                print(
                    f"{task.name}, seed {seed}, {way}: {one.judged:.4g} {task.unit} after {steps}, {took}", flush=True
                )
    print(*table(found, {task.name: task.unit for task in tasks}), sep="\n")
    minutes = whole_s(found, full) / 60
    of = ", ".join(f"{name} {steps}" for name, steps in full.items())
    print(f"all of it ({len(SEEDS)} seeds; steps: {of}) takes about {minutes:.0f} minutes of CPU, on one core")


if __name__ == "__main__":
    main()
