# SPDX-License-Identifier: Apache-2.0
"""torch's own way to change a group: `init_process_group("ultima", enable_reconfigure=True)`, from torch 2.14 on.

The program brings the *handles* of all members together, by whatever means, and each member calls
`dist._reconfigure(uuid, handles)`. A handle says where the daemon of a member is reached, and which life of which rank
it stands for. So the handles are all that the members of a new generation have to know of each other: its job is named
after them, and nobody has to be asked.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, Work

from ultima.base.errors import DaemonUnavailable, InvalidArgument, JoinTimeout
from ultima.base.receipt import ranks_text
from ultima.launch.reach import daemon_reach
from ultima.settings.config import DEFAULT_SOCKET, socket_path
from ultima.torch.backend.delegate import NEEDS_STAND_IN, PEER_TO_PEER, PythonBackend, give_collectives
from ultima.torch.backend.group import UltimaProcessGroup
from ultima.torch.backend.mixed import FORWARDED
from ultima.torch.backend.receipt_log import ReceiptLog
from ultima.torch.backend.rendezvous import Meeting, job_prefix
from ultima.torch.backend.work import Finishers, UltimaWork
from ultima.torch.ft.forwarding import Forwarding

KIND = "ultima:v1"
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Member:
    """What a handle says: KIND:daemon:life:change:address:port, where the address may have colons."""

    daemon: int
    """Its life: a number that no other daemon has."""
    life: str
    """Of the rank's process group: drawn when it was made."""
    change: int
    """How many generations it has had: a handle serves for one."""
    address: str
    """Of the daemon, "address:port"; empty for one that serves its own host alone."""

    @property
    def who(self) -> tuple[int, str]:
        """The same in all its handles."""
        return self.daemon, self.life

    def handle(self) -> str:
        return f"{KIND}:{self.daemon:x}:{self.life}:{self.change}:{self.address}"


def _member(handle: str) -> Member:
    parts = handle.removeprefix(f"{KIND}:").split(":", 3)
    try:
        if not handle.startswith(f"{KIND}:"):
            raise ValueError
        return Member(int(parts[0], 16), parts[1], int(parts[2]), parts[3])
    except (ValueError, IndexError):
        raise InvalidArgument("handles", handle, "what `get_reconfigure_handle` of a group of Ultima's gave") from None


class UsedBefore(InvalidArgument, RuntimeError):
    """A uuid that this group was reconfigured with already. A RuntimeError too, as torch's own backends raise."""


class Steered(UltimaProcessGroup):
    """A generation whose members are known: nobody has to be asked for them."""

    def __init__(
        self, members: Sequence[Member], meeting: Meeting, store: Store, rank: int, timeout: timedelta, name: str
    ) -> None:
        self.members, self._meeting = [each.who for each in members], meeting
        self._between_two = False
        super().__init__(store, rank, len(members), timeout, name)

    def standing(self) -> str:
        """What has been done in it, the same on members who may go on in it; "" where it cannot go on: something is
        under way, or was passed between two members, one of whom may have done his part alone.
        """
        self._stages.drain()
        number = None if self._job is None else self._job.next_op_seq
        if number is None or self._between_two or not (self._order.idle and self._line.idle):
            return ""
        return f"{self._meeting.number} {number}"

    def go_on(self, timeout: timedelta) -> None:
        """Begins its next generation, with receipts of its own."""
        self.log = ReceiptLog(self.log.raises)
        self.set_timeout(timeout)

    def _meet(self, *given: Any) -> Meeting:
        return self._meeting

    def _call_gloo(self, name: str, *args: Any, **named: Any) -> Work:
        self._between_two = self._between_two or name in PEER_TO_PEER
        return super()._call_gloo(name, *args, **named)


class _Door(PythonBackend):
    """What torch keeps where it looks for a group's backends: |group|, by another name."""

    supports_reconfigure = True

    def __init__(self, group: ReconfigurableProcessGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._group = weakref.ref(group)

    def getBackendName(self) -> str:
        return "ultima"

    def get_error(self) -> Any:
        from torch._C._distributed_c10d import ErrorType

        return ErrorType.SUCCESS

    def abort(self) -> None:
        self._of().abort()

    def shutdown(self) -> None:
        self._of().shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        self._of().set_timeout(timeout)

    def get_reconfigure_handle(self) -> str:
        return self._of().get_reconfigure_handle()

    def reconfigure(self, opts: Any) -> Work:
        return self._of().reconfigure(opts)

    def _of(self) -> ReconfigurableProcessGroup:
        group = self._group()
        assert group is not None, "the group keeps its door"
        return group

    def _call(self, name: str, *args: Any, **named: Any) -> Work:
        work: Work = getattr(self._of(), FORWARDED[name])(*args, **named)
        return work


give_collectives(_Door, FORWARDED, "_call", "The group's")


class ReconfigurableProcessGroup(Forwarding, dist.ProcessGroup):
    """A process group without members until the first `reconfigure`, and with those of the last one that succeeded.

    |store|: for what goes to Gloo; all members that ever come must reach it.
    """

    _generation: Steered | None
    _missing = "the process group has not been initialized: call reconfigure() before any collective, and after abort()"
    supports_reconfigure = True

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs lack it
        self._store, self._first, self._timeout, self._name = store, (rank, size), timeout, name
        self._generation = None
        self._life, self._change = secrets.token_hex(8), 0
        self._given: Member | None = None
        self._used: set[int] = set()
        self._changing = threading.Lock()
        self._door = _Door(self, rank, size) if NEEDS_STAND_IN else None
        for device in DEVICES if torch.cuda.is_available() else DEVICES[:1]:
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._door)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def getBackendName(self) -> str:
        return "ultima"

    def rank(self) -> int:
        """This process's number among the members; before the first `reconfigure` what the program said."""
        return self._first[0] if self._generation is None else self._generation.rank()

    def size(self) -> int:
        """How many members there are; before the first `reconfigure` what the program said."""
        return self._first[1] if self._generation is None else self._generation.size()

    getRank, getSize = rank, size

    def get_reconfigure_handle(self) -> str:
        """What the other members need of this one for the next `reconfigure`. Raises DaemonError."""
        self._given = self._own()
        return self._given.handle()

    def reconfigure(self, opts: Any) -> Work:
        """Changes to the members that |opts.handles| name: a list says their ranks by place; of a set, ranks follow the
        order of the handles. Returns when all are there, with a Work that has ended.

        The collectives under way end with an error. Members that are the same as before, in the same order, go on in
        the job that they have, if nothing is under way on any of them, all have called as many ops, and nothing was
        sent from one to another (`send`, `recv`). Where this raises, the members from before are still in force, and
        it may be called again with another uuid: InvalidArgument for handles that are not the newest ones or a uuid
        that was used, JoinTimeout when members do not come within |opts.timeout|, DaemonError when a daemon does not
        answer.
        """
        timeout = opts.timeout or self._timeout
        with self._changing:
            limit = time.monotonic() + timeout.total_seconds()
            own = self._newest().handle()
            handles = self._checked(opts, own)
            members = [_member(handle) for handle in handles]
            meeting = self._meeting_of(opts.uuid, handles, members)
            self._used.add(opts.uuid)
            store, rank = PrefixStore(meeting.number, self._store), handles.index(own)
            before = self._generation
            if len(members) > 1 and all_say(store, rank, len(members), self._standing(members), timeout):
                assert before is not None
                before.go_on(self._timeout)
            else:
                left = timedelta(seconds=max(0.001, limit - time.monotonic()))
                made = Steered(members, meeting, store, rank, left, self._name)
                made.set_timeout(self._timeout)
                self._generation = made
                if before is not None:
                    _close(before)
            self._change += 1
        return UltimaWork([], [], None, ReceiptLog(), Finishers())

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        if self._generation is not None:
            self._generation.set_timeout(timeout)

    def abort(self) -> None:
        """Ends collectives under way with an error; the next `reconfigure` makes the group usable again."""
        with self._changing:
            generation, self._generation = self._generation, None
            if generation is not None:
                self._first = generation.rank(), generation.size()
                self._change += 1
                _close(generation)

    shutdown = abort

    def _standing(self, members: list[Member]) -> str:
        """That of the generation of now, if it is of these."""
        generation = self._generation
        same = generation is not None and generation.members == [each.who for each in members]
        return generation.standing() if generation is not None and same else ""

    def _newest(self) -> Member:
        """As `_own`. The daemon is not asked where the job shows that it is still the one that was."""
        given, generation = self._given, self._generation
        if given is None or generation is None or generation.job is None or given.change != self._change:
            return self._own()
        same = generation.members[generation.rank()] == given.who and generation.job.connected
        return given if same and not generation.job.reconnects else self._own()

    def _own(self) -> Member:
        path = socket_path(os.environ.get("ULTIMA_SOCKET") or DEFAULT_SOCKET, "ULTIMA_SOCKET")
        reach = daemon_reach(path)
        return Member(reach.life, self._life, self._change, reach.address)

    def _checked(self, opts: Any, own: str) -> list[str]:
        """The handles in the order of the ranks."""
        handles = sorted(opts.handles) if isinstance(opts.handles, (set, frozenset)) else list(opts.handles)
        if opts.uuid in self._used:
            raise UsedBefore("uuid", opts.uuid, "a number that is not already used by this group")
        if len(set(handles)) < len(handles):
            raise InvalidArgument("handles", f"{len(handles)} with one of them twice", "each member once")
        if own not in handles:
            raise InvalidArgument(
                "handles", f"{len(handles)} of which none is this member's", f"the newest of each member, here {own}"
            )
        return handles

    def _meeting_of(self, uuid: int, handles: list[str], members: list[Member]) -> Meeting:
        """What the ranks would have agreed on, had they met: the same on all of them, by the handles alone."""
        alone = [member for member in members if not member.address]
        if alone and len({member.daemon for member in members}) > 1:
            raise DaemonUnavailable(
                "a daemon has no `bind` and serves its own host alone, but the members are on several: start it with "
                "--bind ADDR and certificates"
            )
        number = hashlib.blake2b(f"{uuid} {' '.join(handles)}".encode(), digest_size=8).hexdigest()
        addresses = () if alone else tuple(member.address for member in members)
        return Meeting(f"{job_prefix(self._name)}-{number}", number, addresses)


def all_say(store: Store, rank: int, size: int, word: str, timeout: timedelta) -> bool:
    """Tells the other members |word|, and returns whether it is not "" and each of them says the same: the same answer
    on all of them. Raises JoinTimeout, which names those that did not come within |timeout|.
    """
    keys = [f"standing/{each}" for each in range(size)]
    store.set(keys[rank], word or "anew")
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        missing = [each for each in range(size) if not store.check([keys[each]])]
        if not missing:
            raise
        raise JoinTimeout(
            f"{ranks_text(missing)} of {size} did not come to the change within {timeout.total_seconds():g} s"
        ) from None
    return bool(word) and {bytes(said) for said in store.multi_get(keys)} == {word.encode()}


def _close(generation: UltimaProcessGroup) -> None:
    """Ends the collectives under way with an error. Gloo's threads end meanwhile: they look every 10 ms whether they
    are to, and the interpreter waits for the thread that waits for them.
    """
    generation.abort()
    try:
        threading.Thread(target=generation._end_gloo, name="ultima-torch-end").start()
    except RuntimeError:  # the process ends, or may have no further thread
        generation._end_gloo()
