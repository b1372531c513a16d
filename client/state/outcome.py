# SPDX-License-Identifier: Apache-2.0
"""What came of giving or taking state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StateReport:
    """Of `ElasticJob.sync_state` and `ElasticJob.share`."""

    revision: int
    """Of the state that the arrays hold now, as the rank that it comes from called it."""
    op_seq: int
    """The op that comes next on all that took part."""
    root: str
    """Digest of names, types, shapes and bytes, in hex: the same on all that took part."""
    nbytes: int
    """Size of the state."""
    sources: Mapping[int, int] = field(default_factory=dict)
    """Bytes that were fetched, by the rank that they came from. None where the arrays held that state already."""
    parts: int = 0
    """Of 512 KiB, that were fetched and held what their digest says."""
    again: int = 0
    """Parts that had to be fetched from another rank: the first one vanished, or sent something else."""
    false: tuple[int, ...] = ()
    """Ranks that sent something else than their digests say."""
    differing: tuple[int, ...] = ()
    """Ranks that called `share` with another state, as replicas had drifted apart; they have this one now."""
    elapsed_s: float = 0.0
    """How long the call took, in seconds."""
