# SPDX-License-Identifier: Apache-2.0
"""A model's tensors as `ultima.local` takes them: one vector of float32, parameters first, then statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ultima.base.errors import InvalidArgument
from ultima.local.round_kernels import Floats
from ultima.local.values import Entry, overlaps


class Tensors:
    """The parameters of `model` that are trained, each once, by the first of its names, and its buffers of floats.

    Frozen parameters and buffers of whole numbers stay each rank's own. Of a model whose parameters are all cut over
    the ranks of a site (FSDP2 over a mesh of one dimension) this rank's shards are taken; their names say which they
    are. Raises InvalidArgument for a model of which no parameter is trained, for parameters of which some ranks hold
    the same part, and for those that are sparse, or on the device "meta".
    """

    def __init__(self, model: nn.Module) -> None:
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        if not trained:
            raise InvalidArgument("model", "no parameter that requires a gradient", "at least one")
        buffers = [(name, each) for name, each in model.named_buffers() if each.is_floating_point()]
        self.cut = any(isinstance(each, DTensor) for _, each in trained)
        """Whether this is one rank's part of the model."""
        for name, each in trained + buffers:
            _check_cut(name, each, self.cut and each.requires_grad)
            if each.layout is not torch.strided or each.device.type == "meta" or not each.is_floating_point():
                raise InvalidArgument(name, f"{each.dtype}, {each.layout}, on {each.device}", "dense floats")
        self._tensors = [each.detach() for _, each in trained + buffers]
        self.device = self._tensors[0].device
        self.entries: Sequence[Entry] = [
            Entry(
                name + _part_of(each), tuple(_local(each).shape), str(each.dtype).removeprefix("torch."),
                index >= len(trained),
            )
            for index, (name, each) in enumerate(trained + buffers)
        ]  # fmt: skip

    def read(self, low: int, out: Floats) -> None:
        """See `Values`."""
        told = torch.from_numpy(out)
        for index, mine, its in overlaps(self.entries, low, out.size):
            told[mine].copy_(_local(self._tensors[index]).reshape(-1)[its])

    def write(self, low: int, values: Floats) -> None:
        """See `Values`."""
        told = torch.from_numpy(values)
        for index, mine, its in overlaps(self.entries, low, values.size):
            tensor = _local(self._tensors[index])
            flat = tensor.reshape(-1)
            flat[its].copy_(told[mine])
            if flat.data_ptr() != tensor.data_ptr():  # of a strided tensor it is a copy
                tensor.copy_(flat.view(tensor.shape))

    def spans(self, low: int, size: int) -> list[tuple[slice, Floats]] | None:
        """See `Values`."""
        found = [(_local(self._tensors[index]), mine, its) for index, mine, its in overlaps(self.entries, low, size)]
        plain = (type(each) is torch.Tensor and each.is_cpu and each.is_contiguous() for each, _, _ in found)
        if not all(plain) or any(each.dtype != torch.float32 for each, _, _ in found):
            return None
        torch.autograd.graph.increment_version([each for each, _, _ in found])  # as copy_ does
        return [(mine, each.reshape(-1).numpy()[its]) for each, mine, its in found]


def _check_cut(name: str, tensor: torch.Tensor, cut: bool) -> None:
    """Raises InvalidArgument for a tensor of which several ranks of a site hold the same part, and would let it drift
    apart, as each of them is in rounds by itself."""
    if isinstance(tensor, DTensor):
        if len(tensor.placements) != 1 or not tensor.placements[0].is_shard() or not cut:
            said = f"placed {tensor.placements} over a mesh of {tensor.device_mesh.ndim} dimensions"
            raise InvalidArgument(name, said, "whole, or cut over a mesh of one dimension")
    elif cut:
        raise InvalidArgument(name, "whole on each rank", "cut over the ranks, as other parameters of the model are")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _part_of(tensor: torch.Tensor) -> str:
    """As " part 1 of 4" of a tensor that is cut."""
    if not isinstance(tensor, DTensor):
        return ""
    return f" part {tensor.device_mesh.get_local_rank()} of {tensor.device_mesh.size()}"
