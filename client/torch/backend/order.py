# SPDX-License-Identifier: Apache-2.0
"""The works of one group, in the order of their calls: no wait returns before what was called earlier has ended, too.

Scripts start several collectives and wait for the last one, or for a barrier, or drop what they were given: with NCCL
and Gloo all results are there then. A small op costs most where a thread must be woken to finish it, so none is:
whoever waits for anything finishes all that came before it. One thread for each group sleeps until somebody drops a
work that nobody has finished, and finishes that.

All ranks call alike, so whoever waits for a work has called all that the others need for those before it.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol


class Ordered(Protocol):
    """A work, as its group's order knows it."""

    number: int

    def end(self, limit: float | None = None) -> bool:
        """Returns True once it has ended and what came before it; False when |limit| (time.monotonic) passed first."""

    def finish(self, limit: float) -> bool:
        """As `end`, of this work alone: its memory is written to no more. Others may still be told so."""


class Order:
    """Safe to use from several threads, and from a destructor. |offer| gives a thread a task, if there is a thread."""

    def __init__(self, offer: Callable[[Callable[[], object]], bool]) -> None:
        self._offer = offer
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._made = self._ended = 0
        self._open: dict[int, weakref.ref[Ordered]] = {}
        self._dropped: SimpleQueue[Ordered | None] = SimpleQueue()
        self._sweeps = False

    def next_number(self) -> int:
        """That of a work which is called now."""
        with self._lock:
            self._made += 1
        return next(self._numbers)

    @property
    def idle(self) -> bool:
        """Whether every work that was called has ended."""
        with self._lock:
            return self._made == self._ended

    def join(self, work: Ordered) -> None:
        """Has later works end after this one, which must not have ended."""
        with self._lock:
            work.number = next(self._numbers)
            self._open[work.number] = weakref.ref(work)

    def leave(self, work: Ordered) -> None:
        """The work has ended."""
        with self._lock:
            self._ended += 1
            self._open.pop(work.number, None)

    def end_before(self, work: Ordered, limit: float | None) -> bool:
        """Ends all that came before |work|, the oldest first. False when |limit| passed before that."""
        while self._open and (earlier := self._oldest(work.number)) is not None:
            if not earlier.end(limit):
                return False
        return True

    def finish_all(self, limit: float) -> None:
        """Returns when nothing that was called so far writes to memory any more, or |limit| has passed."""
        with self._lock:
            called = list(self._open.values())
        for found in called:
            work = found()
            if work is not None and not work.finish(limit):
                return

    def _oldest(self, before: int) -> Ordered | None:
        with self._lock:
            while self._open:
                number, found = next(iter(self._open.items()))
                if number >= before:
                    return None
                work = found()
                if work is not None:
                    return work
                del self._open[number]
        return None

    def watch(self) -> None:
        """From now on what is dropped is finished all the same."""
        if self._sweeps:
            return
        with self._lock:
            if not self._sweeps:
                self._sweeps = self._offer(self._sweep)

    def drop(self, work: Ordered) -> None:
        """Nobody has |work| any more. From its destructor: that may run anywhere, so this takes no lock and waits for
        nothing.
        """
        if self._sweeps:
            self._dropped.put(work)

    def close(self) -> None:
        """Lets the thread end when it has done what it was given."""
        with self._lock:
            sweeps, self._sweeps = self._sweeps, False
        if sweeps:
            self._dropped.put(None)

    def _sweep(self) -> None:
        while (work := self._dropped.get()) is not None:
            work.end()
            del work  # it holds tensors, and the next one may be long in coming
