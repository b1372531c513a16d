# SPDX-License-Identifier: Apache-2.0
"""The collectives that Gloo does for us, each called on the inner group from Python.

Leaving them to torch's default looks the same and deadlocks: torch calls the base implementation of a collective
that a Python process group does not override *with the GIL held*, and Gloo's worker thread takes the GIL with the lock
in hand that the caller then waits for. The inner group's own Python methods release the GIL.

The inner group has one owner, here. Torch is told which devices the group serves, but not given Gloo to keep: with the
last reference Gloo's threads end, and they must end before the interpreter does. One that drops a tensor takes the GIL,
and to take it from a dying interpreter aborts the process (seen with torch's own Gloo group in 8 of 200 processes).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroupGloo, Store, Work

from ultima.base.errors import ClosedHandle

GLOO_THREADS = 2  # for each device, as torch has it

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


# Between two ranks, and no business of the others.
PEER_TO_PEER = frozenset({"recv", "recv_anysource", "send"})

# What Gloo gives back for these has no Future.
WITHOUT_FUTURE = frozenset({"_reduce_scatter_base", "reduce_scatter"})

# Of these the number of elements says all, unless lists of sizes come with the tensors. Shapes do not matter to NCCL,
# and SyncBatchNorm gathers into (1, n); Gloo takes the first dimension for a multiple of ranks, or of the other one.
COUNTED = frozenset({"_allgather_base", "_reduce_scatter_base", "alltoall_base"})

# Gloo copies tensors from an accelerator to the host and back, but not in these: there it takes the address of such a
# tensor for one of the host's (ProcessGroupGloo.cpp, `send`, `recv`, `recvAnysource` and `allgather_coalesced`).
OF_THE_HOST = PEER_TO_PEER | {"allgather_coalesced"}


class _Gloo(ProcessGroupGloo):
    """Gloo's group, as |owner| has it. Torch's `_set_pg_timeout` tells this one alone, and it passes that on."""

    def __init__(self, owner: DelegatingProcessGroup, *args: Any) -> None:
        super().__init__(*args)
        self._owner = weakref.ref(owner)  # the owner's end is to be Gloo's, too

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super()._set_default_timeout(timeout)
        owner = self._owner()
        if owner is not None:
            owner._timeout = timeout


class PythonBackend(Backend):
    """A backend in Python, with none of what torch asks for by properties: its own ones ask for the same names again,
    without end (2.14).
    """

    supports_abort_hooks = supports_coalescing = supports_completion_hooks = supports_reconfigure = False
    supports_shrinking = supports_splitting = supports_window = _supports_time_estimate = False


class _StandIn(PythonBackend):
    """What torch finds where it keeps the backends of a group. From 2.14 on it asks there for rank and size, and since
    2.15 for more, when a group is made. It does nothing and owns no threads.
    """

    def getBackendName(self) -> str:
        return "ultima"


# Python makes one from 2.14 on. Before that torch is content with the name of a backend alone.
NEEDS_STAND_IN = hasattr(Backend, "supports_reconfigure")


class DelegatingProcessGroup(dist.ProcessGroup):
    """A process group whose collectives are those of `_gloo`, until a subclass has its own. Arguments and results are
    torch's, whatever form of the overloaded method was called. After `_end_gloo` they raise ClosedHandle.
    """

    _inner: ProcessGroupGloo | None = None
    _timeout: timedelta
    """How patient this group is."""

    def _start_gloo(self, store: Store, rank: int, size: int, timeout: timedelta, address: str = "") -> None:
        """Meets Gloo on the other ranks, which reach this one at |address|. GLOO_SOCKET_IFNAME goes first; with
        neither Gloo looks for what this host's name resolves to.
        """
        if address and not os.environ.get("GLOO_SOCKET_IFNAME"):
            options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
            options._devices = [ProcessGroupGloo.create_device(hostname=address)]
            options._timeout, options._threads = timeout, GLOO_THREADS
            self._inner = _Gloo(self, store, rank, size, options)
        else:
            self._inner = _Gloo(self, store, rank, size, timeout)
        self._stand_in = _StandIn(rank, size) if NEEDS_STAND_IN else None
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, self._stand_in)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def _end_gloo(self) -> None:
        """Waits for what Gloo has under way, as torch does, and ends its threads."""
        self._inner = None

    @property
    def _gloo(self) -> ProcessGroupGloo:
        if self._inner is None:
            raise ClosedHandle("the process group was destroyed")
        return self._inner

    def _get_backend(self, device: torch.device) -> ProcessGroupGloo:
        return self._gloo

    def _call_gloo(self, name: str, *args: Any, **named: Any) -> Work:
        """Calls Gloo's collective |name|, of contiguous tensors."""
        inner = DELEGATED.get(name, name)
        if inner in COUNTED and not any(isinstance(each, (list, tuple)) and each for each in (*args, *named.values())):
            args, named = tuple(map(_run, args)), {word: _run(each) for word, each in named.items()}
        work: Work = getattr(self._gloo, inner)(*args, **named)
        return work

    # Torch would keep these four in the backend that it was not given.

    _group_name = _group_desc = ""

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:
        self._group_desc = desc


def _run(given: Any) -> Any:
    taken = isinstance(given, torch.Tensor) and given.layout is torch.strided and given.is_contiguous()
    return given.view(-1) if taken else given


def give_collectives(kind: type, names: Mapping[str, str], call: str, whose: str) -> None:
    """Gives |kind| a method for each of |names|: torch's name of a collective, and that of what does it, |whose|. Such
    a method calls the one named |call|, with torch's name and all that it was given.
    """
    for name, inner in names.items():
        setattr(kind, name, _collective(name, f"{kind.__name__}.{name}", call, f"{whose} `{inner}`."))


def _collective(name: str, qualified: str, call: str, does: str) -> Callable[..., Work]:
    def collective(self: Any, *args: Any, **named: Any) -> Work:
        work: Work = getattr(self, call)(name, *args, **named)
        return work

    collective.__name__, collective.__qualname__, collective.__doc__ = name, qualified, does
    return collective


give_collectives(DelegatingProcessGroup, DELEGATED, "_call_gloo", "Gloo's")
