# SPDX-License-Identifier: Apache-2.0
"""ULTIMA_WIRE: quantised gradients for a script that nobody wants to touch.

Every model that is wrapped in DistributedDataParallel gets `quantize_hook` before its first forward pass, unless the
script has registered a hook of its own or the model's group is of another backend. So gradients alone are rounded:
losses, metrics and batch statistics, which go through the same `all_reduce`, travel as they are.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ultima.base.errors import InvalidArgument
from ultima.quant import FORMS
from ultima.torch.backend.group import group_if_ours
from ultima.torch.hooks.bucket_options import DENSE
from ultima.torch.quant.state import AUTO, QuantState, quantize_hook

VARIABLE = "ULTIMA_WIRE"
_ALLOWED = (*FORMS, AUTO, DENSE)


def hook_all(wire: str) -> None:
    """From now on each new DistributedDataParallel sends its gradients as `wire`. Raises InvalidArgument."""
    if wire not in _ALLOWED:
        raise InvalidArgument(VARIABLE, wire, ", ".join(_ALLOWED))
    if wire == DENSE:
        return
    inner: Any = DistributedDataParallel.__init__

    @wraps(inner)
    def made(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        inner(self, *args, **kwargs)
        pending: list[Any] = []

        def first(model: Any, _: Any) -> None:
            pending.pop().remove()
            hook(model, wire)

        pending.append(self.register_forward_pre_hook(first))

    DistributedDataParallel.__init__ = made  # type: ignore[method-assign]


def hook(model: Any, wire: str) -> None:
    """Has a DistributedDataParallel |model| send its gradients as |wire|, if nobody else says how they go."""
    if not model._comm_hooks and group_if_ours(model.process_group) is not None:
        # Without a budget ranks exchange nothing besides gradients, as under plain DDP.
        model.register_comm_hook(QuantState(wire, model.process_group, budget=None), quantize_hook)
