# SPDX-License-Identifier: Apache-2.0
"""LeNet-5, in the form in which it is trained today: rectifiers and max-pooling.

LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998. 61,706 parameters,
so its gradients are one bucket of 247 KB: small enough for two cores, large enough to be cut into packets.
"""

from __future__ import annotations

import torch
from torch import nn


class LeNet5(nn.Module):
    """float32[n, 1, 28, 28] in, ten scores float32[n, 10] out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(images)
        return scores
