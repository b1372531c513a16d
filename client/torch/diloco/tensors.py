# SPDX-License-Identifier: Apache-2.0
"""A model's tensors as `ultima.local` takes them: one vector of float32, parameters first, then statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ultima.base.errors import InvalidArgument
from ultima.local.rules import Floats
from ultima.local.values import Entry, overlaps


class Tensors:
    """The parameters of `model` that are trained, each once, by the first of its names, and its buffers of floats.

    Frozen parameters and buffers of whole numbers stay each rank's own. Raises InvalidArgument for a model of which no
    parameter is trained, and for parameters that are spread over ranks, sparse, or on the device "meta".
    """

    def __init__(self, model: nn.Module) -> None:
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        if not trained:
            raise InvalidArgument("model", "no parameter that requires a gradient", "at least one")
        buffers = [(name, each) for name, each in model.named_buffers() if each.is_floating_point()]
        for name, each in trained + buffers:
            if hasattr(each, "placements"):
                raise InvalidArgument(name, "spread over ranks (a DTensor)", "a tensor that each rank holds whole")
            if each.layout is not torch.strided or each.device.type == "meta" or not each.is_floating_point():
                raise InvalidArgument(name, f"{each.dtype}, {each.layout}, on {each.device}", "dense floats")
        self._tensors = [each.detach() for _, each in trained + buffers]
        self.device = self._tensors[0].device
        self.entries: Sequence[Entry] = [
            Entry(name, tuple(each.shape), str(each.dtype).removeprefix("torch."), index >= len(trained))
            for index, (name, each) in enumerate(trained + buffers)
        ]

    def read(self, low: int, out: Floats) -> None:
        """See `Values`."""
        told = torch.from_numpy(out)
        for index, mine, its in overlaps(self.entries, low, out.size):
            told[mine].copy_(self._tensors[index].reshape(-1)[its])

    def write(self, low: int, values: Floats) -> None:
        """See `Values`."""
        told = torch.from_numpy(values)
        for index, mine, its in overlaps(self.entries, low, values.size):
            tensor = self._tensors[index]
            flat = tensor.reshape(-1)
            flat[its].copy_(told[mine])
            if flat.data_ptr() != tensor.data_ptr():  # of a strided tensor it is a copy
                tensor.copy_(flat.view(tensor.shape))
