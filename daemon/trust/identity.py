# SPDX-License-Identifier: Apache-2.0
"""What a daemon shows its peers, and what it demands of them: a certificate, its key, and authorities.

They come from three files (files.py), or are made from a job's secret (job_secret.py).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

WARN_SHARE = 4  # a warning is given when this part of a life is left, a quarter


@dataclass(frozen=True, slots=True)
class Life:
    """How long something is valid; both ends in seconds since 1970 UTC."""

    begin: float
    end: float

    def ends_soon(self, now: float) -> bool:
        """Less than a quarter is left."""
        return self.end - now < (self.end - self.begin) / WARN_SHARE


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this daemon is. The texts are in PEM form."""

    cluster: str
    node: str
    certificate: bytes
    """With the certificates that lead to the authority, if there are any."""
    key: bytes
    authorities: bytes
    """All authorities whose certificates are believed."""
    life: Life
    authority_life: Life
    """Of the authority that this certificate leads to."""
    withdrawn: frozenset[str] = frozenset()
    """Nodes with which nobody is to talk, whatever certificates they show."""
    withdrawn_number: int = 0
    """Of that list; a later one has a higher number."""


def shown_time(seconds: float) -> str:
    """An instant for people."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
