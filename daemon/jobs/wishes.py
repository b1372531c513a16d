# SPDX-License-Identifier: Apache-2.0
"""What other hosts want of a rank here that gives state or results: a few pieces are asked of it at once.

A rank is asked in the turns that it takes (state_desk.py, follow_desk.py), and answers in a later one. So that it is
not a turn for each piece, it is asked for some before another host has taken the first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

from ultima.daemon.base.errors import Unavailable
from ultima.v1 import types_pb2

PART_BYTES = 512 << 10
PARTS_MAX = 256  # that one call asks for
LIST_PIECES_MAX = 128
AHEAD = 4
SILENT_SECONDS = 10.0  # without a turn, after which a rank says nothing any more


@dataclass(eq=False)
class Wish:
    """One piece that a rank is asked for."""

    number: int
    part: int
    answer: asyncio.Future[bytes]
    kind: types_pb2.StateKind.ValueType = types_pb2.STATE_KIND_ROOT
    op_seq: int = 0


async def granted(
    ask: Callable[[int], Wish], parts: Iterable[int], ends_short: bool
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Pieces in this order; those that are empty are left out.

    ask: begins to ask the rank for one. ends_short: one that is not full is the last. Raises Unavailable if the rank
    says nothing, and what `ask` raises.
    """
    wanted, ahead = iter(parts), deque[Wish]()
    try:
        while True:
            for part in itertools.islice(wanted, AHEAD - len(ahead)):
                ahead.append(ask(part))
            if not ahead:
                return
            wish = ahead.popleft()
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    data = await wish.answer
            except TimeoutError:
                raise Unavailable("the rank that gives its state does not answer") from None
            if data:
                yield wish.part, data
            if ends_short and len(data) < PART_BYTES:
                return
    finally:
        for wish in ahead:
            wish.answer.cancel()
