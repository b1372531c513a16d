# SPDX-License-Identifier: Apache-2.0
"""The state that all ranks share: what `Outer.state_dict` saves of it, and its digest."""

from __future__ import annotations

from typing import Any

import numpy as np

from ultima.base.errors import InvalidArgument
from ultima.base.native import ffi, lib
from ultima.local.round_kernels import Floats
from ultima.local.values import Layout

STATE_VERSION = 1


def check_state(state: dict[str, Any], layout: Layout) -> None:
    """Raises InvalidArgument, which names the entry, for what is not the state of a model with this layout."""
    if state.get("version") != STATE_VERSION:
        raise InvalidArgument("version", state.get("version"), str(STATE_VERSION))
    if state["layout"] != layout.text():
        raise InvalidArgument("layout", "that of other tensors or settings", "that of this model")
    for name in ("theta", "momentum"):
        found = np.asarray(state[name])
        if found.shape != (layout.count,) or found.dtype != np.float32 or not np.isfinite(found).all():
            said = f"{found.dtype} of shape {found.shape}"
            raise InvalidArgument(name, said, f"finite float32 of shape ({layout.count},)")


class Digest:
    """32 bits that depend on all that was added, part by part, whatever the parts are: CRC32C (RFC 3720, B.4) of two
    such sums. It finds what differs by a fault, not a forger."""

    def __init__(self) -> None:
        self._theta = self._momentum = 0

    def add(self, theta: Floats, momentum: Floats) -> None:
        """The next elements of both."""
        self._theta = lib.ut_crc32c(self._theta, ffi.from_buffer(theta), theta.nbytes)
        self._momentum = lib.ut_crc32c(self._momentum, ffi.from_buffer(momentum), momentum.nbytes)

    @property
    def value(self) -> int:
        """Of all so far."""
        return lib.ut_crc32c(self._theta, self._momentum.to_bytes(4, "little"), 4)


def digest_of(theta: Floats, momentum: Floats) -> int:
    """Of a whole state."""
    digest = Digest()
    digest.add(theta, momentum)
    return digest.value
