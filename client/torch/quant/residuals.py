# SPDX-License-Identifier: Apache-2.0
"""What rounding took from each parameter, by the parameter's name, where the daemon can reach it.

An op has one residual for all of its bucket. So residuals lie in the arena as the parameters do in the bucket, and move
only when buckets are cut anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ultima import Job
from ultima.base.errors import HandleError, InvalidArgument, ResourceExhausted
from ultima.quant.coding import Floats
from ultima.torch.hooks.names import ParameterNames
from ultima.torch.hooks.parts import Part

_STATE_VERSION = 1

_Layout = tuple[tuple[str, int, int], ...]
"""Name, start and size of each part of a bucket."""


class Residuals:
    """Of all parameters of one model on one rank."""

    def __init__(self) -> None:
        self.names = ParameterNames()
        self._held: dict[str, Floats] = {}
        self._buckets: dict[_Layout, Floats] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"names": self.names, "_held": {name: each.copy() for name, each in self._held.items()}, "_buckets": {}}

    def name_parameters(self, model: torch.nn.Module) -> None:
        """Keeps what there is by the names that parameters have in |model|. Raises InvalidArgument when something was
        kept by number already."""
        self.names.take(model, bool(self._held))

    def of(self, parts: Sequence[Part], job: Job) -> Floats | None:
        """The residual of a bucket, as memory of the job; None if that has no room. Raises InvalidArgument for a
        parameter of another size than it had."""
        layout = self._layout(parts)
        found = self._buckets.get(layout)
        if found is None or not job.holds(found.ctypes.data, found.nbytes):
            try:
                found = job.empty(sum(size for _, _, size in layout), "float32")
            except (ResourceExhausted, HandleError):
                return None
            found[:] = 0
            moved = {name for name, _, _ in layout}
            self._buckets = {
                other: kept for other, kept in self._buckets.items() if moved.isdisjoint(name for name, _, _ in other)
            }
            for name, start, size in layout:
                if name in self._held:
                    found[start : start + size] = self._held[name]
                self._held[name] = found[start : start + size]
            self._buckets[layout] = found
        return found

    def take_all(self, flat: torch.Tensor, parts: Sequence[Part]) -> None:
        """Adds what is kept to a bucket, flat float32 on any device, in place, and keeps nothing: for a step that is
        not rounded."""
        for name, start, size in self._layout(parts):
            kept = self._held.get(name)
            if kept is not None and kept.any():
                flat[start : start + size] += torch.from_numpy(kept).to(flat.device)
                kept[:] = 0

    def kept(self) -> dict[str, float]:
        """The sum of the magnitudes of what is kept, by name."""
        return {name: float(np.abs(each, dtype=np.float64).sum()) for name, each in self._held.items()}

    def state_dict(self) -> dict[str, Any]:
        """Names, numbers and tensors alone, so that `torch.load` takes it with weights_only."""
        residuals = {name: torch.from_numpy(each.copy()) for name, each in self._held.items()}
        return {"version": _STATE_VERSION, "named": self.names.given, "residuals": residuals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave. Raises InvalidArgument naming the entry, and then changes nothing."""
        if state.get("version") != _STATE_VERSION:
            raise InvalidArgument("version", state.get("version"), str(_STATE_VERSION))
        if self.names.given and not state.get("named"):
            raise InvalidArgument("named", state.get("named"), "a state with names, as this one has")
        residuals = state.get("residuals")
        if not isinstance(residuals, dict):
            raise InvalidArgument("residuals", type(residuals).__name__, "a tensor for each name")
        for name, each in residuals.items():
            if not isinstance(each, torch.Tensor) or each.dtype is not torch.float32 or each.dim() != 1:
                raise InvalidArgument(str(name), type(each).__name__, "a float32 tensor of one dimension")
            if not bool(torch.isfinite(each).all()):
                raise InvalidArgument(str(name), "elements that are not finite", "finite ones")
            if name in self._held and self._held[name].size != each.numel():
                raise InvalidArgument(
                    str(name), f"{each.numel()} elements", f"{self._held[name].size}, as in the model"
                )
        self.names.given = bool(state.get("named"))
        self._held = {name: each.cpu().numpy().copy() for name, each in residuals.items()}
        self._buckets = {}

    def _layout(self, parts: Sequence[Part]) -> _Layout:
        layout = tuple((self.names.of(part), part.start, part.size) for part in parts)
        for name, _, size in layout:
            if name in self._held and self._held[name].size != size:
                raise InvalidArgument(name, f"{size} elements", f"{self._held[name].size}, as it had")
        return layout
