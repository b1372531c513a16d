# SPDX-License-Identifier: Apache-2.0
"""Times as people write them."""

from datetime import datetime

import pytest

from ultima.base.errors import InvalidArgument
from ultima.base.instants import DAY_NS, MINUTE_NS, SECOND_NS, clock_text, instant

NOW = datetime(2026, 11, 22, 14, 30, 5)


@pytest.mark.parametrize(
    ("text", "when", "length"),
    [
        ("03:12", "2026-11-22 03:12:00", MINUTE_NS),
        ("03:12:07", "2026-11-22 03:12:07", SECOND_NS),
        ("14:30", "2026-11-22 14:30:00", MINUTE_NS),
        ("14:31", "2026-11-21 14:31:00", MINUTE_NS),
        ("yesterday 14:31", "2026-11-21 14:31:00", MINUTE_NS),
        ("2026-11-20 03:12", "2026-11-20 03:12:00", MINUTE_NS),
        ("2026-11-20T03:12:09", "2026-11-20 03:12:09", SECOND_NS),
        ("2026-11-20", "2026-11-20 00:00:00", DAY_NS),
        ("2h", "2026-11-22 12:30:05", SECOND_NS),
        ("1.5 m", "2026-11-22 14:28:35", SECOND_NS),
        ("7d", "2026-11-15 14:30:05", SECOND_NS),
    ],
)
def test_instant__means(text: str, when: str, length: int) -> None:
    found = instant(text, "--at", NOW)
    assert (str(datetime.fromtimestamp(found.start_ns / SECOND_NS)), found.length_ns) == (when, length)


@pytest.mark.parametrize(
    "text", ["", "25:00", "03:60", "noon", "2026-02-30", "2026-11-23", "3", "-2h", "2h ago", "1" * 400 + "d"]
)
def test_instant__that_cannot_be_is_one_sentence(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--since is .*; allowed: a time in the past"):
        instant(text, "--since", NOW)


def test_clock_text__names_the_day_only_if_it_is_another() -> None:
    ns = int(datetime(2026, 11, 22, 3, 12, 5).timestamp() * SECOND_NS)
    assert clock_text(ns, NOW) == "03:12:05" and clock_text(ns - DAY_NS, NOW) == "2026-11-21 03:12:05"
