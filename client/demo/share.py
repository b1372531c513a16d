# SPDX-License-Identifier: Apache-2.0
"""The shares and rates that the demo is asked for. Without torch: whoever starts the ranks reads them, too."""

from __future__ import annotations

import re

from ultima.base.durations import duration_s
from ultima.base.errors import InvalidArgument

WAN_FORM = "ROUND TRIP,LOSS,RATE as in 50ms,1%,50Mbit"
WAN_LOSS_MAX, TRIP_MAX_S = 0.3, 1.0
RATE_MIN, RATE_MAX = 1_000_000, 10_000_000_000
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([MG])(?:bit(?:/s)?|bps)", re.IGNORECASE)


def share_of(text: str, field: str = "sparse", most: float = 1.0) -> float:
    """Of "1%" or "0.01": above 0, to |most|. Raises InvalidArgument."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= most:
        raise InvalidArgument(field, text, f"a share above 0, to {most:.0%}, as in 1% or 0.01")
    return share


def rate_of(text: str, field: str) -> float:
    """Bits per second of "200Mbit" or "1Gbit". Raises InvalidArgument."""
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) * {"M": 1e6, "G": 1e9}[found[2].upper()] if found else 0.0
    if not RATE_MIN <= rate <= RATE_MAX:
        raise InvalidArgument(field, text, "a rate from 1Mbit to 10Gbit, as in 200Mbit")
    return rate


def wan_of(text: str, field: str) -> tuple[float, float, float]:
    """Of "50ms,1%,50Mbit": seconds of the round trip, share that is lost, bits per second; 0% loses nothing. Raises
    InvalidArgument."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3:
        raise InvalidArgument(field, text, WAN_FORM)
    try:
        trip = duration_s(parts[0], field)
        loss = 0.0 if parts[1] in ("0", "0%") else share_of(parts[1], field, WAN_LOSS_MAX)
        rate = rate_of(parts[2], field)
    except InvalidArgument as error:
        raise InvalidArgument(field, text, f"{WAN_FORM}; {error.value!r} is not {error.allowed}") from None
    if trip > TRIP_MAX_S:
        raise InvalidArgument(field, text, f"{WAN_FORM}, with a round trip of {TRIP_MAX_S:g} s at most")
    return trip, loss, rate
