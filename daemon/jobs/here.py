# SPDX-License-Identifier: Apache-2.0
"""What a host knows of itself and of those around it, when it takes its turn in the agreement on epochs."""

from __future__ import annotations

from dataclasses import dataclass

from ultima.daemon.jobs.epoch import WISHES_NONE, Member


@dataclass(frozen=True, slots=True)
class Here:
    """What this host knows at the time of a turn."""

    sees: frozenset[Member]
    """The other hosts that are alive as far as it knows."""
    next_op: int
    margin: int = 0
    """Ops of the next 20 ms."""
    round_trip: float = 0.0
    """To the host that is farthest, in seconds."""
    opened: bool = True
    """It has opened an op."""
    leaving: bool = False
    wishes: tuple[int, ...] = WISHES_NONE
    change: tuple[tuple[str, int], ...] = ()
    """What somebody wants to become of options of the job."""
    short: bool = False
    """Ops wait as too few hosts are in: then one that flaps is taken in at once."""
    stride: int = 1
    """So many numbers an op may have: in coded jobs each step has many, and few of them are used."""
    patience: float = 0.0
    """Seconds in which hardly any word of the host that is farthest fails to come, though packets are lost."""
