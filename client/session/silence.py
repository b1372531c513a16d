# SPDX-License-Identifier: Apache-2.0
"""A daemon that lives and does not answer. A busy host is no lost daemon, so an op may end without its word.

An op that may be incomplete then ends with the caller's own values. The engine may still read and write what it was
told to: the op stays outstanding, its staging memory is kept from others, and the late answer is thrown away. Only
when many calls in a row have had no answer for long, the daemon counts as lost; and not for good, since it may answer
again.
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

from ultima.base.errors import DaemonLost
from ultima.session.op import Op

CALLS_MOST = 10
"""So many calls in a row may go unanswered. At one or two this would be a matter of one long break."""
SILENCE_NS = 10_000_000_000
"""And for so long a daemon may be silent: the time after which a service manager ends one that shows no sign of life
(WatchdogSec of the shipped unit). Calls whose deadlines are short make ten in a row within a second."""
TOLD_EVERY_NS = 60_000_000_000


class Silence:
    """How long the daemon of one session has been silent. The session guards it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._calls = 0
        self._since_ns = 0
        self._told_ns = -TOLD_EVERY_NS

    def end(self) -> None:
        """The daemon has said something."""
        self._calls = 0

    def limit_ns(self, op: Op) -> int:
        """Until when a call waits for its answer: longer than its own time where the daemon may still write to the
        caller's array, which so is not his to use."""
        return op.expires_ns + (SILENCE_NS if op.may_be_alone and not op.is_apart else 0)

    def patience_ns(self, op: Op) -> int:
        """Until when an op may wait for its turn. What ops hold that ended without the daemon it gives back once it
        answers again; to end the session before would lose the job to a busy host."""
        return op.expires_ns + (SILENCE_NS if self._calls else 0)

    def patience_s(self, op: Op) -> float:
        """The same as seconds from now on; 0 once it is past."""
        return max(0.0, (self.patience_ns(op) - time.monotonic_ns()) / 1e9)

    def lasts(self, op: Op) -> bool:
        """A call has had no answer in its time. Whether the daemon counts as lost by now."""
        if not self._calls:
            self._since_ns = op.submitted_ns
        self._calls += 1
        return self._is_long()

    def _is_long(self) -> bool:
        return self._calls >= CALLS_MOST and time.monotonic_ns() - self._since_ns >= SILENCE_NS

    def lost(self, op: Op) -> DaemonLost:
        """The exception of an op that has no result without the daemon."""
        silent_s = (time.monotonic_ns() - self._since_ns) / 1e9
        return DaemonLost(
            "silent" if self._is_long() else "unresponsive",
            f"op {op.seq}: the daemon of this host did not answer by the deadline and 50 ms of grace, and has been "
            f"silent for {silent_s:.3g} s. It did not hang up: {self.why()}. Give the op a longer deadline, or the "
            "host more CPU time",
        )

    def blame(self) -> str:
        """The end of a sentence about what a silent daemon may be to blame for."""
        return f"; the daemon of this host did not answer the last calls: {self.why()}" if self._calls else ""

    def alone(self, op: Op) -> list[str]:
        """What a person should read of an op that ended with own values; nothing where that was told lately."""
        text = (
            f"did not answer by the deadline and 50 ms of grace: {self.why()}. This rank goes on with its own values "
            "(INSUFFICIENT). The other ranks may have its values in their results, so replicas may drift apart. Give "
            "the ops a longer deadline, or the host more CPU time"
        )
        return self._told(op, text)

    def late(self, op: Op) -> list[str]:
        """The same of an op that had to wait beyond its deadline, as its array lies in the arena."""
        if op.failure is not None:
            return []
        text = (
            f"answered {(time.monotonic_ns() - op.expires_ns) / 1e6:.0f} ms too late: it was stopped, or short of CPU "
            "time. The array lies in the arena, where the daemon writes, so the call had to wait for it"
        )
        return self._told(op, text)

    def _told(self, op: Op, text: str) -> list[str]:
        now_ns = time.monotonic_ns()
        if now_ns - self._told_ns < TOLD_EVERY_NS:
            return []
        self._told_ns = now_ns
        return [f"op {op.seq}: the daemon of this host {text}"]

    def why(self) -> str:
        """What the kernel says of the daemon's process, as a clause."""
        try:
            pid = struct.unpack("3i", self._line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # another PID namespace
            return "it is stopped, or short of CPU time"
        if state in "Tt":
            return f"its process {pid} is stopped by a signal (SIGCONT lets it go on)"
        return f"its process {pid} is short of CPU time, or hangs"
