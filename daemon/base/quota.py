# SPDX-License-Identifier: Apache-2.0
"""A limit on what others may have open at once: in all, and for each of them, so that none takes what all need. They
are told apart by the nodes that their certificates name, or by their addresses where nobody is authenticated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ultima.daemon.base.errors import ResourceExhausted

SHARE = 8
"""One address may have this part of the whole."""


class Quota:
    """Counts what is open, by address. An empty address is this daemon itself, which is counted but not limited."""

    def __init__(self, what: str, most: int, each: int = 0) -> None:
        """At most `most` in all, and `each` of one address; `what` names them in the refusal."""
        self._what, self._most, self._each = what, most, each or max(1, most // SHARE)
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.total()

    def take(self, address: str) -> None:
        """Opens one more. Raises ResourceExhausted."""
        if address and self._open[address] >= self._each:
            raise ResourceExhausted(f"{self._what}: {address} has {self._each} already: allowed: {self._each} each")
        if address and self._open.total() >= self._most:
            raise ResourceExhausted(f"{self._what}: {self._most} are open already: allowed: {self._most} in all")
        self._open[address] += 1

    def give_back(self, address: str) -> None:
        """Closes one."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    @contextmanager
    def taken(self, address: str) -> Iterator[None]:
        """One that is open as long as the context."""
        self.take(address)
        try:
            yield
        finally:
            self.give_back(address)
