# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job with a policy on the fake, for the tests of what they give and get."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ultima import Job, Options
from ultima.base.reference import picks
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
