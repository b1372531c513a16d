# SPDX-License-Identifier: Apache-2.0
"""How a tensor travels that is averaged in few bits an element, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ultima.quant.coding import Floats
from ultima.torch.backend.elements import Copies


@dataclass(frozen=True, slots=True)
class Wire:
    """The words of `ultima.Job.allreduce` for all of a tensor: see there."""

    wire: str
    answer: str | None = None
    feedback: Floats | None = None
    """As many elements as the tensor, in the job's memory."""

    def words(self, at: int, count: int) -> dict[str, Any]:
        """For |count| elements from |at| on."""
        part = None if self.feedback is None else self.feedback[at : at + count]
        return {"wire": self.wire, "answer": self.answer, "feedback": part}


def widened(run: torch.Tensor, copies: Copies) -> torch.Tensor:
    """|run| as float32, the one type that travels so; what came goes back before what |copies| names already."""
    if run.dtype is torch.float32:
        return run
    wide = run.float()
    copies.insert(0, (run, wide))
    return wide
