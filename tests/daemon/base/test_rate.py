# SPDX-License-Identifier: Apache-2.0
"""Who may have how much done in a time."""

from __future__ import annotations

import pytest

from ultima.daemon.base.errors import ResourceExhausted
from ultima.daemon.base.quota import SHARE
from ultima.daemon.base.rate import Rate


def test_spend__is_forgiven_with_time_and_one_takes_nothing_of_anothers() -> None:
    now = [0.0]
    rate = Rate("bytes", 10.0, 100.0, lambda: now[0])
    for _ in range(10):
        rate.spend("a", 10)
    with pytest.raises(ResourceExhausted, match=r"a has used up its bytes: try again in 2\.0 s"):
        rate.spend("a", 20)
    rate.spend("b", 100)
    rate.spend("", 1e9)  # this daemon's own
    now[0] = 2.0
    rate.spend("a", 20)
    with pytest.raises(ResourceExhausted):
        rate.spend("a", 1)
    now[0] = 100.0
    rate.spend("c", 1)
    assert list(rate._spent) == ["c", ""], "those to whom all is forgiven are forgotten"


def test_spend__all_together_have_a_limit_too() -> None:
    rate, spent = Rate("bytes", 10.0, 100.0, lambda: 0.0), 0
    for number in range(5 * SHARE):
        try:
            rate.spend(f"n{number}", 100)
            spent += 100
        except ResourceExhausted:
            pass
    assert spent == SHARE * 100
