# SPDX-License-Identifier: Apache-2.0
"""The gradients of a model as one vector in the shared memory.

On the CPU the parameters' `grad` are views of it: autograd writes where the daemon reads, and what the daemon writes
the optimizer reads. On another device they are copied out and in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from ultima.base.errors import InvalidArgument
from ultima.torch.backend.elements import FLOATS

if TYPE_CHECKING:
    from ultima import Job


class FlatGradients:
    """Of |parameters|, each once, in their order: the same on all ranks.

    Raises InvalidArgument for parameters of several types, of a type that is not averaged, or on the device "meta", and
    ResourceExhausted where the shared memory has no room.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], job: Job) -> None:
        self.job = job
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        check_parameters(self.parameters)
        self._shapes = [parameter.shape for parameter in self.parameters]
        kind = self.parameters[0].dtype
        count = sum(parameter.numel() for parameter in self.parameters)
        self.vector = torch.from_numpy(job.empty(count * kind.itemsize, "uint8")).view(kind)
        """All of them, one behind the other."""
        self.vector.zero_()
        self.views = [
            part.view(shape)
            for part, shape in zip(
                torch.split(self.vector, [parameter.numel() for parameter in self.parameters]),
                self._shapes,
                strict=True,
            )
        ]

    def zero(self) -> None:
        """Gradients of 0, where the daemon reads them."""
        self.vector.zero_()
        for parameter, view in self._here():
            parameter.grad = view
        for parameter, _ in self._elsewhere():
            parameter.grad = None

    def gather(self) -> None:
        """What backward passes made, into the vector. A parameter without a gradient counts as 0.

        Raises InvalidArgument for a sparse gradient, or a parameter whose size has changed.
        """
        for index, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if parameter.shape != self._shapes[index]:
                allowed = f"{tuple(self._shapes[index])}, as when it was handed over: make a new optimizer"
                raise InvalidArgument(f"parameters[{index}].shape", tuple(parameter.shape), allowed)
            found = parameter.grad
            if found is view:
                continue
            if found is None:
                view.zero_()
                continue
            if found.layout is not torch.strided:
                raise InvalidArgument(
                    f"parameters[{index}].grad", found.layout, "a dense one: nn.Embedding(sparse=False)"
                )
            if found.data_ptr() != view.data_ptr():
                view.copy_(found)

    def scatter(self) -> None:
        """The vector into the gradients that the optimizer reads."""
        for parameter, view in self._here():
            parameter.grad = view
        for parameter, view in self._elsewhere():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(view)

    def _here(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        return [pair for pair in zip(self.parameters, self.views, strict=True) if pair[0].device.type == "cpu"]

    def _elsewhere(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        return [pair for pair in zip(self.parameters, self.views, strict=True) if pair[0].device.type != "cpu"]


def check_parameters(parameters: list[torch.Tensor]) -> None:
    """Raises InvalidArgument unless one vector can hold all their gradients."""
    if not parameters:
        raise InvalidArgument("parameters", "none that requires a gradient", "at least one")
    kinds = {parameter.dtype for parameter in parameters}
    if len(kinds) > 1 or not kinds <= FLOATS:
        allowed = "one of " + ", ".join(sorted(map(str, FLOATS))) + ", the same for all parameters"
        raise InvalidArgument("parameters.dtype", ", ".join(sorted(map(str, kinds))), allowed)
    devices = {parameter.device.type for parameter in parameters}
    if "meta" in devices:
        raise InvalidArgument("parameters.device", "meta", "a device that holds values")
