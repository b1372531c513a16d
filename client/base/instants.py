# SPDX-License-Identifier: Apache-2.0
"""Instants as people write them: "2h" ago, "03:12", "yesterday 03:12", "2026-11-22 03:12:05", in local time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from ultima.base.errors import InvalidArgument

SECOND_NS, MINUTE_NS, DAY_NS = 10**9, 60 * 10**9, 86_400 * 10**9
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_CLOCK = re.compile(r"(?:(yesterday|\d{4}-\d{2}-\d{2})[ T]+)?(\d{1,2}):(\d{2})(?::(\d{2}))?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
ALLOWED = "a time in the past: '03:12', 'yesterday 03:12', '2026-11-22 03:12:05', or '2h' for two hours ago"


@dataclass(frozen=True, slots=True)
class Instant:
    """A stretch of time as exact as somebody named it: a minute for "03:12". Nanoseconds since 1970."""

    start_ns: int
    length_ns: int


def instant(text: str, field: str, now: datetime | None = None) -> Instant:
    """What |text| means, as said at |now|. A clock time without a date is the last one that has been. Raises
    InvalidArgument for what is no time, and for one in the future."""
    now = now or datetime.now()
    found = _meant(" ".join(text.split()), now)
    if found is None or found[0] > now:
        raise InvalidArgument(field, text, ALLOWED)
    return Instant(int(found[0].timestamp() * SECOND_NS), found[1])


def _meant(text: str, now: datetime) -> tuple[datetime, int] | None:
    try:
        if ago := _AGO.fullmatch(text):
            return now - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]]), SECOND_NS
        if _DATE.fullmatch(text):
            return datetime.fromisoformat(text), DAY_NS
        if clock := _CLOCK.fullmatch(text):
            day, hour, minute, second = clock.groups()
            at = now.replace(hour=int(hour), minute=int(minute), second=int(second or 0), microsecond=0)
            if day == "yesterday":
                at -= timedelta(days=1)
            elif day:
                year, month, of_month = map(int, day.split("-"))
                at = at.replace(year=year, month=month, day=of_month)
            elif at > now:
                at -= timedelta(days=1)
            return at, SECOND_NS if second else MINUTE_NS
    except (ValueError, OverflowError):
        pass
    return None


def clock_text(ns: int, now: datetime | None = None) -> str:
    """An instant for people, to the second: "03:12:05" today, "2026-11-22 03:12:05" otherwise."""
    at = datetime.fromtimestamp(ns / SECOND_NS)
    today = at.date() == (now or datetime.now()).date()
    return at.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")
