# SPDX-License-Identifier: Apache-2.0
"""`Feedback`: what rounding took from a gradient, so that the next step sends it (error feedback)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ultima.base.checks import check_whole_between
from ultima.base.errors import InvalidArgument
from ultima.quant.coding import Floats

_STATE_VERSION = 1
_SIZE_MOST = 2**40


class Feedback:
    """The residual of one tensor on one rank, float32, zeros at first. A step sends the gradient and the residual, and
    leaves in the residual what rounding took. Until the step's receipt is there it belongs to the engine.

    size: elements; or the array itself, of one dimension: one of `job.empty(size)` need not be copied in each step.

    Raises InvalidArgument.
    """

    def __init__(self, size: int | Floats) -> None:
        if isinstance(size, np.ndarray):
            if size.dtype != np.float32 or size.ndim != 1 or not size.flags.c_contiguous or not size.flags.writeable:
                said = f"{size.dtype} of shape {size.shape}"
                raise InvalidArgument("size", said, "a number, or a contiguous float32 array of one dimension")
            self._array: Floats = size
            self.reset()
        else:
            check_whole_between(size, "size", 0, _SIZE_MOST)
            self._array = np.zeros(size, np.float32)

    @property
    def array(self) -> Floats:
        """The residual itself."""
        return self._array

    @property
    def __array_interface__(self) -> Any:
        """Numpy's protocol: `Job.allreduce(feedback=...)` takes the object itself."""
        return self._array.__array_interface__

    @property
    def size(self) -> int:
        """Its elements."""
        return self._array.size

    @property
    def error(self) -> float:
        """Its root mean square: what an element still lacks, in units of the gradient."""
        return float(np.sqrt(np.mean(np.square(self._array, dtype=np.float64)))) if self.size else 0.0

    def reset(self) -> None:
        """Forgets it: for another model, or after a step that ended in NaN."""
        self._array[:] = 0

    def state_dict(self) -> dict[str, Any]:
        """A copy, to be saved with the model on each rank."""
        return {"version": _STATE_VERSION, "residual": self._array.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave. Raises InvalidArgument naming the entry, and then changes nothing."""
        if state.get("version") != _STATE_VERSION:
            raise InvalidArgument("version", state.get("version"), str(_STATE_VERSION))
        residual = state.get("residual")
        if not isinstance(residual, np.ndarray) or residual.dtype != np.float32 or residual.shape != (self.size,):
            said = f"{residual.dtype} of shape {residual.shape}" if isinstance(residual, np.ndarray) else repr(residual)
            raise InvalidArgument("residual", said, f"float32 of shape ({self.size},)")
        if not np.isfinite(residual).all():
            raise InvalidArgument("residual", "elements that are not finite", "finite ones")
        self._array[:] = residual
