# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job with a policy on the fake, for the tests of what they give and get."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ultima import Job, Options
from ultima.base.reference import picks
from ultima.base.words import FLOAT64, MODES, OPS, RING_ENTRIES
from ultima.testing import FakeDaemon

# Draws rank 1 for the ops 0 and 1 of two ranks, rank 0 for op 2.
SEED = next(seed for seed in range(1, 1000) if [picks(seed, op, 2, 1)[0] for op in range(3)] == [1, 1, 0])
Call = Callable[..., Any]


@contextmanager
def slots(world: int, policy: str, **options: Any) -> Iterator[tuple[FakeDaemon, list[Job]]]:
    """A fake of `world` ranks, and all of them."""
    with ExitStack() as stack:
        daemon = stack.enter_context(FakeDaemon(world))
        said = Options(policy=policy, **options)
        yield daemon, [stack.enter_context(daemon.connect(r, arena="1M", options=said)) for r in range(world)]


class Witness:
    """Reads every result of a job whose ranks add up float64, as a rank that gives nothing: it asks for each op by its
    number before that op begins, up to 60 ahead. It takes the seat of a rank for which a peer would stand."""

    def __init__(self, daemon: FakeDaemon, rank: int, count: int) -> None:
        assert daemon._cluster is not None
        self._daemon, self._lan, self._seat = daemon, daemon._cluster._lan, daemon._cluster._seats[rank]
        del daemon._cluster._stand_ins[rank]
        self._count, self._asked = count, 0
        self.sums: list[float] = []
        """The first element of each result, by the number of the op."""
        self.look()

    def look(self) -> None:
        """Takes what has come, and asks for as many more."""
        with self._daemon._changed:
            for number in self._seat.answered():
                assert number == len(self.sums)
                self.sums.append(float(self._seat.arena.view(self._at(number), 8).view(np.float64)[0]))
            while self._asked < len(self.sums) + 60:
                entry = self._seat.free()
                entry.op_seq = entry.wanted = self._asked
                entry.src = entry.dst = self._at(self._asked)
                entry.count, entry.dtype = self._count, FLOAT64.code
                entry.redop, entry.mode = OPS["sum"], MODES["bounded"]
                entry.deadline_ns = time.monotonic_ns() + 60 * 10**9
                self._seat.put()
                self._asked += 1
            self._lan.ring(self._seat.host, self._seat.session)

    def _at(self, number: int) -> int:
        return number % RING_ENTRIES * self._count * 8


def at_once(*calls: Call) -> list[Any]:
    """All calls in threads of their own; their results."""
    results: list[Any] = [None] * len(calls)

    def one(index: int) -> None:
        results[index] = calls[index]()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def until(ready: Callable[[], object]) -> None:
    """Waits until something is so."""
    limit = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < limit
        time.sleep(0.001)
