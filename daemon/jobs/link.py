# SPDX-License-Identifier: Apache-2.0
"""What is known of the path between this host and one other of a job. links.py changes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from ultima.daemon.base.waiting import Backoff
from ultima.daemon.engine.seal import Seal
from ultima.daemon.hosts.host import Host, State
from ultima.daemon.jobs.renewal import Renewal


class Route(NamedTuple):
    """A way to a host that is not straight to its address."""

    relay: int
    """Index of the host that forwards, or that told both sides where they are."""
    opened: bool
    """Both sides opened the way, and nobody forwards."""


@dataclass(eq=False)
class Link:
    """The path to one peer host."""

    host: Host
    state: State = State.CONNECTING
    rx_cids: tuple[int, ...] = ()
    """Our choice for each pair of ports, on its packets; none while the path is not up."""
    tx_cids: tuple[int, ...] = ()
    """Its choice, on ours."""
    rx_seal: Seal | None = None
    """How its packets are sealed, while an answer that was lost may have to be given again."""
    offer: int = 0
    """Number of our last offer, if it is ours to offer; of the last one that we took in its present life, if not."""
    instead: Host | None = None
    """Another one that may have its place, and is called if it is not there."""
    why: str = "has not called yet"
    """Why the path is not up, for people."""
    leaving: bool = False
    """Its trainers have all left in good order: it will not take part in further ops, and needs nothing any more."""
    left: int = 0
    """The life of a host that has left in good order, whatever its ranks do: it gets no path any more."""
    follows: bool = False
    """Its rank is in no op yet, and takes state and results of another one."""
    back_within_s: float = 0.0
    """Above 0: its daemon was told to stop, and reliable ops wait for the host for so long once it is gone."""
    giving_up: asyncio.TimerHandle | None = None
    """It is gone, and this is when it is waited for no longer."""
    route: Route | None = None
    """How packets to it go, if not straight to its address (routes.py)."""
    oldest_op_seq: int = 0
    """The oldest op that had not ended there when it last answered."""
    caller: asyncio.Task[None] | None = None
    doubter: asyncio.Task[None] | None = None
    violations: int = 0
    """How often its packets, or what somebody sent in its name, broke the protocol."""
    quarantined_until: float = 0.0
    """No path is made before, by the loop's clock."""
    renewal: Renewal | None = None
    """Draws secrets for its packets while the path is up, if they are sealed."""
    renewer: asyncio.Task[None] | None = None
    renewed_by: bytes = b""
    """Digest of the fresh secret that it gave last, for packets to it, and how many it gave."""
    renewed: int = 0
    mending: Backoff = field(default_factory=Backoff)
    came_up: asyncio.Event = field(default_factory=asyncio.Event)

    def up(self) -> bool:
        """Packets may go both ways."""
        return self.state is State.UP

    def takes_part(self) -> bool:
        """There is a path to it; or it was told to stop, and ops wait for it to come back."""
        return self.up() or (self.state is State.ABSENT and self.giving_up is not None)

    def calls(self) -> bool:
        """Someone calls this host."""
        return self.caller is not None and not self.caller.done()

    def stop_calling(self) -> None:
        """Ends the task that calls this host, if there is one."""
        if self.caller is not None:
            self.caller.cancel()
            self.caller = None

    def quarantine(self, now: float) -> float:
        """Seconds for which it still has no path; 0: it may have one."""
        return max(self.quarantined_until - now, 0.0)

    def stop_waiting(self) -> None:
        """It is back, or was never to go."""
        if self.giving_up is not None:
            self.giving_up.cancel()
        self.back_within_s, self.giving_up = 0.0, None

    def stop_renewing(self) -> None:
        """The path is no more, and with it its secrets."""
        if self.renewer is not None:
            self.renewer.cancel()
        self.renewal = self.renewer = None
        self.renewed_by, self.renewed = b"", 0

    def stop_doubting(self) -> None:
        """Ends the task that asks this host about an offer, if there is one."""
        if self.doubter is not None:
            self.doubter.cancel()
            self.doubter = None
