# SPDX-License-Identifier: Apache-2.0
"""What is trained in the study of accuracy: LeNet and the CNN of `make tta` on its images, and a small transformer that
foretells the next character of the manual that every Python brings (`pydoc_data.topics`, half a million characters).

A task gives the loss of a rank's share of a step, and judges the model in the end. Nothing is read from a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn

from tests.bench.sparse_accuracy import MOMENTUM, PLANS, WORLD, evaluate
from tests.bench.tta.rank import MODELS, batches
from ultima.demo import data
from ultima.demo.train import to_batch

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
TEXTS, RATE = 8, 2e-3
HELD_OUT = 10  # a tenth of the text, its end, is for the judge
JUDGED = 200  # pieces of it


@dataclass(frozen=True)
class Task:
    """One kind of training. `judged` is in `unit`; of a loss less is better, of a share of right answers more."""

    name: str
    steps: int
    unit: str
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    share: Callable[[nn.Module, int, int, int, int], torch.Tensor]
    """The loss of (model, seed, all steps, step, rank)."""
    judge: Callable[[nn.Module], float]


class Characters(nn.Module):
    """int64[n, CONTEXT] to float32[n, CONTEXT, kinds]: scores of the character that follows each. Two layers, about
    120,000 parameters, a tenth of them in embeddings: what int4 without feedback has to be feared for."""

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.word = nn.Embedding(kinds, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, kinds)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        seen = self.word(text) + self.place(torch.arange(text.shape[1]))
        scores: torch.Tensor = self.scores(self.layers(seen, mask=self.mask, is_causal=True))
        return scores


@cache
def manual() -> tuple[torch.Tensor, int]:
    """The manual's characters as numbers, and how many kinds there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    kinds = sorted(set(text))
    number = {kind: i for i, kind in enumerate(kinds)}
    return torch.tensor([number[each] for each in text]), len(kinds)


def _pieces(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is read from each start on, and what follows each character of it."""
    text, _ = manual()
    at = starts[:, None] + torch.arange(CONTEXT)
    return text[at], text[at + 1]


def _loss(model: nn.Module, starts: torch.Tensor) -> torch.Tensor:
    read, follows = _pieces(starts)
    return nn.functional.cross_entropy(model(read).flatten(0, 1), follows.flatten())


def _text_share(model: nn.Module, seed: int, steps: int, step: int, rank: int) -> torch.Tensor:
    del steps
    ends = len(manual()[0]) * (HELD_OUT - 1) // HELD_OUT - CONTEXT - 1
    starts = np.random.default_rng([seed, step, rank]).integers(0, ends, TEXTS)
    return _loss(model, torch.from_numpy(starts))


def _text_judge(model: nn.Module) -> float:
    """Nats a character of what was not trained on."""
    length = len(manual()[0])
    with torch.no_grad():
        starts = torch.linspace(length * (HELD_OUT - 1) // HELD_OUT, length - CONTEXT - 2, JUDGED).long()
        return float(_loss(model, starts))


def transformer() -> Task:
    return Task(
        "transformer", 1000, "nats",
        model=lambda: Characters(manual()[1]),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=RATE),
        share=_text_share,
        judge=_text_judge,
    )  # fmt: skip


def of_images(name: str, images: data.Images) -> Task:
    """`name`: "lenet" or "wide", the CNN of 25 MB."""
    plan = PLANS[name]

    @cache
    def order(seed: int, steps: int) -> list[np.ndarray]:  # type: ignore[type-arg]
        return list(batches(len(images.train_labels), seed, steps, plan.batch * WORLD))

    def share(model: nn.Module, seed: int, steps: int, step: int, rank: int) -> torch.Tensor:
        mine = order(seed, steps)[step][rank * plan.batch :][: plan.batch]
        pixels, labels = to_batch(images, images.train_images[mine], images.train_labels[mine])
        return nn.functional.cross_entropy(model(pixels), labels)

    return Task(
        name, plan.steps, "%",
        model=lambda: MODELS[name](),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=plan.learning_rate, momentum=MOMENTUM),
        share=share,
        judge=lambda model: 100 * evaluate(model, images),
    )  # fmt: skip


def apart(unit: str, mine: float, base: float) -> float:
    """How much worse `mine` is than `base`: in points of right answers, or in percent of the loss."""
    if math.isnan(mine):
        return math.nan
    return base - mine if unit == "%" else 100 * (mine - base) / base
