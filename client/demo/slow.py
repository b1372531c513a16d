# SPDX-License-Identifier: Apache-2.0
"""The rank that the demo is asked to slow down. Without torch: whoever starts the ranks reads it as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ultima.base.durations import duration_s
from ultima.base.errors import InvalidArgument


@dataclass(frozen=True)
class SlowRank:
    """A rank, and how long it sleeps in each step."""

    rank: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of "1:200ms". Raises InvalidArgument."""
        rank, colon, time = text.partition(":")
        if not colon or not rank.isascii() or not rank.isdigit():
            raise InvalidArgument("slow-rank", text, "RANK:TIME, as in 1:200ms")
        return cls(int(rank), duration_s(time, "slow-rank"))
