# SPDX-License-Identifier: Apache-2.0
"""Whether the hosts that a branch left live no more.

Where hosts wait that are cut off (`split="wait"`), they wait for those on the other side. If all of these were killed,
and not cut off, they never come: then the branch is the heir of the line that it left, and goes on. Silence does not
tell one from the other, and neither does a port that refuses: a firewall may. So the daemon in the place of each such
host is asked, again and again. One that was started anew says that the life in question is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from ultima.daemon.base.waiting import spawn
from ultima.daemon.hosts.host import Host
from ultima.daemon.jobs.epoch import HEIR, Epoch, Member

log = logging.getLogger("ultimad.council")

AGAIN_SECONDS = 0.5  # before those are asked again that did not say so


def waits_apart(split_waits: bool, epoch: Epoch) -> bool:
    """Whether this is a branch that waits for those that it left."""
    return split_waits and bool(epoch.line) and not epoch.options[HEIR]


class Heirs:
    """Asks after the hosts that one branch left. It belongs to the event loop."""

    def __init__(
        self,
        job: str,
        left: Mapping[Member, Host | None],
        is_over: Callable[[Host], Awaitable[bool]],
        done: Callable[[], None],
    ) -> None:
        """left: where each of them was; None: not known, so it cannot be asked. `done` is called once all are over."""
        self.left = frozenset(left)
        self._job, self._places, self._is_over, self._done = job, left, is_over, done
        self._over: set[Member] = set()
        self._task = spawn(self._ask(), f"heirs-{job}")

    @property
    def alone(self) -> bool:
        """Whether the lives of all of them are over."""
        return self._over == self.left

    def close(self) -> None:
        """Asks nobody any more."""
        self._task.cancel()

    async def _ask(self) -> None:
        while True:
            for m, host in self._places.items():
                if m not in self._over and host is not None and await self._is_over(host):
                    log.info("host over job=%s host=%d address=%s life=%d", self._job, m.slot, host.address, m.life)
                    self._over.add(m)
            if self.alone:
                self._done()
                return
            await asyncio.sleep(AGAIN_SECONDS)
