# SPDX-License-Identifier: Apache-2.0
"""The window of a round: who has given, told to all ranks as it happens, and a thread that acts for a late trainer.

A *bell* is a partial job beside the rounds', of the policy "solo": whoever gives starts an op, and the daemons of the
others take part, whatever their trainers do. A rank that calls a round rings: it leaves the round's number there, in an
element of its own. What is left is sticky, so each result holds the newest number of each rank, and a result that is
lost is made good by the next one.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ultima.api.job import Job
from ultima.base.errors import UltimaError
from ultima.settings.options import Options
from ultima.v1.job_options import OPTIONS

# Of the time from one round to the next: where nothing hides the wait, it bounds what late ranks cost the others.
AUTO_SHARE = 0.25
LOOK_S = 0.1  # at most, between two looks of the thread: by then it knows that the job is closed
# What the rounds' job may be told and a partial one may not.
_PARTIAL: dict[str, Any] = {row.name: row.words[row.default - 1] for row in OPTIONS if row.whole_only}
_TAU = 255  # rounds without this rank before the bell would wait for it: the most there is


class Window:
    """One rank's end of the bell, and its thread. All ranks make one."""

    def __init__(self, job: Job, name: str, grace: float | str) -> None:
        self.grace = grace
        self._job = job.beside(name, Options(policy="solo", tau=_TAU, **_PARTIAL))
        self._partial = self._job.partial(divisor="none")
        self._rank, self._heard = job.rank, np.zeros(job.world_size, np.float32)
        self._told = np.zeros(job.world_size, np.float32)
        self._open: tuple[int, float] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, job: Job, name: str, grace: float | str | None) -> Window | None:
        """None where there is no grace, or nobody to be late."""
        return None if grace is None or job.world_size == 1 else cls(job, name, grace)

    def watch(self, tend: Callable[[], None]) -> None:
        """Starts the thread: it calls the method `tend` whenever there may be something to do."""
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), weakref.WeakMethod(tend)), name="ultima-outer", daemon=True
        )
        self._thread.start()

    @property
    def here(self) -> bool:
        """Whether the caller is the window's thread."""
        return threading.current_thread() is self._thread

    def ring(self, op: int) -> None:
        """This rank has given for the round with this number of an op, from 0 (float32 holds those below 2^24)."""
        number = np.zeros_like(self._heard)
        number[self._rank] = op + 1
        with suppress(UltimaError):  # nobody hears: the round then waits for late ranks until its deadline
            self._partial.give(number, sticky=True)

    def hear(self, timeout: float) -> None:
        """Waits at most that long for news of the bell, in seconds."""
        result = self._partial.wait(deadline=max(timeout, 1e-3), out=self._told)
        if result is not None:
            np.copyto(self._heard, self._told, where=self._told > 0)  # 0: it never rang, or its packet did not come

    def given(self, op: int) -> int:
        """How many ranks are known to have given for this op or a later one."""
        return int((self._heard > op).sum())

    def forget(self) -> None:
        """The ops are counted anew: all daemons were restarted."""
        self._heard[:] = 0

    def closes_in(self, op: int, needed: int, grace_s: float) -> float | None:
        """Seconds until this rank is late for the op; None while fewer than `needed` ranks have given."""
        if self.given(op) < needed:
            return None
        now = time.monotonic()
        if self._open is None or self._open[0] != op:
            self._open = op, now
        return max(0.0, self._open[1] + grace_s - now)

    def close(self) -> None:
        """Ends the thread, and leaves the bell. Idempotent."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._job.close()


def _watch(window: weakref.ref[Window], tend: weakref.WeakMethod[Callable[[], None]]) -> None:
    """The thread: it keeps neither alive between two looks."""
    while (here := window()) is not None and not here._over.is_set():
        try:
            here.hear(LOOK_S)
        except UltimaError:  # the daemon is lost or not back yet: the next ring attaches again
            here._over.wait(LOOK_S)
        act = tend()
        if act is None:
            return
        if not here._over.is_set():
            act()
        del here, act
