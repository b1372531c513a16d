# SPDX-License-Identifier: Apache-2.0
"""What a rank says of a quantised allreduce: the forms in which its bucket travels, and how it is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from ultima.base.buffers import AnyArray
from ultima.base.words import WIRES


@dataclass(frozen=True, slots=True)
class QuantCall:
    """Of these `forms` alone must be the same on all ranks."""

    forms: int
    """Number of the form of contributions, and 16 times that of results, as `core/base/what.h` has them."""
    nearest: bool
    """Contributions are rounded to the nearest; else at random, as results always are."""
    residual: AnyArray | None = None
    """Memory of the arena: what rounding took from the contributions before, which are added to this one."""


class WireWords(TypedDict, total=False):
    """How the values of an allreduce travel: see `Job.allreduce`."""

    wire: str | None
    answer: str | None
    rounding: str | None
    feedback: Any


def forms_of(wire: str, answer: str) -> int:
    """The number for contributions that travel as `wire`, and results as `answer`."""
    return WIRES[wire] | WIRES[answer] << 4
