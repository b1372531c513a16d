# SPDX-License-Identifier: Apache-2.0
"""One generation of a group whose members change: an ordinary process group, from one change to the next.

Each generation is a job of its own, with a name that no other has. So nothing that was sent before a change can be
taken for something that was sent after it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Store, Work

import ultima
from ultima.torch.backend.elements import FLOATS, as_real
from ultima.torch.backend.group import UltimaProcessGroup
from ultima.torch.backend.work import TorchPart, UltimaWork
from ultima.torch.ft.verdict import Verdict


class Generation(UltimaProcessGroup):
    """A process group whose sums of floats hold the values of all members, or fail; or which hold the average of those
    that came, times the number of members.
    """

    log: Verdict

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        lacking: str,
        deadline_s: float | None,
    ) -> None:
        """|lacking|: one of `LACKING`. |deadline_s|: seconds that a sum may take, None for ULTIMA_DEADLINE, and without
        that |timeout|. Raises as UltimaProcessGroup.
        """
        super().__init__(store, rank, size, timeout, name)
        self.log = Verdict(lacking)
        self._average = lacking == "average"
        self._mode = "bounded" if self._average else "reliable"
        self._agree = self._average
        if deadline_s is not None:
            self._deadline_s = deadline_s

    def _by_ultima(
        self, job: ultima.Job, tensors: list[torch.Tensor], op: str, *given: Any, asynchronous: bool, **named: Any
    ) -> Work:
        lossy = all(as_real(tensor).dtype in FLOATS for tensor in tensors)
        if not self._average or op != "sum" or not lossy:
            return super()._by_ultima(job, tensors, op, *given, asynchronous=asynchronous, **named)
        size = self.size()

        def scale() -> None:
            for tensor in tensors:
                tensor.detach().mul_(size)

        average = super()._by_ultima(job, tensors, "avg", *given, asynchronous=False, **named)
        work = UltimaWork(tensors, [TorchPart(average)], scale, self.log, self._finishers, self._order)
        return self._sent(work, asynchronous)

    def close(self) -> None:
        """Ends ops under way with an error, and gives back all threads, memory and connections."""
        self.abort()
        self._end_gloo()
