# SPDX-License-Identifier: Apache-2.0
"""Names of hosts, looked up where nobody else waits for it.

The system's look-up blocks for as long as a name server likes. So it has threads of its own, and each user a share of
them: whoever names hosts that no server answers for holds up his own joins alone.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from ultima.daemon.base.addresses import numeric
from ultima.daemon.base.errors import ResourceExhausted, Unavailable
from ultima.daemon.base.quota import Quota

THREADS = 16
EACH = 2  # of one user: a join names one host, the coordinator's, whatever its ranks


class Names:
    """See the module."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "names")  # a thread is started when there is work for it
        self._quota = Quota("names that are looked up", THREADS, EACH)
        self._under_way: dict[tuple[str, str], asyncio.Future[list[str]]] = {}

    async def resolve(self, name: str, account: str) -> list[str]:
        """The numeric addresses of a host that may be given by name, the best first. `account` is on whose share that
        goes. Raises Unavailable."""
        if numeric(name) is not None:
            return [name]
        key = account, name
        if key not in self._under_way:
            try:
                self._quota.take(account)
            except ResourceExhausted as error:
                raise Unavailable(str(error)) from None
            work = asyncio.get_running_loop().run_in_executor(self._threads, _look_up, name)
            self._under_way[key] = work
            work.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(self._under_way[key])

    def close(self) -> None:
        """Waits for no look-up that is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, key: tuple[str, str], work: asyncio.Future[list[str]]) -> None:
        del self._under_way[key]
        self._quota.give_back(key[0])
        if not work.cancelled():
            work.exception()  # is told to those who wait, of whom there may be none any more


def _look_up(name: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"{name!r}: {getattr(error, 'strerror', None) or error}") from None
