# SPDX-License-Identifier: Apache-2.0
"""Marks in a bucket that show whose gradients are in each part of a sum, so that receipts can be compared with it.

Sixteen elements, evenly spread, to which each rank adds 2 to the power of its number: exact in float32 up to 24 ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ultima import Receipt, Status

MARKS = 16
Floats = npt.NDArray[np.float32]


def marked(gradient: Floats, rank: int) -> Floats:
    """float32[MARKS, n]: a mark in front of each part of the gradient, which is filled up with zeros."""
    width = -(-len(gradient) // MARKS)
    bucket = np.zeros((MARKS, width + 1), np.float32)
    parts = np.zeros(MARKS * width, np.float32)
    parts[: len(gradient)] = gradient
    bucket[:, 0], bucket[:, 1:] = 2.0**rank, parts.reshape(MARKS, width)
    return bucket


def unmarked(bucket: Floats, size: int) -> Floats:
    """The sum of the gradients."""
    found: Floats = bucket[:, 1:].reshape(-1)[:size]
    return found


def who_is_in(bucket: Floats) -> list[set[int]]:
    """Of each mark the ranks that are in it; an impossible rank, -1, for what no set of ranks adds up to."""
    marks = [float(each) for each in bucket[:, 0]]
    return [
        {rank for rank in range(64) if int(mark) >> rank & 1} if mark >= 0 and mark == int(mark) else {-1}
        for mark in marks
    ]


def untruth(receipt: Receipt, sets: Iterable[set[int]], rank: int) -> str:
    """What a receipt says otherwise than the marks of its result; "" if it is true."""
    sets, members, whole = list(sets), set(receipt.members), set(receipt.contributors)
    said = f"op {receipt.op_seq} of view {receipt.view}: {receipt.status}, ranks {sorted(whole)} of {sorted(members)}"
    if receipt.bytes_expected != receipt.bytes_used + receipt.bytes_missing:
        return f"{said}: its bytes do not add up"
    if receipt.status is Status.COMPLETE:
        true = whole == members and all(each == members for each in sets)
    elif receipt.status is Status.INSUFFICIENT:
        true = all(each == {rank} for each in sets)
    else:
        true = all(whole <= each <= members for each in sets)
    return "" if true else f"{said}; in the sum {sorted(map(sorted, {frozenset(each) for each in sets}))}"
