# SPDX-License-Identifier: Apache-2.0
"""What a rank gives to a sparse allreduce, as bytes in shared memory, and what becomes of it without an engine.

A contribution is `entries` ascending indices (uint32), then `entries * group` values (float32). An index names `group`
elements of the tensor. `form` says how values travel; each is rounded by itself, so `rounded` tells to the bit what a
rank has given. The engine does the same (`transport_c/kernels/block.h`); tests hold the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ultima.base.words import FORMS

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.uint32]

SCALE_EXPONENT_MIN = -117
"""Of float8's scale: then even its least step is a normal float32."""


@dataclass(frozen=True, slots=True)
class SparseCall:
    """The numbers of a sparse allreduce; all but `entries` are the same on all ranks."""

    entries: int
    group: int
    form: int
    hint: int
    down: int = 0
    """Of answers: 0, as `form` says, or one of `words.DOWNS`."""

    @property
    def nbytes(self) -> int:
        """Of the contribution."""
        return 4 * self.entries * (1 + self.group)

    def entries_of(self, given: npt.NDArray[np.uint8]) -> tuple[Indices, Floats]:
        """Views of the indices and the values of a contribution."""
        split = 4 * self.entries
        return given[:split].view(np.uint32), given[split : self.nbytes].view(np.float32)

    def scatter(self, given: npt.NDArray[np.uint8], out: Floats) -> None:
        """Writes the contribution into `out`, flat, as the owners of its parts see it; 0 where there is no entry."""
        indices, values = self.entries_of(given)
        out[:] = 0
        name = next(name for name, code in FORMS.items() if code == self.form)
        out.reshape(-1, self.group)[indices] = rounded(values, name).reshape(-1, self.group)


def rounded(values: Floats, form: str) -> Floats:
    """`values` as they arrive when they travel as `form` ("float32", "float16", "bfloat16", "float8").

    All round to the nearest, ties to even. In float8 the values of one contribution share a scale, see `float8_scale`;
    what is infinite arrives as NaN there.
    """
    with np.errstate(all="ignore"):
        if form == "float16":
            return values.astype(np.float16).astype(np.float32)
        if form == "bfloat16":
            bits = values.view(np.uint32)
            up = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
            return np.where(np.isnan(values), np.float32(np.nan), up)
        if form == "float8":
            return _rounded_e4m3(values)
    return values.astype(np.float32, copy=True)


def float8_scale(values: Floats) -> np.float32:
    """What float8 values are multiplied by on arrival: the least power of two, of at least 2^-117, at which 448, the
    largest float8 (e4m3 without infinities, OCP 8-bit floating point 1.0), stands for all finite `values` or more."""
    finite = np.abs(values[np.isfinite(values)])
    part, exponent = np.frexp(finite.max()) if finite.size else (0.0, 0)
    if not part:
        return np.float32(2.0**SCALE_EXPONENT_MIN)
    return np.float32(2.0 ** max(int(exponent) - 9 + bool(part > 0.875), SCALE_EXPONENT_MIN))  # 448 is 0.875 * 2^9


def _rounded_e4m3(values: Floats) -> Floats:
    scale = float(float8_scale(values))
    unit = values.astype(np.float64) / scale
    # Below 2^-6 steps are of 2^-9; above, of an eighth of the power of two.
    exponent = np.floor(np.log2(np.maximum(np.abs(unit), 2.0**-6)))
    step = 2.0 ** (exponent - 3)
    near = np.rint(unit / step) * step
    return np.where(np.isfinite(values), near * scale, np.nan).astype(np.float32)
