# SPDX-License-Identifier: Apache-2.0
"""What a daemon knows of the agreement on epochs in one job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ultima.daemon.base.ranges import OP_SEQ_MAX
from ultima.daemon.hosts.host import Host, Place
from ultima.daemon.jobs.decree import Seat
from ultima.daemon.jobs.epoch import Epoch, Member
from ultima.daemon.jobs.heirs import Heirs
from ultima.daemon.jobs.job import Job


@dataclass(eq=False)
class Room:
    """What is known of the agreement of one job."""

    job: Job
    seat: Seat
    epoch: Epoch | None
    first_op: int
    """The op that it opened next when it began."""
    opened: bool
    hold: tuple[int, float] | None = None
    leaving: bool = False
    leaves_from: int = OP_SEQ_MAX
    """The first op for which a rank here that has left had nothing."""
    waits_from: int | None = None
    """The op from which ops are held back as too few are in the job; None if they are not."""
    changes: list[dict[str, int]] = field(default_factory=list)
    """What callers want to become of options; where two contradict each other, first the later one's."""
    told: int = 0
    timer: asyncio.TimerHandle | None = None
    looked: float = 0.0
    sample: tuple[float, int] = field(default=(0.0, 0))
    """When the engine was last asked for the next op, and which that was."""
    ops_per_second: float = 0.0
    damped: frozenset[Member] = frozenset()
    """Of which an event has told."""
    places: dict[int, Place] = field(default_factory=dict)
    """Where the host of each slot is, or was last."""
    hosts: dict[Member, Host] = field(default_factory=dict)
    """Of each member that there was a path to."""
    heirs: Heirs | None = None
    """Asks after the hosts that this one's branch left, while it waits for them."""
