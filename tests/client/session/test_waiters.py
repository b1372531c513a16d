# SPDX-License-Identifier: Apache-2.0
"""A condition that knows whether anybody waits."""

import threading
from unittest.mock import patch

from ultima.session.waiters import Waiters

PATIENCE_S = 30.0


def test_notify_all__wakes_all_that_wait() -> None:
    lock = threading.Lock()
    changed = Waiters(lock)
    told = False
    began = threading.Semaphore(0)
    woken = []

    def wait() -> None:
        with lock:
            began.release()
            while not told:
                assert changed.wait(PATIENCE_S)
            woken.append(threading.get_ident())

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert began.acquire(timeout=PATIENCE_S)
    with lock:  # each of them has let go of it by now only if it waits
        told = True
        changed.notify_all()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(set(woken)) == 3


def test_notify_all__costs_nothing_while_nobody_waits() -> None:
    lock = threading.Lock()
    changed = Waiters(lock)
    with lock:
        assert not changed.wait(0.0)  # who has left is no longer counted
        with patch.object(threading.Condition, "notify_all", side_effect=AssertionError):
            changed.notify_all()
