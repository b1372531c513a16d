# SPDX-License-Identifier: Apache-2.0
"""A number that each rank of an elastic job says of itself, and hears of the others, without an op.

The daemons pass it on as they pass on what ranks say of their state (newcomers.py). So it is for a job of its own,
whose ranks call neither `share` nor `sync_state`.
"""

from __future__ import annotations

import time
from contextlib import suppress

from ultima.api.connection import Connection
from ultima.base.errors import DaemonLost, Unsupported
from ultima.session.session import Session
from ultima.state.chosen import Word

ATTACH_S = 10.0  # for a daemon that was lost to be back
WAIT_S_MAX = 1.0


class Words:
    """This rank's end, over the connection of the job. One thread hears, and any may say."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session: Session | None = None
        """In which something was heard."""
        self._table = 0

    def say(self, number: int) -> None:
        """Says a whole number, 0 or more, in the place of the last one. While the daemon is away nothing is said."""
        session = self._session
        if session is not None and session.state_line is not None:
            with suppress(ConnectionError):
                session.state_line.turn(_word(number), 0, (0, b""), 0.0)

    def hear(self, number: int, wait_s: float) -> tuple[int, ...]:
        """Says it; returns what the ranks of the newest view say, this one among them: as soon as that is news, and
        after `wait_s` (1 s at most). Raises what attaching again raises, DaemonLost, and Unsupported."""
        self._connection.session.look()  # whether the daemon hung up
        session = self._connection.ready(time.monotonic_ns() + int(ATTACH_S * 1e9))
        if session.state_line is None:
            raise Unsupported("Outer", "grace in an elastic job: this daemon passes on no words of ranks")
        if session is not self._session:
            self._session, self._table = session, 0
        try:
            told = session.state_line.turn(_word(number), self._table, (0, b""), min(wait_s, WAIT_S_MAX))
        except ConnectionError as error:
            raise DaemonLost("hangup", f"what other ranks say did not come: {error}") from None
        self._table = told.table
        return tuple(each.word.revision for each in told.ranks if each.word is not None)


def _word(number: int) -> Word:
    return Word(number, False, False, b"", 0, number)
