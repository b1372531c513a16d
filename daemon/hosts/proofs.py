# SPDX-License-Identifier: Apache-2.0
"""Whether a node is at the address that it tells of itself: before a datagram is sent there, or a call made again.

A host of a job could else aim the others at a third party, or at services on their own loopback, where nobody else can
reach. An address is the node's if its call comes from there, if a watch of it stands there, or if it answers a TLS
handshake there as that node: one handshake, and after one that failed none for a while. So this daemon is no scanner
either. Insecure daemons know no nodes, and believe what they are told.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from ultima.daemon.base.addresses import numeric, same_machine
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.hosts.host import Place
from ultima.daemon.trust.answerer import Answerer

PROVEN_SECONDS = 60.0  # for which a node need not answer anew at the same place
FAILED_SECONDS = (
    5.0  # for which a node that was not where it said is not looked for anywhere: `Register` goes on trying
)
NODES_MAX = 1024  # of which is known what came of the last look


class Proofs:
    """See the module."""

    def __init__(self, look: Callable[[Place], asyncio.Future[Answerer]], stands: Callable[[Place], bool]) -> None:
        """`look` finds out who answers at a place; `stands` tells whether a watch of it stands."""
        self._look, self._stands = look, stands
        self._last: OrderedDict[str, tuple[Place, str, float]] = OrderedDict()
        """By node: the last place that was looked at, what was wrong there or "", and until when that counts."""
        self._turns: dict[str, asyncio.Lock] = {}

    async def check(self, place: Place, source: str) -> None:
        """Raises Unavailable unless the node of `place`, which calls from `source`, is at that address."""
        if not place.node or same_machine(source, place.address) or self._stands(place):
            return
        if (address := numeric(place.address)) is None or address.is_loopback:
            raise Unavailable(
                f"{place.address}: the call comes from {source}, which is not on this host; a loopback address "
                "names only this host"
            )
        turn = self._turns.setdefault(place.node, asyncio.Lock())
        try:
            async with turn:  # one look at a time, whatever places a node names
                why = self._known(place)
                if why is None:
                    why = await self._found_out(place)
        finally:
            if not turn.locked() and self._turns.get(place.node) is turn:
                del self._turns[place.node]
        if why:
            raise Unavailable(f"{place.address}: the call comes from {source}, and {why}")

    def _known(self, place: Place) -> str | None:
        """What the last look has shown, if that counts still: what is wrong, or ""; None if a look is due."""
        last, why, until = self._last.get(place.node, (place, "", 0.0))
        if asyncio.get_running_loop().time() >= until:
            return None
        return why if why or last == place else None

    async def _found_out(self, place: Place) -> str:
        found = await self._look(place)
        why = ""
        if found.trouble is not None:
            why = f"node {place.node!r} does not answer at {place}: {found.trouble}"
        elif found.node != place.node:
            why = f"node {found.node!r} answers at {place}, not node {place.node!r}"
        until = asyncio.get_running_loop().time() + (FAILED_SECONDS if why else PROVEN_SECONDS)
        self._last[place.node] = place, why, until
        self._last.move_to_end(place.node)
        while len(self._last) > NODES_MAX:
            self._last.popitem(last=False)
        return why
