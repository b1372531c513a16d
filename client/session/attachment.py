# SPDX-License-Identifier: Apache-2.0
"""What the client needs of a daemon: the seam between the real one (attach.py, rings.py) and that of tests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ultima.base.receipt import Host, Receipt
from ultima.base.views import View
from ultima.session.arena import Arena
from ultima.settings.config import Settings
from ultima.state.chosen import Turn, Word

if TYPE_CHECKING:
    from ultima.session.op import Op

# How much later than the deadline the waiting side gives up, and the share of the time that the engine gets.
GRACE_NS = 50_000_000
ENGINE_SHARE = 0.95


class Completion(NamedTuple):
    """What a completion ring says of an op. `culprit` is a host index; `error`, `field` and the values are numbers of
    words.py.
    """

    op_seq: int
    error: int
    culprit: int | None
    field: int
    value_here: int
    value_there: int
    receipt: Receipt
    call_seq: int = -1
    """Number of the submission that this answers; -1: op_seq."""
    status: int = 0
    """As the engine says it: of words.py, for what Receipt.status has no word."""
    lacks: bool = False
    """Of a sparse allreduce: the result lacks some of what this host gave, and that stands where it was given."""
    early: bool = False
    """Of a call that is split: ranks differ in one portion, so it has failed; the engine is not through with all."""

    @property
    def number(self) -> int:
        """Of the submission."""
        return self.op_seq if self.call_seq < 0 else self.call_seq


class GiftWords(NamedTuple):
    """What a partial job's engine tells besides completions (`ut_completion_ring`). Numbers of submissions plus one."""

    taken: int = 0
    """The newest whose contribution an op took."""
    freed: int = 0
    """The newest such that the engine reads neither it nor an earlier one, the gift that waits excepted."""
    results: int = 0
    """Number of the newest op that ended here with a result, plus one."""


class Rings(Protocol):
    """The way of a session's ops to the engine and back. Not thread-safe."""

    @property
    def lanes(self) -> int:
        """Threads of the daemon that share the job's ops."""
        ...

    def portions_of(self, op: Op) -> int:
        """Into how many portions the engine's threads are to do it; the same on all ranks that call the same."""
        ...

    def have_room(self, op: Op) -> bool:
        """Whether an op with a number can be submitted now: at most 64 are outstanding in its lane."""
        ...

    def submit(self, op: Op) -> bool:
        """Asks the engine for an op that has its number and its place in the arena. False where there was no room."""
        ...

    def take(self) -> Completion | None:
        """The next completion, or None. They may come in another order than their ops."""
        ...

    def words(self) -> GiftWords:
        """What a partial job's engine tells now. All 0 in others, and in a forked child."""
        ...

    def after_fork(self) -> None:
        """In a forked child: gives up the mappings."""
        ...

    def close(self) -> None:
        """Gives back what only submitting needs."""
        ...


class StateLine(Protocol):
    """What the daemon does for ranks that give or take state (trainer.proto). Both raise ConnectionError when it does
    not."""

    def turn(
        self, word: Word | None, table: int, answer: tuple[int, bytes], wait_s: float, ready: bool = False
    ) -> Turn:
        """Says a word, and answers a wish (0 for none); what others say, as soon as it is not that table any more.
        ready: this rank followed the others, and is to be in their ops now."""
        ...

    def give(self, answer: tuple[int, bytes], wait_s: float) -> Turn:
        """The turn of who gives to followers: answers a wish, and returns the next one, as soon as there is one."""
        ...

    def read(
        self, rank: int, root: bytes, parts: Sequence[int], kind: int = 0, op_seq: int = 0
    ) -> Iterator[tuple[int, bytes]]:
        """Parts of the state of another rank; with none of them, its list. kind: what else (`Kind`)."""
        ...

    def moved(self, sent: int = 0, received: int = 0) -> None:
        """Bytes of state that went another way, for the next turn to tell."""
        ...

    def another(self) -> StateLine:
        """One more for the same rank, with a connection of its own."""
        ...

    def close(self) -> None:
        """Ends calls that are under way."""
        ...


class RoundLine(Protocol):
    """Tells the daemon of rounds of local SGD (trainer.proto). What it does not take is lost."""

    def tell(self, members: Sequence[tuple[int, float, bool]], facts: Mapping[str, Any]) -> None:
        """See `ultima.api.round_news.tell_round`."""
        ...

    def close(self) -> None:
        """Ends, after a moment for what was told last."""
        ...


@dataclass(slots=True)
class Attachment:
    """One session with a daemon, ready for ops. Whoever holds it owns the sockets and descriptors."""

    rings: Rings
    arena: Arena
    lifeline: socket.socket
    """Hangs up when the daemon dies."""
    bell: socket.socket
    """Readable when there are completions: a byte or more, which say nothing else."""
    hosts: tuple[Host, ...]
    host_index: int
    rank: int
    next_op_seq: int
    bucket_bytes_max: int
    leave: Callable[[float, float, int], None]
    """Says good-bye within so many seconds; failing to is not an error, the hang-up says the same. The second number:
    seconds for the others to agree that this rank leaves, where hosts come and go; and the first op that it does not
    call."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the job, in words."""
    sparse: bool = False
    """Whether the daemon sums sparse contributions."""
    view: View | None = None
    """Where hosts come and go: who is in the job."""
    state_line: StateLine | None = None
    """The same: how newcomers get their state."""
    round_line: RoundLine | None = None
    """None where nobody listens."""

    def close(self, dropped: bool = False) -> None:
        """Hangs up. The arena stays as long as something holds memory of it.

        dropped: by a destructor, or in a forked child. Threads that gRPC would wait for may have ended there: those of
        a program that ends do before its objects.
        """
        if self.round_line is not None and not dropped:
            self.round_line.close()
        self.lifeline.close()
        self.bell.close()
        self.rings.close()


class Connector(Protocol):
    """Makes attachments."""

    def attach(self, settings: Settings, until_ns: int, patience_ns: int, next_op_seq: int | None = None) -> Attachment:
        """Attaches and joins by `until_ns`; keeps trying until `patience_ns` while there is no daemon.

        Both are CLOCK_MONOTONIC nanoseconds. `next_op_seq`: of a rank that comes back because its daemon was told to
        stop, the op that it calls next. Raises DaemonUnavailable, ProtocolError, JoinTimeout, JoinRefused, Desync,
        InvalidArgument or ResourceExhausted.
        """
        ...
