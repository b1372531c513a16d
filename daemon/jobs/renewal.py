# SPDX-License-Identifier: Apache-2.0
"""Fresh secrets for paths that stand.

The host that receives packets drew their secret when the path was made. Every hour, as long as the path stands, it
draws another one: it gives that to its own engine first, and tells the host that sends. That one begins with it at its
next change of keys, which is at once as a rule; until then the engine here has the keys of both. So nothing is lost,
however long the call takes, and a call whose answer was lost is made again.

What was overheard and kept, and what somebody could read from memory a while ago, is then worth nothing for what comes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from ultima.daemon.base.errors import Refused
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.engine.seal import Seal, Sealing

log = logging.getLogger("ultimad.renewal")

AGAIN_SECONDS = 1.0, 60.0  # after which a call that failed is made again: at first, and at most

Tell = Callable[[tuple[int, ...], Seal], Awaitable[object]]


class Renewal:
    """Of the packets from one host to this one, under the ids of one path."""

    def __init__(
        self, engine: HostEngine, sealing: Sealing, job: str, number: int, host: int, cids: tuple[int, ...], tell: Tell
    ) -> None:
        """`number` is the engine's of the job, `cids` are our ids.

        `tell` gives the other host a secret for some of them. Raises Refused.
        """
        self._engine, self._sealing, self._job, self._number = engine, sealing, job, number
        self._host, self._cids, self._tell = host, cids, tell
        self.count = 0
        """Secrets that the other host has taken."""

    async def run(self) -> None:
        """For as long as the path stands; who breaks it cancels this."""
        while True:
            await asyncio.sleep(self._sealing.seconds * random.uniform(0.9, 1.0))
            seal = self._sealing.draw()
            taken = self._engine.peer_renew(self._number, self._host, False, self._cids, seal)
            if not taken:
                continue  # no packet came since the last one
            await self._tell_until_taken(taken, seal)
            self.count += 1
            log.info("secret renewed job=%s host=%d lanes=%d", self._job, self._host, len(taken))

    async def _tell_until_taken(self, cids: tuple[int, ...], seal: Seal) -> None:
        delay, most = AGAIN_SECONDS
        while True:
            try:
                await self._tell(cids, seal)
            except Refused as error:
                log.debug("secret not renewed job=%s host=%d reason=%s", self._job, self._host, error)
            else:
                return
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, most)
