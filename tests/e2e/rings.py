# SPDX-License-Identifier: Apache-2.0
"""The memory that a rank and its engines share, for tests that must know what one side has written."""

from __future__ import annotations

from typing import Any

from ultima import Job
from ultima.base.native import ffi
from ultima.session.rings import NativeRings


def rings_of(job: Job) -> list[tuple[Any, Any]]:
    """Of each lane the rings of submissions and of completions, as structs of C."""
    rings = job._connection.session._rings
    assert isinstance(rings, NativeRings)
    said, answers = rings._maps[::2], rings._maps[1::2]
    return [
        (ffi.cast("ut_submission_ring *", one.address), ffi.cast("ut_completion_ring *", other.address))
        for one, other in zip(said, answers, strict=True)
    ]
