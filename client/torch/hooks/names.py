# SPDX-License-Identifier: Apache-2.0
"""The names by which a state keeps something of each parameter: what a model says, or numbers.

A number is the parameter's place in the order in which they were first seen, the same in every run of the same model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ultima.base.errors import InvalidArgument
from ultima.torch.hooks.parts import Part


class ParameterNames:
    """Of one model. A copy that was pickled knows no parameter any more, but still whether they have names."""

    def __init__(self) -> None:
        self.given = False
        """Whether a model gave them."""
        self._names: Any = WeakIdKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.given = state["given"]
        self._names = WeakIdKeyDictionary()

    def take(self, model: torch.nn.Module, used: bool) -> None:
        """Takes the names that parameters have in |model|. Raises InvalidArgument when something is kept by number
        already, as |used| says."""
        if used and not self.given:
            raise InvalidArgument("model", type(model).__name__, "named before the first step, or before loading")
        self.given = True
        for name, parameter in model.named_parameters():
            self._names[parameter] = name.removeprefix("module.")

    def of(self, part: Part) -> str:
        """Of a parameter in a bucket. Raises InvalidArgument for one that the model does not have."""
        if isinstance(part.parameter, str):
            return part.parameter
        name: str | None = self._names.get(part.parameter)
        if name is None:
            if self.given:
                said = "one without a parameter of this bucket"
                raise InvalidArgument("model", said, "the one that trains: call name_parameters with it")
            name = self._names[part.parameter] = str(len(self._names))
        return name
