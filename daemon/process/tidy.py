# SPDX-License-Identifier: Apache-2.0
"""Gives back what jobs leave behind: closed connections, and free parts of heaps.

Two things hold memory of what is over. A connection that was closed, with its TLS state and its descriptor, is held by
objects of Python that refer to one another in a circle until the garbage collector comes to the oldest generation, for
which a daemon makes too little garbage. And glibc keeps freed memory in a heap for each thread. So after jobs have come
or gone the garbage is collected and the heaps are trimmed: a few milliseconds, once in `SECONDS` at most.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc

SECONDS = 10.0


def settle_down() -> None:
    """The daemon has started: what was imported stays for good, and no later collection need look at it."""
    gc.freeze()  # without a collection before, which would hold up whoever waits for this daemon


class Tidy:
    """See the module. It belongs to the event loop."""

    def __init__(self) -> None:
        self._untidy = False
        # Not in every C library.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def note(self) -> None:
        """Who is in a job has changed."""
        self._untidy = True

    async def run(self, seconds: float = SECONDS) -> None:
        """Tidies up every `seconds`, if there is a reason, for as long as the daemon lives."""
        while True:
            await asyncio.sleep(seconds)
            if self._untidy:
                self._untidy = False
                self.tidy()

    def tidy(self) -> None:
        """Collects and trims."""
        gc.collect()
        if self._trim is not None:
            self._trim(0)
