# SPDX-License-Identifier: Apache-2.0
"""The ranks that the demo slows down or lets leave. Without torch: whoever starts the ranks reads it as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from ultima.base.durations import duration_s
from ultima.base.errors import InvalidArgument


@dataclass(frozen=True)
class _Timed:
    rank: int
    seconds: float

    field: ClassVar[str]
    allowed: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of "1:200ms". Raises InvalidArgument."""
        rank, colon, time = text.partition(":")
        if not colon or not rank.isascii() or not rank.isdigit():
            raise InvalidArgument(cls.field, text, cls.allowed)
        return cls(int(rank), duration_s(time, cls.field))


class SlowRank(_Timed):
    """A rank, and how long it sleeps in each step."""

    field, allowed = "slow-rank", "RANK:TIME, as in 1:200ms"


class Leaver(_Timed):
    """A site, and how long after the first step it leaves."""

    field, allowed = "leave", "SITE:TIME, as in 2:10s"
