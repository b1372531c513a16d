# SPDX-License-Identifier: Apache-2.0
"""`ultima.sparse.Feedback` for a gradient on an accelerator: the memory is there, and so is the choice. Only entries
cross to the host.

The arithmetic is that of `Feedback` to the bit, so that a checkpoint of one goes on in the other; a NaN remains a NaN,
with other bits where the device's arithmetic gives its own (CUDA: 0x7fffffff). In torch's own operations: they run on
whatever device the gradient is, the CPU among them, where the tests hold it against `Feedback`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ultima.sparse import Feedback
from ultima.sparse.sample import RUN, limit_of, sample_of
from ultima.sparse.select import count_of

_MAGNITUDE = 0x7FFFFFFF


class DeviceFeedback:
    """The memory of one float32 tensor of `size` elements on |device|. The settings are |rules|', a Feedback that is
    otherwise not used, of any size.
    """

    def __init__(self, size: int, device: torch.device, rules: Feedback) -> None:
        self._size, self._rules = size, rules
        self._kept = torch.zeros(size, dtype=torch.float32, device=device)
        self._velocity = torch.zeros_like(self._kept) if rules.momentum else None
        self._step = 0

    @property
    def size(self) -> int:
        """Elements of the gradient."""
        return self._size

    @property
    def step(self) -> int:
        """Calls of `select` so far."""
        return self._step

    @property
    def residual(self) -> torch.Tensor:
        """What was not sent yet: the memory itself."""
        return self._kept

    def select(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Feedback.select`: indices (int64, ascending) and values (float32), on the device."""
        count = count_of(self._rules.ratio_at(self._step), self._size)
        look = sample_of(self._size, count, self._step) if self._rules.choose == "sampled" else None
        self._step += 1
        self._add(gradient)
        bits = self._kept.view(torch.int32) & _MAGNITUDE
        if look is None:
            indices = _exactly(bits, count)
        else:
            rows = bits[: look.runs * look.stride].view(look.runs, look.stride)[:, look.start : look.start + RUN]
            least = int(torch.topk(rows.reshape(-1), look.rank, sorted=False).values.min())
            indices = (bits > limit_of(least)).nonzero().view(-1)[: min(self._size, 2 * count)]
        values = self._kept[indices]
        self._kept[indices] = 0
        if self._velocity is not None:
            self._velocity[indices] = 0
        return indices, values

    def take_all(self, gradient: torch.Tensor, out: torch.Tensor) -> None:
        """As `Feedback.take_all`."""
        self._add(gradient)
        out.copy_(self._kept)
        self._kept.zero_()

    def put_back(self, indices: torch.Tensor, values: torch.Tensor) -> None:
        """As `Feedback.put_back`, without its checks."""
        self._kept.index_add_(0, indices, values)

    def state_dict(self) -> dict[str, Any]:
        """What `Feedback.state_dict` gives."""
        velocity = None if self._velocity is None else self._velocity.cpu().numpy().copy()
        told = {"residual": self._kept.cpu().numpy().copy(), "velocity": velocity}
        return {"version": 1, "size": self._size, "step": self._step, **told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `Feedback.load_state_dict`, which checks it."""
        checked = Feedback(self._size, momentum=self._rules.momentum)
        checked.load_state_dict(state)
        found = checked.state_dict()
        self._kept.copy_(torch.from_numpy(found["residual"]))
        if self._velocity is not None:
            self._velocity.copy_(torch.from_numpy(found["velocity"]))
        self._step = found["step"]

    def _add(self, gradient: torch.Tensor) -> None:
        if self._velocity is None:
            self._kept += gradient
        else:
            # The product is exact in float64: the sum is rounded to it once, as in the kernel.
            factor = float(np.float32(self._rules.momentum))
            self._velocity = (factor * self._velocity.double() + gradient.double()).float()
            self._kept += self._velocity


def _exactly(bits: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the |count| largest, of equals those with lower places."""
    if not count:
        return bits.new_empty(0, dtype=torch.int64)
    least = int(torch.topk(bits, count, sorted=False).values.min())
    above = bits > least
    ties = (bits == least).nonzero().view(-1)[: count - int(above.sum())]
    above[ties] = True
    return above.nonzero().view(-1)
