# SPDX-License-Identifier: Apache-2.0
"""How the packets of a job are sealed: what two hosts tell each other of it when they exchange connection ids.

The host that receives packets draws a secret for them and chooses the cipher, and tells the other one over the
connection on which both have authenticated each other. All keys follow from the secret in the engine
(transport_c/PROTOCOL.md, Sealed packets).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from ultima.daemon.base.errors import FailedPrecondition
from ultima.v1 import types_pb2

SUITES = ("aes-128-gcm", "aes-256-gcm", "chacha20-poly1305")
"""Names of enum ut_suite, from number 1 on."""
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Seal:
    """How the packets of one direction of a path are sealed."""

    suite: str
    secret: bytes = field(repr=False)
    job: str
    generation: int
    lane: int = 0

    def to_proto(self) -> types_pb2.SealOffer:
        """For the host that sends the packets."""
        return types_pb2.SealOffer(suite=self.suite.encode(), secret=self.secret)


class Sealing:
    """What this host does in one life of a job."""

    def __init__(
        self,
        suite: str,
        job: str,
        generation: int,
        draw: Callable[[int], bytes] = secrets.token_bytes,
        seconds: float = 3600.0,
    ) -> None:
        """`suite` is the cipher of what this host receives; `draw` makes so many random bytes.

        `seconds`: so often it gives each path a fresh secret.
        """
        self.seconds = seconds
        self._suite, self._job, self._generation, self._draw = suite, job, generation, draw

    def draw(self) -> Seal:
        """For packets to this host, which nobody has sealed so before."""
        return Seal(self._suite, self._draw(SECRET_BYTES), self._job, self._generation)

    def taken(self, offer: types_pb2.SealOffer, host: str) -> Seal:
        """For packets to `host`, which offers this. Raises FailedPrecondition."""
        suite = offer.suite.decode(errors="replace")
        if suite not in SUITES:
            raise FailedPrecondition(
                f"job {self._job!r}: seal.suite = {suite[:40]!r} of {host}: allowed: {', '.join(SUITES)}"
            )
        if len(offer.secret) != SECRET_BYTES:
            raise FailedPrecondition(
                f"job {self._job!r}: seal.secret of {host} has {len(offer.secret)} bytes: allowed: {SECRET_BYTES}"
            )
        return Seal(suite, offer.secret, self._job, self._generation)


def taken(sealing: Sealing | None, offer: types_pb2.SealOffer | None, host: str, job: str) -> Seal | None:
    """What both do; None if neither seals. Raises FailedPrecondition if only one of the two does."""
    if (sealing is None) is not (offer is None):
        one, other = ("this host", host) if sealing is not None else (host, "this host")
        raise FailedPrecondition(
            f"job {job!r}: {one} seals its packets and {other} does not: start both with certificates or a job "
            "secret, or both with --insecure"
        )
    return sealing.taken(offer, host) if sealing is not None and offer is not None else None
