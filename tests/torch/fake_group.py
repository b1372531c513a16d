# SPDX-License-Identifier: Apache-2.0
"""Ranks that are threads of the test: a process group over a fake daemon, without Gloo and without a store."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

import ultima
from ultima.torch.backend.accompanied import Line
from ultima.torch.backend.group import UltimaProcessGroup
from ultima.torch.backend.order import Order
from ultima.torch.backend.receipt_log import ReceiptLog
from ultima.torch.backend.staging import Stages
from ultima.torch.backend.work import Finishers


class FakeGroup(UltimaProcessGroup):
    """One rank's. `asked` has the number of elements, mode and deadline of each call of `allreduce_with`
    for a tensor on the CPU, be it from a stage.
    """

    def __init__(self, job: ultima.Job) -> None:
        torch.distributed.ProcessGroup.__init__(self, job.rank, job.world_size)
        self.log = ReceiptLog()
        self._timeout = timedelta(seconds=20)
        self._mode = "bounded"
        self._deadline_s = None
        self._agree = False
        self._finishers = Finishers()
        self._order = Order(self._finishers.offer)
        self._line = Line()
        self._stages = Stages(self._finishers.run)
        self._job = job
        self.asked: list[tuple[int, Any, Any]] = []

    def allreduce_with(
        self, tensor: Any, op: str = "avg", *, mode: Any = None, deadline: Any = None, wire: Any = None
    ) -> Any:
        if tensor.is_cpu:
            self.asked.append((tensor.numel(), mode, deadline))
        return super().allreduce_with(tensor, op, mode=mode, deadline=deadline, wire=wire)


def on_all(ranks: Sequence[Any], act: Callable[[int, Any], Any]) -> list[Any]:
    """What `act` returns on every rank, or raises there, each in its thread."""
    found: list[Any] = [None] * len(ranks)

    def run(rank: int) -> None:
        try:
            found[rank] = act(rank, ranks[rank])
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found
