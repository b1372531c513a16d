# SPDX-License-Identifier: Apache-2.0
"""At which of several daemons a rank registers.

Only hosts that come and go may meet at several. One that knows the job comes first, whatever its place in the list: a
daemon that has only just come up may know nothing of a job that runs. Else it is the first that can be reached; and one
that is not the first in the list is asked anew again and again, since hosts that come later go to the first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from ultima.daemon.base.errors import DeadlineExceeded, NotFound, Refused, Unavailable
from ultima.daemon.hosts.host import Membership, Place
from ultima.daemon.hosts.watching import RETRY_SECONDS_MIN

AGAIN_SECONDS = 3.0  # at a daemon that is not the first in the list, before the first one is tried again
SHARE = 3  # of the time that those before it took in vain, for which one is asked at least

Attempt = Callable[[Place, bool, float], Awaitable[Membership]]
"""Registers at a place, only for a job that is known there or for any, in so many seconds. Raises Refused."""


async def register_at(places: Sequence[Place], attempt: Attempt, deadline: float) -> Membership:
    """Tries until `deadline`, on the loop's clock, while nobody is there. Raises Refused."""
    clock, delay = asyncio.get_running_loop().time, RETRY_SECONDS_MIN
    trouble: Refused = Unavailable("no answer")
    while clock() < deadline:
        for only_known in (True, False) if len(places) > 1 else (False,):
            began = clock()
            for number, place in enumerate(places):
                patience = max(AGAIN_SECONDS, SHARE * (clock() - began)) if number else deadline
                until = min(deadline, clock() + patience)
                try:
                    return await attempt(place, only_known, until - clock())
                except NotFound:
                    continue
                except Unavailable as error:
                    trouble = error
                except DeadlineExceeded as error:
                    if until == deadline:
                        raise
                    trouble = error
                    break  # the first one again
        await asyncio.sleep(min(delay * random.uniform(0.5, 1.0), max(0.0, deadline - clock())))
        delay = min(2 * delay, 1.0)
    if isinstance(trouble, DeadlineExceeded):
        raise trouble
    raise DeadlineExceeded(f"rendezvous {', '.join(map(str, places))}: cannot be reached: {trouble}")
