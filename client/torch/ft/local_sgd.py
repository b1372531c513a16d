# SPDX-License-Identifier: Apache-2.0
"""`DiLoCo` and `LocalSGD` called as torchft's are, so that a program that uses them changes its import alone.

from ultima.torch.ft import DiLoCo
with DiLoCo(None, fragments, inner, outer, sync_every=100):
    for batch in loader:
        inner.zero_grad(); loss_of(model, batch).backward(); inner.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ultima.torch.diloco import diloco as ours


class DiLoCo(ours.DiLoCo):
    """`ultima.torch.DiLoCo` for the modules of `model_fragments`, stepped by the inner optimizer's own step.

    manager: is not used, and may be None. The model is cut into as many fragments as there are modules, all of one
    size. sync_every: steps between two rounds of a fragment. The rest as for `ultima.torch.DiLoCo`.
    """

    def __init__(
        self,
        manager: Any,
        model_fragments: Sequence[nn.Module],
        inner_optimizer: torch.optim.Optimizer,
        outer_optimizer: torch.optim.Optimizer,
        sync_every: int,
        **options: Any,
    ) -> None:
        del manager
        model = nn.ModuleList(model_fragments)
        options = {"fragments": len(model_fragments), "hook": True, **options}
        super().__init__(model, inner_optimizer, sync_every, outer=outer_optimizer, **options)


class LocalSGD(ours.LocalSGD):
    """`ultima.torch.LocalSGD`, stepped by the optimizer's own step. manager: is not used, and may be None."""

    def __init__(
        self, manager: Any, model: nn.Module, optimizer: torch.optim.Optimizer, sync_every: int, **options: Any
    ) -> None:
        del manager
        super().__init__(model, optimizer, sync_every, **{"hook": True, **options})
