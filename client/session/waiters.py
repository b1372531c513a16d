# SPDX-License-Identifier: Apache-2.0
"""A condition of which it costs next to nothing to tell nobody: most sessions have one thread, which waits itself."""

from __future__ import annotations

import threading


class Waiters(threading.Condition):
    """A `threading.Condition` that counts who waits. Its lock is held by whoever waits or notifies, as ever."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self._count = 0

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Condition.wait`."""
        self._count += 1
        try:
            return super().wait(timeout)
        finally:
            self._count -= 1

    def notify_all(self) -> None:
        """Wakes all that wait, if any do."""
        if self._count:
            super().notify_all()
