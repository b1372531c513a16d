# SPDX-License-Identifier: Apache-2.0
"""`ProcessGroupUltima`: what torchft's Manager reconfigures whenever its quorum changes.

torchft asks its lighthouse before each step who is there, and calls `configure` where that has changed. Whether a step
is taken the ranks vote on at its end; an error in any collective is a vote against it.

The interface is that of `torchft.process_group.ProcessGroup` 0.2, which is the base class where torchft is installed.
Without torchft any other manager may drive it by the same calls.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, TCPStore, Work

from ultima.base.durations import Duration, deadline_s
from ultima.base.errors import ClosedHandle, InvalidArgument
from ultima.torch.ft.forwarding import Forwarding
from ultima.torch.ft.generation import Generation
from ultima.torch.ft.verdict import LACKING

if TYPE_CHECKING:
    _Base = dist.ProcessGroup
else:
    try:
        from torchft.process_group import ProcessGroup as _Base
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchft":
            raise
        _Base = dist.ProcessGroup

TIMEOUT = timedelta(seconds=60)


class ProcessGroupUltima(Forwarding, _Base):
    """A process group for torchft's Manager, whose members reduce through the daemons of their hosts.

        manager = torchft.Manager(pg=ProcessGroupUltima(), ...)

    timeout: limit of `configure`, and of each collective that names none.
    lacking: what becomes of a sum or an average of floats that lacks the values of a member. "discard": the collective
        raises, so the step is not taken. A member that is late is waited for, until `deadline`; one that died ends it
        at once. "average": a sum is the average of what came, times the number of members, the same on all of them, and
        the step is taken; where members cannot have the same by `deadline`, it raises as well.
    deadline: of such collectives; ULTIMA_DEADLINE by default, and without that `timeout`.

    Raises InvalidArgument.
    """

    _generation: Generation | None
    _missing = "process group not initialized: configure() was not called, or the group was aborted"

    def __init__(
        self, timeout: timedelta = TIMEOUT, *, lacking: str = "discard", deadline: Duration | None = None
    ) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # torch's stubs lack it
        if lacking not in LACKING:
            raise InvalidArgument("lacking", lacking, ", ".join(LACKING))
        if timeout <= timedelta(0):
            raise InvalidArgument("timeout", timeout, "a datetime.timedelta above 0")
        self._timeout, self._lacking = timeout, lacking
        self._deadline_s = None if deadline is None else deadline_s(deadline, "deadline")
        self._changing = threading.Lock()
        self._generation = None
        self._aborted = False

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Begins a new generation, of |world_size| members, and ends the one before, whose collectives under way raise.

        store_addr: "host:port/prefix" of a TCPStore, with a prefix that no earlier call had, the same on all members.
        replica_id, group_world_size, global_ranks: taken, and not needed. rank: of this process among the members.
        quorum_id, group_rank: stand in the name of the job, for `ultima status`.

        Raises InvalidArgument, JoinTimeout when members did not come within the timeout, and DaemonError when a
        member's daemon does not answer. Then there is no generation, and a later call may succeed.
        """
        host, port, prefix = _store_address(store_addr)
        if not 0 <= rank < world_size:
            raise InvalidArgument("rank", rank, f"0 to {world_size - 1}, as world_size is {world_size}")
        with self._changing:
            self._end()
            self._aborted = False
            client = TCPStore(host, port, None, False, self._timeout, wait_for_workers=False)
            store = PrefixStore(prefix, client)
            name = f"quorum-{'?' if quorum_id is None else quorum_id}-{group_rank or 0}"
            self._generation = Generation(store, rank, world_size, self._timeout, name, self._lacking, self._deadline_s)

    def abort(self, errored: bool = True) -> None:
        """Ends the generation: its collectives under way raise, and so do those that are called before the next
        `configure`. |errored| is taken, and not needed.
        """
        with self._changing:
            self._aborted = self._end() or self._aborted

    def shutdown(self) -> None:
        """As `abort`, for good: `errored` has nothing to say afterwards."""
        with self._changing:
            self._end()

    def errored(self) -> Exception | None:
        """The first error among the collectives since the last call, whether or not somebody waited for them; what says
        that the group was aborted; else None. The step in which it is not None must not be taken.
        """
        generation = self._generation
        if generation is None:
            return ClosedHandle("the process group was aborted") if self._aborted else None
        return generation.log.take_error()

    def set_timeout(self, timeout: timedelta) -> None:
        """|timeout|: of collectives from now on, and of the next `configure`."""
        self._timeout = timeout
        if self._generation is not None:
            self._generation.set_timeout(timeout)

    def getBackendName(self) -> str:
        """What torchft prints of this group."""
        return "torchft-ultima"

    def broadcast_one(self, tensor: torch.Tensor, root: int) -> Work:
        """`broadcast` of one tensor from rank |root|."""
        opts = BroadcastOptions()
        opts.rootRank = root
        return self.parent.broadcast([tensor], opts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lacking={self._lacking!r})"

    def _end(self) -> bool:
        """Ends the generation; False where there was none. With the lock."""
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()
        return generation is not None


def _store_address(text: str) -> tuple[str, int, str]:
    """Host, port and prefix of "host:port/prefix". A host may be an IPv6 address, in brackets or not."""
    where, slash, prefix = text.partition("/")
    host, _, port = where.rpartition(":")
    if not host or not slash or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidArgument("store_addr", text, '"host:port/prefix"')
    return host.strip("[]"), int(port), prefix
