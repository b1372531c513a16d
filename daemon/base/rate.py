# SPDX-License-Identifier: Apache-2.0
"""A limit on how much others may have done for them in a time: for each of them, and for all together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ultima.daemon.base.errors import ResourceExhausted
from ultima.daemon.base.quota import SHARE


class Rate:
    """What each account has spent lately, which is forgiven with time. An empty account is this daemon itself, which is
    not limited."""

    def __init__(self, what: str, per_second: float, at_once: float, clock: Callable[[], float]) -> None:
        """Of one account `at_once` and then `per_second`, in all SHARE times that; `what` names it in the refusal,
        `clock` tells seconds."""
        self._what, self._clock = what, clock
        self._per_second, self._at_once = per_second, at_once
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What is not forgiven yet, and when that was so; with "" for all of them."""

    def __len__(self) -> int:
        return len(self._spent)

    def spend(self, account: str, cost: float) -> None:
        """Takes it from the account. Raises ResourceExhausted, and takes nothing, if it has not got as much left."""
        if not account:
            return
        now = self._clock()
        self._forget(now)
        wait = 0.0
        for who, factor in ((account, 1), ("", SHARE)):
            over = self._owed(who, factor, now) + cost - factor * self._at_once
            wait = max(wait, over / (factor * self._per_second))
        if wait > 0:
            raise ResourceExhausted(f"{account} has used up its {self._what}: try again in {wait:.1f} s")
        for who, factor in ((account, 1), ("", SHARE)):
            self._spent[who] = self._owed(who, factor, now) + cost, now
            self._spent.move_to_end(who)

    def _owed(self, who: str, factor: float, now: float) -> float:
        owed, at = self._spent.get(who, (0.0, now))
        return max(0.0, owed - factor * self._per_second * (now - at))

    def _forget(self, now: float) -> None:
        """Drops those to whom all is forgiven, the longest silent first."""
        while self._spent and self._owed(next(iter(self._spent)), 1, now) <= 0:
            self._spent.popitem(last=False)
