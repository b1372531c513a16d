# SPDX-License-Identifier: Apache-2.0
"""What the metrics show, as values: copied in the event loop, and made text of in another thread (metrics_text.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ultima.daemon.observe.stats import ViewFacts, WireBytes

STRAGGLER_OPS = 256  # newest ops of a job, of which the straggler's score is a share


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job that lives here."""

    name: str
    world_size: int
    hosts: Sequence[str]
    """Addresses by index."""
    ops: Mapping[str, int]
    """By status."""
    counts: Sequence[int]
    """Ops by duration: at most each bound of `BOUNDS_S` and above the one before; the last are above all."""
    sum_s: float
    missing: Mapping[str, int]
    """Bytes by reason."""
    bucket_bytes: int
    wires: Mapping[str, WireBytes]
    """Of quantised ops, by the form in which they travelled."""
    sent_bytes: int
    received_bytes: int
    contributors: int
    """Hosts that were in every byte of the newest op."""
    deadline_s: float
    """0: not known."""
    newest: bytes
    """The newest ops as OpRing.copy gives them."""
    rounds: Mapping[str, int] = field(default_factory=dict)
    """Of local SGD, by outcome; none where no rank told of any."""
    rounds_s: float = 0.0
    """How long they took together."""
    computed_share: float = 1.0
    view: ViewFacts | None = None
    """Where hosts come and go."""


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """One other host, by what its jobs here say of it."""

    up: bool
    rtt_s: float
    """0: not known."""
    quarantined: bool = False
    """In one of its jobs no path to it is made, because its packets broke the protocol."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is rendered, as it was at one moment."""

    version: str
    wire_version: int
    simd: str
    start_s: float
    """Of the daemon, since 1970."""
    healthy: bool
    oldest_op_s: float
    cpu_s: float
    receive_asked: int
    receive_granted: int
    on_disk: bool
    history_errors: int
    history_bytes: int
    repaired_bytes: int
    lanes: Sequence[Mapping[str, int]]
    """Counters by the engine's names."""
    insecure: bool = False
    """Peers are not authenticated."""
    relay: Mapping[str, int] = field(default_factory=dict)
    """Counters of its relay; none before it is needed."""
    certificate_warning: bool = False
    """The status has something to say of certificates (Trust.warning)."""
    not_after_s: Mapping[str, int] = field(default_factory=dict)
    """When "certificate" and "authority" become void, since 1970."""
    jobs: Sequence[JobFacts] = ()
    peers: Mapping[str, PeerFacts] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the address of the peer."""
    blamed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Ops by address and kind of trouble."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """By the address of the peer."""
    events: Mapping[str, int] = field(default_factory=dict)
    """Since the daemon's start, by kind."""
