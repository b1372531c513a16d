# SPDX-License-Identifier: Apache-2.0
"""Waiting for something to become true, and no longer than until a deadline.

All state of the control plane lives in one event loop, so a change needs no lock; who changes something says so, and
who waits looks again. Deadlines are in seconds of the loop's clock (monotonic).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("ultimad.tasks")

BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX, PEACE_SECONDS = 0.2, 30.0, 60.0


class Changes:
    """Something changes; those who wait look whether it is what they wait for.

    However many changes come in one turn of the loop, each who waits looks once; only who has got what he waits for is
    woken.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._looking: asyncio.Handle | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Has `listener` called at each change, too. What it raises is logged, and nobody else's trouble."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Has everyone look who waits."""
        for listener in self._listeners:
            try:
                listener()
            except Exception:
                log.exception("listener failed")
        if self._waiters and self._looking is None:
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = None
        for waiter, predicate in list(self._waiters.items()):
            if not waiter.done() and _holds(predicate):
                waiter.set_result(None)

    async def until(self, predicate: Callable[[], bool], deadline: float) -> bool:
        """Waits until `predicate` holds; False if the deadline came first."""
        loop = asyncio.get_running_loop()
        while not predicate():
            left = deadline - loop.time()
            if left <= 0:
                return False
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters[waiter] = predicate
            try:
                await asyncio.wait({waiter}, timeout=left)
            finally:
                del self._waiters[waiter]
                waiter.cancel()
        return True

    async def unless(self, predicate: Callable[[], bool], work: Coroutine[Any, Any, None], deadline: float) -> None:
        """Does some work, given up as soon as `predicate` holds, and at the deadline. Raises what the work does."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self.notify())
        try:
            await self.until(lambda: task.done() or predicate(), deadline)
            if task.done() and not predicate():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _holds(predicate: Callable[[], bool]) -> bool:
    """Whether the one who waits is to look for himself: also when his predicate fails, which is his own trouble."""
    try:
        return predicate()
    except Exception:
        return True


@dataclass(slots=True)
class Backoff:
    """How long to wait before something is tried again: not at all, then ever longer, until there was peace."""

    seconds: float = 0.0
    """Of the last wait."""
    until: float = -math.inf
    """When it ended."""

    def next(self, now: float) -> float:
        """Seconds to wait from `now` on."""
        peace = now - self.until >= PEACE_SECONDS
        self.seconds = 0.0 if peace else min(max(2 * self.seconds, BACKOFF_SECONDS_MIN), BACKOFF_SECONDS_MAX)
        self.until = now + self.seconds
        return self.seconds


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
