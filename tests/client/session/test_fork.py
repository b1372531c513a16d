# SPDX-License-Identifier: Apache-2.0
"""A forked child, as a data loader makes one, cannot touch the session of its parent, nor disturb it."""

import faulthandler
import os
import signal
import threading
import traceback
from collections.abc import Callable

import numpy as np

from tests.client.conftest import Pair
from ultima import ForkedHandle
from ultima.testing import FakeDaemon


def in_child(body: Callable[[], None]) -> int:
    """Runs `body` in a fork; its exit status, 0 if it returned, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def raises_forked(call: Callable[[], object]) -> None:
    try:
        call()
    except ForkedHandle:
        return
    raise AssertionError("no ForkedHandle")


def test_fork__child_is_told_and_parent_goes_on(pair: Pair) -> None:
    _, left, right = pair
    flying = left.allreduce_async(np.ones(4), "sum", deadline=20)

    def child() -> None:
        raises_forked(lambda: left.allreduce(np.ones(4)))
        raises_forked(flying.wait)
        raises_forked(lambda: left.empty(4))
        assert not left.connected
        left.close()
        right.close()

    assert in_child(child) == 0
    assert right.allreduce(np.ones(4), "sum").complete
    assert flying.wait().complete
    handles = left.allreduce_async(np.ones(4)), right.allreduce_async(np.ones(4))
    assert all(handle.wait().complete for handle in handles)


def test_fork__child_gives_back_no_memory_that_is_not_its_own(pair: Pair) -> None:
    """Dropping a mapping in the child must not unmap what the child has put at its address since."""
    _, left, _ = pair
    held = left.empty(1 << 16)
    held[:] = 5
    address = left._connection.session.arena.address

    def child() -> None:
        # The kernel merges neighbours, so the range may be wider than the arena.
        with open("/proc/self/maps") as maps:
            rows = [line.split() for line in maps]
        ranges = [([int(end, 16) for end in row[0].split("-")], row[1]) for row in rows]
        assert [kind for (low, high), kind in ranges if low <= address < high] == ["---p"]
        left.close()

    assert in_child(child) == 0
    assert (held == 5).all()


def test_fork__arena_memory_is_not_in_the_child(pair: Pair) -> None:
    held = pair[1].empty(64)
    held[:] = 5

    def child() -> None:
        faulthandler.disable()
        held[0] = 1.0

    assert in_child(child) == -signal.SIGSEGV
    assert held[0] == 5


def test_fork__child_keeps_no_descriptor_of_the_session(pair: Pair) -> None:
    """With the child's copy of the socket open, the daemon would not see the parent die."""
    _, left, _ = pair
    attachment = left._connection.session._attachment
    descriptors = attachment.lifeline.fileno(), attachment.bell.fileno()

    def child() -> None:
        for fd in descriptors:
            try:
                os.fstat(fd)
            except OSError:
                continue
            raise AssertionError(f"descriptor {fd} is open in the child")

    assert in_child(child) == 0


def test_fork__while_another_thread_waits(pair: Pair) -> None:
    """The waiting thread holds leadership, perhaps a lock; in the child neither may block anyone."""
    _, left, right = pair
    handle = left.allreduce_async(np.ones(4), deadline=20)
    thread = threading.Thread(target=handle.wait)
    thread.start()

    def child() -> None:
        signal.alarm(20)
        raises_forked(handle.wait)
        raises_forked(lambda: left.allreduce_async(np.ones(4)))
        left.close()

    for _ in range(5):
        assert in_child(child) == 0
    right.allreduce(np.ones(4))
    thread.join()
    assert handle.receipt.complete


def test_fork__child_may_connect_for_itself() -> None:
    with FakeDaemon(1) as daemon, daemon.connect(arena="64K") as job:

        def child() -> None:
            signal.alarm(20)
            with FakeDaemon(1) as other, other.connect(arena="64K") as mine:
                assert mine.allreduce(np.ones(4)).complete
            raises_forked(lambda: job.allreduce(np.ones(4)))

        assert in_child(child) == 0
        assert job.allreduce(np.ones(4)).complete
