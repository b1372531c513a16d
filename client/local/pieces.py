# SPDX-License-Identifier: Apache-2.0
"""The state of a rank, piece by piece, as it is passed on in ops or comes in them (turns.py)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ultima.local.round_kernels import Floats
from ultima.local.turns import THETA, Piece
from ultima.local.values import Layout


class Pieces:
    """Of the flat outer model and its momentum, which are written in place."""

    def __init__(self, layout: Layout, theta: Floats, momentum: Floats) -> None:
        self._layout, self._theta, self._momentum = layout, theta, momentum
        self._part = np.zeros(int(layout.longest), np.float32)
        self._came: dict[tuple[int, int], Floats] = {}

    def to_give(self, piece: Piece) -> Floats:
        """What the passes before left of it."""
        low, high = self._layout.bounds(piece.fragment)
        whole = (self._theta if piece.part == THETA else self._momentum)[low:high]
        return np.asarray(whole - self._part[: high - low]) if piece.number else whole

    def take(self, piece: Piece, came: Floats) -> None:
        """All take what came of it, those that had it, too, so that all have the same bits."""
        part = self._part[: came.size]
        np.add(part if piece.number else np.float32(0), came, out=part)
        if piece.last:
            self._came[piece.fragment, piece.part] = part.copy()

    def put(self) -> Iterator[tuple[int, Floats, Floats]]:
        """What has come becomes the state. Of each fragment of the outer model: its first element, and what it was
        before and is after."""
        for (fragment, which), values in self._came.items():
            low, high = self._layout.bounds(fragment)
            before = self._theta[low:high].copy()
            (self._theta if which == THETA else self._momentum)[low:high] = values
            if which == THETA:
                yield low, before, values
        self._came.clear()
