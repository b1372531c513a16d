# SPDX-License-Identifier: Apache-2.0
"""How far other daemons are, and how long to be patient with them. Pure functions, and a table of what was measured.

No constant is right for a rack and for two continents: what is patient enough for the one is a time-out in the middle
of a handshake for the other. So the round trip to each daemon is measured whenever a connection to it is made, and
smoothed as TCP does it (RFC 6298). That gives the *time-out*, after which a packet, or its answer, is taken for lost;
all patience is a number of those. Before anything is measured the time-out is TCP's, a second.

A packet that is lost is sent again after one time-out, and after two more if it is lost again. Patience covers that: of
100 packets on a way that loses 2 %, both ways, 4 exchanges miss their first try, and one of 15,000 the first three.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

INITIAL_SECONDS = 1.0  # RFC 6298, 2.1
LEAST_SECONDS = 0.2  # of Linux's TCP; a connection in a rack then outlasts the loss of its first packet, a second
LOST_TWICE = 3  # time-outs, until the third try of a packet
SLOW_MAX = 3  # samples in a row above the time-out, before it is the way that has become longer
HANDSHAKES = 3  # exchanges until a connection stands: of TCP, of TLS, and of the settings of HTTP/2
PLACES_MAX = 1024


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """To one daemon, in seconds. Without a sample nothing is known."""

    mean: float = 0.0
    deviation: float = 0.0
    late: int = 0
    """Connections in a row, since the last sample, that did not come about in time."""
    slow: int = 0
    """Samples in a row that were left out, as a packet may have been lost meanwhile."""

    @property
    def measured(self) -> bool:
        """Whether there was a sample."""
        return self.mean > 0

    @property
    def most(self) -> float:
        """What hardly any exchange exceeds in which nothing is lost; 0 if nothing was measured."""
        return self.mean + 4 * self.deviation

    @property
    def timeout(self) -> float:
        """After which a packet is taken for lost. It doubles with each connection that did not come about in time, as
        the way may be longer than it was, but not beyond what would hold for an unknown one."""
        if not self.measured:
            return INITIAL_SECONDS
        seconds = self._usual
        return min(seconds * (1 << min(self.late, 10)), max(seconds, INITIAL_SECONDS))

    @property
    def _usual(self) -> float:
        """The time-out while connections come about in time."""
        return max(LEAST_SECONDS, self.most)

    def then(self, sample: float) -> RoundTrip:
        """With one more sample. One above the time-out says how long a packet was lost, as where the network was cut
        meanwhile, and not how far it is (Karn's rule, RFC 6298, section 3), unless it is so again and again."""
        if not self.measured:
            return RoundTrip(sample, sample / 2)
        if sample > self._usual and self.slow < SLOW_MAX:
            return replace(self, late=0, slow=self.slow + 1)
        deviation = 0.75 * self.deviation + 0.25 * abs(self.mean - sample)
        return RoundTrip(0.875 * self.mean + 0.125 * sample, deviation)


def exchange(trip: RoundTrip) -> float:
    """Seconds of patience with a call that is answered at once, on a connection that stands."""
    return (1 + LOST_TWICE) * trip.timeout


def connection(trip: RoundTrip) -> float:
    """Seconds of patience until a connection stands; one of its exchanges may have been tried three times."""
    return (HANDSHAKES + LOST_TWICE) * trip.timeout


class Distances:
    """What was measured, by address and port."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], RoundTrip] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def to(self, address: str, port: int) -> RoundTrip:
        """The round trip to a daemon."""
        return self._known.get((address, port), RoundTrip())

    def stands(self, address: str, port: int, seconds: float, exchanges: int) -> None:
        """A connection came about in that time, after so many exchanges."""
        self._keep((address, port), self.to(address, port).then(max(seconds / exchanges, 1e-6)))

    def late(self, address: str, port: int) -> None:
        """A connection did not come about in time."""
        trip = self.to(address, port)
        if trip.measured:
            self._keep((address, port), replace(trip, late=trip.late + 1))

    def _keep(self, where: tuple[str, int], trip: RoundTrip) -> None:
        self._known[where] = trip
        self._known.move_to_end(where)
        while len(self._known) > PLACES_MAX:
            self._known.popitem(last=False)
