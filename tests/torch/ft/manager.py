# SPDX-License-Identifier: Apache-2.0
"""A small manager with the calls that torchft 0.2's makes on a process group: a quorum before each step, a sum within
it, and a vote after it. Replicas are threads over one store; a lighthouse in memory knows who is there.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp, TCPStore

WAIT_S = 30


class Lighthouse:
    """Brings the live replicas together before each step. Whoever is new, or gone, or had an error makes a new quorum,
    as with torchft's.
    """

    def __init__(self, replicas: int) -> None:
        self.store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=WAIT_S), wait_for_workers=False)
        self._live = set(range(replicas))
        self._asked: dict[int, int] = {}
        self._changed = threading.Condition()
        self._round, self._quorum, self._members = 0, 0, [-1]

    def leave(self, replica: int) -> None:
        with self._changed:
            self._live.discard(replica)
            self._close_round()

    def join(self, replica: int) -> None:
        with self._changed:
            self._live.add(replica)

    def quorum(self, replica: int, failures: int) -> tuple[int, list[int]]:
        """The quorum's number and its members, once every live replica has asked."""
        with self._changed:
            mine, self._asked[replica] = self._round, failures
            self._close_round()
            assert self._changed.wait_for(lambda: self._round > mine, WAIT_S), f"{self._live - set(self._asked)} absent"
            return self._quorum, self._members

    def _close_round(self) -> None:
        if self._live <= set(self._asked) and self._asked:
            if self._members != sorted(self._asked) or any(self._asked.values()):
                self._quorum += 1
            self._members, self._asked = sorted(self._asked), {}
            self._round += 1
            self._changed.notify_all()


class Manager:
    """One replica's."""

    def __init__(self, pg: Any, lighthouse: Lighthouse, replica: int) -> None:
        self.pg, self.replica, self.failures = pg, replica, 0
        self.error: Exception | None = None
        self._lighthouse, self._quorum = lighthouse, -1
        self.members: list[int] = []

    def start_quorum(self) -> None:
        self.error = None
        number, self.members = self._lighthouse.quorum(self.replica, self.failures)
        if number == self._quorum:
            return
        self._quorum = number
        where = f"127.0.0.1:{self._lighthouse.store.port}/test/{number}/0"
        rank, size = self.members.index(self.replica), len(self.members)
        try:
            self.pg.configure(where, str(self.replica), rank, size, number, 0, 1, self.members)
        except Exception as error:
            self.error = error

    def allreduce(self, tensor: torch.Tensor) -> None:
        """The average of |tensor| over the members, in place; after an error nothing."""
        if self.error is not None:
            return
        opts = AllreduceOptions()
        opts.reduceOp = ReduceOp.SUM
        try:
            work = self.pg.allreduce([tensor], opts)
            work.wait()
            work.get_future().wait()
            tensor /= len(self.members)
        except Exception as error:
            self.error = error

    def should_commit(self) -> bool:
        found = self.pg.errored()
        self.error = self.error or found
        self.failures = 0 if self.error is None else self.failures + 1
        return self.error is None


def replicas(count: int, run: Callable[[int, Lighthouse], Any], lighthouse: Lighthouse | None = None) -> list[Any]:
    """What |run| returned, or raised, for each replica, all at once."""
    house = lighthouse or Lighthouse(count)
    found: list[Any] = [None] * count

    def one(replica: int) -> None:
        try:
            found[replica] = run(replica, house)
        except Exception as error:
            found[replica] = error
            house.leave(replica)

    threads = [
        threading.Thread(target=one, args=(replica,), name=f"replica-{replica}", daemon=True)
        for replica in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found
