# SPDX-License-Identifier: Apache-2.0
"""Somebody else's job on the daemon under attack: it does ops without pause, checks each value, and measures."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import numpy as np

import ultima
from tests.e2e.hosts import DaemonProcess, new_job_name


class Bystander:
    """A rank of a job of its own, in this process; a context manager, at the end of which it must be unhurt."""

    def __init__(self, host: DaemonProcess, elements: int = 16) -> None:
        self._host = host
        self._job = ultima.connect(new_job_name(), 0, 1, host.socket, timeout=30, deadline=30, arena="1M")
        self._pid = host.pid
        self._elements = elements
        self.worst_s = 0.0
        self.ops = 0
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.one_op()
        except BaseException as error:
            self._error = error

    def one_op(self) -> None:
        """One op, with values that no other has."""
        mine = np.arange(self._elements, dtype=np.float32) + np.float32(self.ops)
        data = mine.copy()
        start = time.monotonic()
        receipt = self._job.allreduce(data, "sum")
        self.worst_s = max(self.worst_s, time.monotonic() - start)
        assert receipt.complete, receipt
        assert (data == mine).all(), f"op {receipt.op_seq}: {data} instead of {mine}"
        self.ops += 1

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(60)
        if kind is not None:
            return
        assert not self._thread.is_alive(), "an op of the bystander has not ended"
        if self._error is not None:
            raise AssertionError(f"the bystander was hurt:\n{self._host.log()[-4000:]}") from self._error
        self.one_op()
        assert self.ops > 1
        self._job.close()
