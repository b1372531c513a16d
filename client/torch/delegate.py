# SPDX-License-Identifier: Apache-2.0
"""The collectives that Gloo does for us, each called on the inner group from Python.

Leaving them to torch's default looks the same and deadlocks: torch 2.13 calls the base implementation of a collective
that a Python process group does not override *with the GIL held*, and Gloo's worker thread takes the GIL with the lock
in hand that the caller then waits for. The inner group's own Python methods release the GIL.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

# What torch calls on the group, and what the inner group calls it.
DELEGATED = {
    "_allgather_base": "_allgather_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "all_gather_single": "_allgather_base",
    "all_to_all_single": "alltoall_base",
    "allgather": "allgather",
    "allgather_coalesced": "allgather_coalesced",
    "allreduce_coalesced": "allreduce_coalesced",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall_base",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "recv": "recv",
    "recv_anysource": "recv_anysource",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "scatter": "scatter",
    "send": "send",
}


class DelegatingProcessGroup(dist.ProcessGroup):
    """A process group whose collectives are those of `_gloo`, until a subclass has its own. Arguments and results are
    torch's, whatever form of the overloaded method was called.
    """

    _gloo: ProcessGroupGloo


def _delegating(name: str, inner: str) -> Any:
    def collective(self: DelegatingProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._gloo, inner)(*args, **kwargs)

    collective.__name__ = name
    collective.__qualname__ = f"{DelegatingProcessGroup.__name__}.{name}"
    collective.__doc__ = f"Gloo's `{inner}`."
    return collective


for _name, _inner in DELEGATED.items():
    setattr(DelegatingProcessGroup, _name, _delegating(_name, _inner))
