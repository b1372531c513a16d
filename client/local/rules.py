# SPDX-License-Identifier: Apache-2.0
"""The outer step: what an average of how far the ranks came does to the outer model.

It has the same bits on all hosts, because each product and each sum is rounded to float32 by itself, on every CPU: the
extension is built such that none is contracted into one rounding (transport_c/build_engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ultima.base.checks import check_number
from ultima.local.round_kernels import Floats, Rows, Rule


@dataclass(frozen=True, slots=True)
class Nesterov:
    """SGD with Nesterov's momentum, as `torch.optim.SGD(lr, momentum, nesterov=True)` has it; DiLoCo's outer rule.

    lr: 0 to 10.
    momentum: 0 to 1; 0 is plain SGD. Raises InvalidArgument for others.
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_number(self.lr, "lr", 0.0, 10.0)
        check_number(self.momentum, "momentum", 0.0, 1.0)

    def step(self, theta: Floats, momentum: Floats, delta: Floats) -> None:
        """One outer step in place: momentum' = mu momentum + delta; theta' = theta - lr (delta + mu momentum').

        All are flat float32 arrays of one size; `delta` is the average of theta - (what a rank came to). It is kept.
        """
        Rows(delta, 0, delta.size, delta.size).step(theta, momentum, self.divided_by(1.0, theta.size))

    def divided_by(self, divisor: float, plain_from: int) -> Rule:
        """For deltas that are sums: of the weights `divisor`. plain_from: see `Rule`."""
        return Rule(divisor, self.lr, self.momentum, plain_from)

    def as_dict(self) -> dict[str, Any]:
        """Its settings, to be compared between ranks and saved."""
        return {"lr": float(self.lr), "momentum": float(self.momentum)}
