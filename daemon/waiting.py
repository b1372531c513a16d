# SPDX-License-Identifier: Apache-2.0
"""Waiting for something to become true, and no longer than until a deadline.

All state of the control plane lives in one event loop, so a change needs no lock; who changes something says so, and
who waits looks again. Deadlines are in seconds of the loop's clock (monotonic).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable

log = logging.getLogger("ultimad.tasks")


class Changes:
    """Something changes; those who wait look whether it is what they wait for."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Has `listener` called at each change, too."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Wakes everyone who waits."""
        for listener in self._listeners:
            listener()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def until(self, predicate: Callable[[], bool], deadline: float) -> bool:
        """Waits until `predicate` holds; False if the deadline came first."""
        loop = asyncio.get_running_loop()
        while not predicate():
            left = deadline - loop.time()
            if left <= 0:
                return False
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait({waiter}, timeout=left)
            finally:
                self._waiters.discard(waiter)
                waiter.cancel()
        return True


def spawn(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    """A task whose unforeseen end is logged when it happens, not when the task is collected."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed name=%s", name, exc_info=error)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


def numbers(values: Iterable[int]) -> str:
    """Numbers for people, runs drawn together: "0, 2-5, 9"."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
