# SPDX-License-Identifier: Apache-2.0
"""The outer step: what an average of how far the ranks came does to the outer model.

It has the same bits on all hosts: numpy multiplies or adds float32 arrays one operation at a time and rounds after
each, on every CPU. A fused kernel may contract a product and a sum into one rounding on one CPU and not on the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ultima.base.checks import check_number

Floats = NDArray[np.float32]
_PIECE = 1 << 16  # elements for which the scratch memory stays in a core's cache


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
        lr, mu = np.float32(self.lr), np.float32(self.momentum)
        scratch = np.empty(min(_PIECE, theta.size), np.float32)
        for at in range(0, theta.size, _PIECE):
            piece = slice(at, at + _PIECE)
            moved = scratch[: theta[piece].size]
            np.multiply(momentum[piece], mu, out=momentum[piece])
            np.add(momentum[piece], delta[piece], out=momentum[piece])
            np.multiply(momentum[piece], mu, out=moved)
            np.add(moved, delta[piece], out=moved)
            np.multiply(moved, lr, out=moved)
            np.subtract(theta[piece], moved, out=theta[piece])

    def as_dict(self) -> dict[str, Any]:
        """Its settings, to be compared between ranks and saved."""
        return {"lr": float(self.lr), "momentum": float(self.momentum)}
