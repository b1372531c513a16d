# SPDX-License-Identifier: Apache-2.0
"""How far numbers may go that come from outside, and the sentence for one that goes too far."""

from __future__ import annotations

from ultima.daemon.base.errors import InvalidArgument

INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1
OP_SEQ_MAX = 2**44
"""One more than the last number of an op (UT_OP_SEQ_MAX in core/base/ut.h)."""
STEP_OPS = 2**12 - 3
"""Numbers of ops that a coded job has for each step (ext/coded/coded.h)."""
"""Of a job's options."""
WINDOW = 2**20
"""How far a number of another daemon's may lie ahead of what is known here: ops in two minutes of the quickest job."""
SHOWN_MAX = 128  # characters of a text from outside that an error repeats


def whole(name: str, value: int, low: int, high: int) -> int:
    """A number in its range. Raises InvalidArgument."""
    if not low <= value <= high:
        raise InvalidArgument(f"{name} = {value}: allowed: {low} to {high}")
    return value


def shown(text: str) -> str:
    """A text from outside as an error may repeat it."""
    return repr(text[:SHOWN_MAX])
