# SPDX-License-Identifier: Apache-2.0
"""A model's tensors as one vector: where they may be written in place, and that autograd hears of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ultima.torch.diloco.tensors import Tensors


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    for at, each in enumerate(model.parameters()):
        nn.init.constant_(each, at)
    return model


def test_spans__are_the_memory_of_the_tensors() -> None:
    """Elements 5 to 18: of the weight, the whole bias, and of the norm's weight."""
    model = _model()
    spans = Tensors(model).spans(5, 13)
    assert spans is not None
    assert [(which.start, which.stop) for which, _ in spans] == [(0, 7), (7, 11), (11, 13)]
    for which, memory in spans:
        memory[:] = np.arange(which.start, which.stop)
    weight, bias, norm, _ = model.parameters()
    assert weight.flatten().tolist() == [0.0] * 5 + [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert bias.tolist() == [7.0, 8.0, 9.0, 10.0]
    assert norm.tolist() == [11.0, 12.0, 2.0, 2.0]


def test_spans__tell_autograd_what_changes() -> None:
    """As `copy_` does: a backward pass that needs the values of before is refused."""
    model = nn.Linear(3, 1)
    loss = model(torch.ones(1, 3, requires_grad=True)).sum()
    assert Tensors(model).spans(0, 4) is not None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_spans__are_none_of_other_types_and_of_strided_tensors() -> None:
    half = _model().to(torch.bfloat16)
    assert Tensors(half).spans(0, 5) is None
    strided = _model()
    strided[0].weight = nn.Parameter(torch.zeros(3, 4).t())  # type: ignore[index]
    assert Tensors(strided).spans(0, 5) is None
    assert Tensors(strided).spans(12, 4) is not None, "its bias alone"
