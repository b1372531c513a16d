# SPDX-License-Identifier: Apache-2.0
"""The models of the study of local SGD, for images of one channel and 28 by 28 pixels in ten classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ultima.demo.model import LeNet5

WIDTH, SIDE = 48, 28


def cnn() -> nn.Module:
    """Three convolutions with normalisation by groups, of which no statistic is kept; 0.04 million parameters."""
    layers: list[nn.Module] = []
    for before, after in ((1, 12), (12, 24), (24, 48)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 3 * 3, 64), nn.ReLU(), nn.Linear(64, 10))


class Transformer(nn.Module):
    """Reads an image row by row: two layers of attention with four heads; 0.04 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(SIDE, WIDTH)
        self.places = nn.Parameter(torch.randn(SIDE, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        told = self.layers(self.rows(pixels.reshape(-1, SIDE, SIDE)) + self.places)
        return self.last(told.mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {"lenet": LeNet5, "cnn": cnn, "transformer": Transformer}
