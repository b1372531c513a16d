# SPDX-License-Identifier: Apache-2.0
"""Sends pictures to those who look, one a second: made once for all of them, and not at all while nobody looks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from ultima.daemon.base.waiting import spawn

CLIENTS_MAX = 8
SECONDS = 1.0

log = logging.getLogger("ultimad.web")


class Pictures(Protocol):
    """Where they come from (view.py)."""

    def picture(self) -> dict[str, Any]:
        """One second's."""

    def past(self) -> dict[str, Any]:
        """What comes before the first one."""

    def rest(self) -> None:
        """Nobody looks any more."""


class Feed:
    """See the module."""

    def __init__(self, view: Pictures, seconds: float = SECONDS) -> None:
        """A picture every `seconds`."""
        self._view, self._seconds = view, seconds
        self._clients: set[asyncio.Event] = set()
        self._newest: dict[str, Any] = {}
        self._bytes = b""
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether nobody else may look."""
        return len(self._clients) >= CLIENTS_MAX

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """JSON of a picture with the past, then one of each second; who is slow misses some. Raises BlockingIOError."""
        if self.full:
            raise BlockingIOError(f"{CLIENTS_MAX} browsers have this page open already")
        woken = asyncio.Event()
        self._clients.add(woken)
        try:
            if self._task is None:
                self._take()
                self._task = spawn(self._run(), "status page")
            yield _json(self._newest | self._view.past())
            seen = self._number
            while self._task is not None:
                await woken.wait()
                woken.clear()
                if self._number != seen:
                    seen = self._number
                    yield self._bytes
        finally:
            self._clients.discard(woken)
            if not self._clients:
                self.close()

    def close(self) -> None:
        """Ends it for all."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._view.rest()
        for client in self._clients:
            client.set()

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._seconds)
                self._take()
                for client in self._clients:
                    client.set()
        except Exception:
            log.exception("no picture")
            self.close()

    def _take(self) -> None:
        self._newest = self._view.picture()
        self._bytes = _json(self._newest)
        self._number += 1


def _json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()
