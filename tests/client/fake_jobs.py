# SPDX-License-Identifier: Apache-2.0
"""Several fake jobs in one process: what opens jobs beside its own finds a fake daemon behind each name."""

import threading
import time
from collections.abc import Callable
from typing import Any

from ultima import Job
from ultima.api.job import open_job
from ultima.session.attachment import Attachment
from ultima.settings import config
from ultima.settings.config import Settings
from ultima.testing import FakeDaemon


class FakeJobs:
    """A Connector, and a context manager. `daemons`: the fake of each job, by its name."""

    def __init__(self, world_size: int, prepare: Callable[[str, FakeDaemon], None] = lambda name, daemon: None) -> None:
        self.world_size = world_size
        self.daemons: dict[str, FakeDaemon] = {}
        self._prepare = prepare
        self._all_here: dict[str, threading.Barrier] = {}
        self._lock = threading.Lock()

    def base(self, rank: int, **options: Any) -> Job:
        """The job that a training has anyway."""
        settings = config.resolve({}, job="base", rank=rank, world_size=self.world_size, **{"arena": "8M", **options})
        return open_job(settings, self)

    def attach(self, settings: Settings, until_ns: int, patience_ns: int, next_op_seq: int | None = None) -> Attachment:
        with self._lock:
            if settings.job not in self.daemons:
                self.daemons[settings.job] = FakeDaemon(settings.world_size)
                self._prepare(settings.job, self.daemons[settings.job])
                self._all_here[settings.job] = threading.Barrier(settings.world_size)
        attached = self.daemons[settings.job].attach(settings, until_ns, patience_ns, next_op_seq)
        # As a real one does: nobody is let in before all are there, or the late ones would miss ops.
        self._all_here[settings.job].wait(20)
        return attached

    def give_up(self, besides: str) -> None:
        """Who waits for ranks that were refused waits no more: BrokenBarrierError. The job `besides` goes on: a rank
        that was let into it may not have woken up yet, and would find its barrier broken."""
        for name, all_here in self._all_here.items():
            if name != besides:
                all_here.abort()

    def __enter__(self) -> "FakeJobs":
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self.daemons.values():
            daemon.close()


def on_all(count: int, act: Callable[[int], Any], seconds: float = 60) -> list[Any]:
    """What `act` returns for every rank, each in a thread of its own. Raises what one of them raised first."""
    found: list[Any] = [None] * count
    raised: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = act(rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and not raised:
        assert time.monotonic() < until, "a rank hangs"
        threads[0].join(0.01)
        time.sleep(0.001)
    if raised:
        raise raised[0]
    return found
