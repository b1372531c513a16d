# SPDX-License-Identifier: Apache-2.0
"""A rank that a test has connected: its seat at its engine, and the two sockets that a daemon and a trainer share."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from ultima.base.words import NEVER, RING_ENTRIES
from ultima.session.attachment import Asked, Completion, SlotWords
from ultima.session.op import Op
from ultima.testing.call import Call
from ultima.testing.seat import Seat


class Trainer:
    """See the module. Owns the daemon's ends of the life line and of the completion bell."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.lifeline, self._lifeline = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.bell, self._bell = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.lifeline.setblocking(False)
        self._open = True

    def alive(self) -> bool:
        """Whether the trainer still holds its end."""
        if not self._open:
            return False
        try:
            return bool(self._lifeline.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def wake(self) -> None:
        """There are completions."""
        if self._open:
            with contextlib.suppress(OSError):  # not heard yet, or nobody there
                self._bell.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def hang_up(self) -> None:
        """Ends the session. Idempotent."""
        if self._open:
            self._open = False
            self._lifeline.close()
            self._bell.close()


class FakeRings:
    """The rings of one session, as the client has them."""

    lanes = 1

    def __init__(self, trainer: Trainer, submitted: Callable[[Trainer, Call], bool], skipped_ns: Callable[[], int]):
        """`submitted` takes a request whose deadline is by the fake's clock, which is `skipped_ns` ahead of ours."""
        self._seat = trainer.seat
        self._trainer, self._submitted, self._skipped_ns = trainer, submitted, skipped_ns

    def portions_of(self, op: Op) -> int:
        """See `ultima.session.attachment.Rings`."""
        return 1

    def have_room(self, op: Op) -> bool:
        """See `ultima.session.attachment.Rings`."""
        return self._seat.outstanding < RING_ENTRIES

    def submit(self, op: Asked) -> bool:
        """See `ultima.session.attachment.Rings`."""
        deadline_ns = op.deadline_ns if op.deadline_ns == NEVER else op.deadline_ns + self._skipped_ns()
        return self._submitted(self._trainer, Call.of(op, deadline_ns))

    def take(self) -> Completion | None:
        """See `ultima.session.attachment.Rings`."""
        return self._seat.take()

    def words(self) -> SlotWords:
        """See `ultima.session.attachment.Rings`."""
        return self._seat.rings.words()

    def after_fork(self) -> None:
        """See `ultima.session.attachment.Rings`; the arena's mapping is looked after by the arena."""
        self._seat.rings.after_fork()

    def close(self) -> None:
        """See `ultima.session.attachment.Rings`; there is nothing."""
