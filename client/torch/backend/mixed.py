# SPDX-License-Identifier: Apache-2.0
"""A group that has another backend for each kind of device, as in `init_process_group("cpu:ultima,cuda:nccl")`.

Torch keeps its own ProcessGroup then, and asks it for the backend of a tensor's device. Ours is a `Backend` in Python,
which torch knows from 2.14 on. A `ProcessGroup` that a plugin returns takes the place of all of them, without a word:
before 2.14, where a plugin can return nothing else, such a group is refused.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch._C._distributed_c10d import Work

from ultima.base.errors import InvalidArgument
from ultima.torch.backend.delegate import NEEDS_STAND_IN, PythonBackend, give_collectives

if TYPE_CHECKING:
    from ultima.torch.backend.group import UltimaProcessGroup

# What torch calls on a backend, and what ours has for it.
FORWARDED = {
    "all_gather_single": "all_gather_single",
    "all_gather_single_coalesced": "all_gather_single_coalesced",
    "all_to_all_single": "all_to_all_single",
    "allgather": "allgather",
    "allgather_coalesced": "allgather_coalesced",
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "allreduce_sparse": "allreduce",
    "alltoall": "alltoall",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "recv": "recv",
    "recv_anysource": "recv_anysource",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single_coalesced",
    "scatter": "scatter",
    "send": "send",
}

_held: set[UltimaBackend] = set()
"""Torch holds the C++ half of a backend alone; with its last reference in Python the other half would be gone."""


class UltimaBackend(PythonBackend):
    """The backend of some kinds of device in a group of torch's: |group| does its collectives."""

    def __init__(self, group: UltimaProcessGroup) -> None:
        super().__init__(group.rank(), group.size())
        self.group = group
        _held.add(self)

    def getBackendName(self) -> str:
        return self.group.getBackendName()

    def set_timeout(self, timeout: timedelta) -> None:
        self.group.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _call_group(self, name: str, *args: Any, **named: Any) -> Work:
        work: Work = getattr(self.group, FORWARDED[name])(*args, **named)
        return work

    # What torch's coalescing manager asks for, by the names that PyBackend.hpp looks for.

    def start_coalescing(self) -> None:
        self.group._start_coalescing(None)

    def end_coalescing(self) -> Work:
        return self.group._end_coalescing(None)

    def abort(self) -> None:
        self.group.abort()
        _held.discard(self)

    def shutdown(self) -> None:
        self.group.shutdown()
        _held.discard(self)


give_collectives(UltimaBackend, FORWARDED, "_call_group", "The group's")


def has_other_backends(depth: int) -> bool:
    """Whether the group that torch makes, |depth| frames above the caller, has another backend for some kind of device.

    Torch tells a plugin the options of its own backend alone; what was asked for stands in the variables of its caller.

    Raises InvalidArgument where torch would give all devices to ours.
    """
    config = sys._getframe(depth + 1).f_locals.get("backend_config")
    names = {} if config is None else config.get_device_backend_map()
    if len({*names.values()}) < 2:
        return False
    if not NEEDS_STAND_IN:
        raise InvalidArgument(
            "backend",
            ",".join(f"{device}:{name}" for device, name in names.items()),
            '"ultima" for all devices: a group with a backend for each kind of device takes torch 2.14 or newer',
        )
    return True


def group_in(group: dist.ProcessGroup) -> UltimaProcessGroup | None:
    """Ours among the backends of a group of torch's, on whatever kind of device; None where there is none."""
    if type(group) is not dist.ProcessGroup:
        return None
    for device in group._device_types:
        found = group._get_backend(device)
        found = getattr(found, "wrapped_pg", found)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(found, UltimaBackend):
            return found.group
    return None
