# SPDX-License-Identifier: Apache-2.0
"""A rank that a test has connected: its seat at its engine, and the two sockets that a daemon and a trainer share."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from ultima.session.rings import NativeRings
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


class FakeRings(NativeRings):
    """The rings of one session: what the client has in production, and a word to the fake instead of an eventfd."""

    def __init__(self, trainer: Trainer, submitted: Callable[[Trainer], None], *places: Any, **named: Any) -> None:
        """`places` and `named` are those of NativeRings, behind the rings."""
        maps = trainer.seat.submissions_map, trainer.seat.completions_map
        super().__init__([maps], *places, **named)
        self._trainer, self._submitted = trainer, submitted

    def submit(self, *request: Any) -> bool:
        """See `ultima.session.attachment.Rings`."""
        taken = super().submit(*request)
        if taken:
            self._submitted(self._trainer)
        return taken
