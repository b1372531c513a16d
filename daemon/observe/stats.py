# SPDX-License-Identifier: Apache-2.0
"""What became of the ops of one job, from the engine's events."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ultima.daemon.engine.engine import Event, Status
from ultima.daemon.engine.events import wire_words

RECENT_OPS = 1024
VIEW_REASONS = ("came", "left", "gone")
"""What hosts did when a view changed."""
ENDS = (Status.COMPLETE, Status.PARTIAL, Status.INSUFFICIENT, Status.FAILED)
"""What an op can end with; the others are answers to calls of partial jobs."""


class WireBytes(NamedTuple):
    """What the ops of one form of few bits have moved on this host."""

    sent: int = 0
    """Bytes of payload, repairs included."""
    received: int = 0
    values: int = 0
    """Bytes of arrays that were received as that payload: dense ops would have received as many."""


@dataclass(frozen=True, slots=True)
class ViewFacts:
    """Who is in a job whose hosts come and go, and what has moved between its hosts beside ops."""

    number: int
    members: int
    least: int
    changes: Mapping[str, int]
    """By VIEW_REASONS."""
    state_bytes: Mapping[str, int]
    """Of state, "sent" and "received"."""


class ViewStats:
    """Counts since the job began here."""

    def __init__(self) -> None:
        self.changes = dict.fromkeys(VIEW_REASONS, 0)
        self.state_bytes = dict.fromkeys(("sent", "received"), 0)

    def changed(self, came: int, left: int, gone: int) -> None:
        """Another view holds: how many hosts came, left in good order, or are gone. It counts by each of these once."""
        for name, hosts in zip(VIEW_REASONS, (came, left, gone), strict=True):
            self.changes[name] += hosts > 0


class OpStats:
    """Counts since the job began here, and how long its recent ops took."""

    def __init__(self) -> None:
        self.count = dict.fromkeys(ENDS, 0)
        self.missing_bytes = 0
        self.diverged = 0
        self.last_diverged = -1
        self.by_wire: dict[str, WireBytes] = {}
        """By the words of `wire` and `answer`."""
        self._elapsed_ns: deque[int] = deque(maxlen=RECENT_OPS)

    def op_done(self, event: Event) -> None:
        """Takes an OP_DONE event: a is the status, b the time it took in ns, c the bytes that are missing."""
        if event.a not in ENDS:
            return
        self.count[Status(event.a)] += 1
        self.missing_bytes += event.c
        self._elapsed_ns.append(event.b)

    def op_diverged(self, event: Event) -> None:
        """Takes a DIVERGED event: some other host ended that op with another result."""
        self.diverged += 1
        self.last_diverged = max(self.last_diverged, event.op_seq)

    def quantised(self, event: Event) -> None:
        """Takes a QUANT event: a are the forms, b and c bytes of payload, d those of the values that they stand for."""
        wire = wire_words(event.a)
        sent, received, values = self.by_wire.get(wire, WireBytes())
        self.by_wire[wire] = WireBytes(sent + event.b, received + event.c, values + event.d)

    def percentile_us(self, percent: float) -> int:
        """The least time that `percent` of the recent ops did not exceed, in us; 0 while there is none."""
        if not self._elapsed_ns:
            return 0
        ordered = sorted(self._elapsed_ns)
        rank = max(1, -(-len(ordered) * percent // 100))
        return ordered[int(rank) - 1] // 1000


class ProbeStats:
    """What became of the probes of one job that this daemon sent as its controller: sent = ready + expired + gone."""

    def __init__(self) -> None:
        self.sent = 0
        """Ranks that were asked; those on the own host too, though that takes no call."""
        self.ready = 0
        self.expired = 0
        """Of an op that had started by then, or taken back unanswered."""
        self.gone = 0
        """The rank is not alive, or its host could not be asked."""
        self.denied = 0
        """Ranks that were said to be ready, but whose host would not start the op."""
        self.redrawn = 0
        """Ranks that were drawn beyond the first q of an op."""
        self.timed_out = 0
        """Draws of which nobody was ready in time."""
        self.decided = 0
        """Ops that this controller found the initiator of."""
        self._took_ns: deque[int] = deque(maxlen=RECENT_OPS)

    def decide(self, took_ns: int) -> None:
        """An op was started, `took_ns` after its turn had come."""
        self.decided += 1
        self._took_ns.append(took_ns)

    @property
    def decision_p50_us(self) -> int:
        """The median time of the recent decisions, waiting for the ranks included; 0 while there is none."""
        return int(statistics.median(self._took_ns)) // 1000 if self._took_ns else 0

    def values(self) -> dict[str, int]:
        """By the names of ProbeStatus in partial.proto."""
        names = ("sent", "ready", "expired", "gone", "denied", "redrawn", "timed_out", "decided")
        counts = {f"{name}_count": int(getattr(self, name)) for name in names}
        return counts | {"decision_p50_us": self.decision_p50_us}
