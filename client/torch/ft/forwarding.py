# SPDX-License-Identifier: Apache-2.0
"""A process group in front of another one that changes: whatever is called on it, the one of now does."""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import Work

import ultima
from ultima.base.errors import ClosedHandle
from ultima.base.receipt import Receipt
from ultima.torch.backend.delegate import DELEGATED, give_collectives
from ultima.torch.backend.group import UltimaProcessGroup
from ultima.torch.backend.receipt_log import ReceiptSummary

COLLECTIVES = {
    **{name: name for name in DELEGATED},
    "all_gather_single_coalesced": "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "allreduce": "allreduce",
    "reduce_scatter_single_coalesced": "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
}


class Forwarding:
    """What goes before torch's ProcessGroup among the bases of such a group."""

    _generation: UltimaProcessGroup | None = None
    _missing = "process group not initialized"
    """What is wrong where there is none, for people."""

    @property
    def parent(self) -> UltimaProcessGroup:
        """The process group of now. Raises ClosedHandle where there is none."""
        if self._generation is None:
            raise ClosedHandle(self._missing)
        return self._generation

    @property
    def job(self) -> ultima.Job | None:
        """The job of now; None where there is none, or where there is one member."""
        return None if self._generation is None else self._generation.job

    def size(self) -> int:
        return self.parent.size()

    def rank(self) -> int:
        return self.parent.rank()

    def last_receipts(self, count: int | None = None) -> list[Receipt]:
        """The receipts of this generation's last reductions, as `ultima.torch.last_receipts`."""
        return self.parent.log.last(count)

    def receipt_summary(self) -> ReceiptSummary:
        """What the receipts of this generation's reductions add up to."""
        return self.parent.log.summary()

    def _call(self, name: str, *args: Any, **named: Any) -> Work:
        work: Work = getattr(self.parent, name)(*args, **named)
        return work


give_collectives(Forwarding, COLLECTIVES, "_call", "The generation's")
