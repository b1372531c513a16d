# SPDX-License-Identifier: Apache-2.0
"""An optimizer around another one: to learning-rate schedulers and checkpoints it is that one."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ultima.base.errors import InvalidArgument
from ultima.torch.partial.finishing import Finishing
from ultima.torch.partial.rounds import Rounds, TakesPart


class WrappedOptimizer(Finishing, TakesPart, torch.optim.Optimizer):
    """What `EagerSGD` and `RNA` share."""

    # Optimizer.__init__ is not called: what it would set comes from the inner optimizer, by __getattr__.
    def __init__(self, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        self.inner = checked(optimizer)
        self._rounds = Rounds(
            [each for group in optimizer.param_groups for each in group["params"]],
            name=type(self).__name__.lower(),
            **options,
        )
        self.zero_grad()

    def finish(self) -> None:
        """To be called at the end of training: leaves the rounds and comes to all meetings of ranks that train on.
        Afterwards all ranks hold the same parameters, and this steps no more. As a context manager it does this at the
        end of the block.
        """
        self._rounds.finish()

    def close(self) -> None:
        """Leaves without a meeting. Idempotent."""
        self._rounds.close()

    # An optimizer, to those who look

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gradients of 0. They stay where the daemon reads them, with set_to_none as well."""
        if self._rounds.partial is None:
            self.inner.zero_grad(set_to_none)
        else:
            self._rounds.flat.zero()

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives the |state_dict| to the inner optimizer."""
        self.inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refuses every |param_group|: the vector has the size of what it was made for."""
        raise InvalidArgument("param_group", sorted(param_group), "none: add it before the optimizer is wrapped")

    def __getstate__(self) -> NoReturn:
        raise InvalidArgument("optimizer", type(self).__name__, "its state_dict(): jobs cannot be pickled")


def checked(optimizer: object) -> torch.optim.Optimizer:
    """|optimizer|, if it can be wrapped. Raises InvalidArgument."""
    allowed = "an optimizer of torch's that computes one gradient a step, not wrapped yet"
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, WrappedOptimizer | torch.optim.LBFGS):
        raise InvalidArgument("optimizer", type(optimizer).__name__, allowed)
    return optimizer


def loss_by(closure: Any) -> Any:
    """What a step's closure returns; None for none."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
