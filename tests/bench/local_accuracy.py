# SPDX-License-Identifier: Apache-2.0
"""What local SGD costs in accuracy, and what becomes of missed rounds: `make local-accuracy`, some hours;
ARGS="--seeds 1 --steps 40 --model lenet" takes minutes.

Three models on the demo's images, four ranks in one process, whose labels are skewed (Dirichlet 1). DDP is beside
DiLoCo with all ranks in all rounds, and DiLoCo of which 30 % of what ranks give misses its round, or is lost in part:

    rebased, members        what the product does: what was missed is in the next round; divided by all members
    rebased, contributors   the same, divided by the ranks that are in the round
    dropped                 a rank that misses a round begins anew from the outer model

Each way has an accuracy and a loss for each seed, the mean of both, and how far it is from DDP of the same seeds, with
the standard error of that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.bench.local_models import MODELS
from tests.client.local.net import Net
from ultima.demo import data
from ultima.demo.train import to_batch
from ultima.local.outer import Outer
from ultima.local.rules import Nesterov
from ultima.local.turns import Verdict
from ultima.local.vector import HEAD
from ultima.torch.diloco.tensors import Tensors

RANKS, BATCH, EVERY, RATE = 4, 32, 20, 2e-3
MISSING = 0.3
RUN = 20 * 352  # elements of a run of lost packets


@dataclass(frozen=True)
class Way:
    """How a training goes. lost: what misses a round, "nothing", "all" of a rank or a "part" of it."""

    name: str
    lost: str = "nothing"
    then: str = "rebased, members"
    wire: str = "float32"
    fragments: int = 1
    delay: int = 1


WAYS = (
    Way("DDP"),
    Way("DiLoCo"),
    Way("DiLoCo, int8", wire="int8"),
    Way("DiLoCo, int4 with feedback", wire="int4"),
    Way("DiLoCo, int4 without feedback", wire="int4"),
    Way("DiLoCo, four fragments, delay 5", fragments=4, delay=5),
    Way("SparseLoCo, 1/64", wire="topk"),
    Way("SparseLoCo without feedback", wire="topk"),
    *(Way(f"30 % miss: {then}", "all", then) for then in ("rebased, members", "rebased, contributors", "dropped")),
    *(Way(f"30 % in part: {then}", "part", then) for then in ("rebased, members", "dropped")),
)


class Variant(Outer):
    """An `Outer` that does with missed work what `then` says."""

    then = "rebased, members"

    def _step_outer(self, fragment: int, verdict: Verdict, mine: Any) -> None:
        if self.then == "rebased, contributors":
            verdict = replace(verdict, divisor=verdict.weight)
        super()._step_outer(fragment, verdict, mine)

    def _move(self, low: int, before: Any, mine: Any) -> None:
        super()._move(low, before, np.ones_like(mine) if self.then == "dropped" else mine)


def skewed(labels: Any, random: np.random.Generator) -> list[Any]:
    """The images of each rank: each label is divided among the ranks by shares drawn from Dirichlet 1."""
    parts: list[list[int]] = [[] for _ in range(RANKS)]
    for label in range(10):
        found = random.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(random.dirichlet(np.ones(RANKS)))[:-1] * len(found)).astype(int)
        for part, some in zip(parts, np.split(found, cuts), strict=True):
            part += some.tolist()
    return [np.array(part) for part in parts]


def look(model: nn.Module, images: data.Images) -> tuple[float, float]:
    """The accuracy, of 1, and the loss on test images."""
    with torch.no_grad():
        pixels, labels = to_batch(images, images.test_images[:2000], images.test_labels[:2000])
        told = model(pixels)
        return float((told.argmax(1) == labels).float().mean()), float(nn.functional.cross_entropy(told, labels))


def train(way: Way, images: data.Images, seed: int, steps: int, model_name: str = "lenet") -> tuple[float, float]:
    """The mean accuracy and loss of five looks in the last quarter, of the outer model."""
    random = np.random.default_rng(seed)
    parts = skewed(images.train_labels, random)
    torch.manual_seed(seed)
    make = MODELS[model_name]
    first, count = make(), sum(each.numel() for each in make().parameters())
    models = [make() for _ in range(1 if way.name == "DDP" else RANKS)]
    for model in models:
        model.load_state_dict(first.state_dict())
    inner = [torch.optim.AdamW(model.parameters(), lr=RATE) for model in models]
    outers, net = [], Net(RANKS, wire="" if way.wire in ("float32", "topk") else way.wire)
    options: dict[str, Any] = {"wire": way.wire, "fragments": way.fragments, "delay": way.delay}
    if way.wire == "int4":
        options["feedback"] = "without" not in way.name
    if way.wire == "topk":
        keep = 0.0 if "without" in way.name else None
        options = {"sparse": 1 / 64, "outer": Nesterov(lr=1.0, momentum=0.0), "feedback": keep, "delay": way.delay}
    if way.name != "DDP":
        outers = [Variant(job, Tensors(model), EVERY, **options) for job, model in zip(net.jobs(), models, strict=True)]
    for outer in outers:
        outer.then = way.then
    for op in range(steps // EVERY + 1):
        for rank in np.flatnonzero(random.random(RANKS) < MISSING):
            begin = RANKS * HEAD + (0 if way.lost == "all" else int(random.integers(count)))
            where = slice(begin, None if way.lost == "all" else begin + RUN)
            if way.lost != "nothing":
                net.lost.setdefault(op, []).append((int(rank), where))
    looks, loss_of = [], nn.CrossEntropyLoss()
    shown = make()
    for step in range(steps):
        batches = [part[random.integers(len(part), size=BATCH)] for part in parts]
        if way.name == "DDP":
            batches = [np.concatenate(batches)]
        for rank, mine in enumerate(batches):
            pixels, labels = to_batch(images, images.train_images[mine], images.train_labels[mine])
            inner[rank].zero_grad()
            loss_of(models[rank](pixels), labels).backward()
            inner[rank].step()
            if outers:
                outers[rank].step()
        if step >= steps - 5 * EVERY and step % EVERY == EVERY - 1 and step:
            shown.load_state_dict(models[0].state_dict())
            if outers:
                Tensors(shown).write(0, outers[0].theta)
            looks.append(look(shown, images))
    return statistics.mean(each[0] for each in looks), statistics.mean(each[1] for each in looks)


def to_ddp(found: list[float], beside: list[float]) -> str:
    """How far a way is from DDP, by seed, in points: the mean, and its standard error where there are several seeds."""
    apart = [mine - its for mine, its in zip(found, beside, strict=True)]
    error = f" +- {statistics.stdev(apart) / len(apart) ** 0.5:.2f}" if len(apart) > 1 else ""
    return f", to DDP {statistics.mean(apart):+.2f}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--model", choices=MODELS, help="one of them alone")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--only", default="", help="the ways whose name begins so")
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = data.load(options.data)
    print(f"{images.source}; {options.steps} steps of {RANKS} x {BATCH} images, H = {EVERY}, AdamW {RATE}", flush=True)
    started = time.monotonic()
    for model in [options.model] if options.model else MODELS:
        beside: list[float] = []
        for way in (each for each in WAYS if each.name.startswith(options.only)):
            told = [train(way, images, seed, options.steps, model) for seed in range(options.seeds)]
            found = [100 * accuracy for accuracy, _ in told]
            each, loss = " / ".join(f"{value:.1f}" for value in found), statistics.mean(loss for _, loss in told)
            beside = found if way.name == "DDP" else beside
            text = f"{model:12} {way.name:38} {each}   mean {statistics.mean(found):.1f}, loss {loss:.3f}"
            print(text + (to_ddp(found, beside) if beside is not found and beside else ""), flush=True)
    print(f"{time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
