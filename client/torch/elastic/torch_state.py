# SPDX-License-Identifier: Apache-2.0
"""A model's tensors and what its optimizer keeps of them, as arrays by name that an elastic job gives and takes.

Dense tensors in the CPU's memory are given where they lie. Of others, and of numbers, a copy is given, and what a job
writes into it is put back by `put_back`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ultima.base.errors import InvalidArgument

Number = int | float


class TorchState:
    """See the module. The names follow those of the parameters, and are the same on all ranks.

    Raises InvalidArgument for parameters of the optimizer that are none of the model's, and for tensors that are
    sparse, or on the device "meta".
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._tensors = {f"module/{name}": each for name, each in (*module.named_parameters(), *module.named_buffers())}
        for name, each in self._tensors.items():
            _check(name, each)
        names = {id(each): name for name, each in module.named_parameters()}
        self._names: list[tuple[str, torch.Tensor]] = []
        """Of the parameters that the optimizer changes."""
        for at, group in enumerate(optimizer.param_groups):
            for place, each in enumerate(group["params"]):
                if id(each) not in names:
                    what = f"optimizer.param_groups[{at}]['params'][{place}]"
                    raise InvalidArgument(what, tuple(each.shape), "a parameter of the module")
                self._names.append((names[id(each)], each))
        self._copies: list[Callable[[], None]] = []

    @property
    def complete(self) -> bool:
        """Whether the optimizer keeps something already: most begin with their first step."""
        return bool(self._optimizer.state)

    def prepare(self) -> None:
        """Has the optimizer make what it keeps, by a step of no gradient that leaves the parameters as they are."""
        before = [(each, each.detach().clone(), each.grad) for _, each in self._names]
        for each, _, _ in before:
            each.grad = torch.zeros_like(each) if each.requires_grad else None
        self._optimizer.step()
        with torch.no_grad():
            for each, values, grad in before:
                each.copy_(values)
                each.grad = grad

    def arrays(self) -> dict[str, Any]:
        """All of it now, as `ElasticJob.share` and `follow` take it. Raises InvalidArgument for something that an
        optimizer keeps and that is neither a tensor nor a number."""
        self._copies.clear()
        found = {name: self._tensor(each.detach()) for name, each in self._tensors.items()}
        for name, parameter in self._names:
            kept = self._optimizer.state.get(parameter, {})
            for key in sorted(kept):
                if kept[key] is not None:
                    found[f"optimizer/{name}/{key}"] = self._kept(f"optimizer.state[{name!r}][{key!r}]", kept, key)
        return found

    def put_back(self) -> None:
        """What was written into copies that `arrays` made goes to where they are from."""
        with torch.no_grad():
            for copy in self._copies:
                copy()

    def _kept(self, name: str, kept: dict[str, Any], key: str) -> Any:
        value = kept[key]
        if isinstance(value, torch.Tensor):
            _check(name, value)
            return self._tensor(value.detach())
        if not isinstance(value, Number):
            raise InvalidArgument(name, type(value).__name__, "a tensor or a number")
        told, kind = np.array([value]), type(value)

        def back() -> None:
            kept[key] = kind(told[0])

        self._copies.append(back)
        return told

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            return tensor.reshape(-1) if tensor.dim() == 0 else tensor
        told = tensor.cpu().contiguous().clone()

        def back() -> None:
            tensor.copy_(told)

        self._copies.append(back)
        return told.reshape(-1) if told.dim() == 0 else told


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise InvalidArgument(name, f"{tensor.layout}, on {tensor.device}", "dense values")
