# SPDX-License-Identifier: Apache-2.0
"""Everything that `ultima` raises, as one tree.

Running out of time is a result, not an exception: a bounded op that ends without some rank says so in its receipt. An
exception means that you asked for something impossible, that you closed what you use, or that something broke. `str`
of it is a sentence for people.

    UltimaError
      x InvalidArgument (ValueError)    you asked wrongly; nothing was sent, no op number was used
      x ResourceExhausted               you asked for more than a limit, which is named
      x Unsupported                     this job cannot do that; do it another way
      x Desync                          the ranks called different things; every rank is told
      x HandleError                     you closed it
        - ClosedHandle                  close() was called on this job
        - ForkedHandle                  this process is a fork of the one that connected
      x DaemonError                     it broke
        - DaemonUnavailable             no daemon to attach to, or it does not answer
        - DaemonLost                    the daemon died under an attached job, or is silent for long
        - ProtocolError                 the daemon answered what this client does not understand
      x JoinRefused                     the daemon will not have this rank in this job
      x Insufficient                    an average holds no other host's part, and you asked to be told so
      x RanksGone                       a reliable op cannot finish: ranks have left or died
      x Behind                          the result of a step of a coded job is not here: take the model from another
      x TimedOut (TimeoutError)         it took too long where there is no partial result to give
        - JoinTimeout                   not every rank came to the job in time
        - DeadlineExceeded              a reliable op did not finish by its deadline
        - NotDone                       Handle.wait(timeout) gave up; the op itself goes on

Two handlers serve most programs: DaemonError (the next op attaches again by itself) and UltimaError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ultima.base.receipt import Receipt

__all__ = [
    "Behind",
    "ClosedHandle",
    "DaemonError",
    "DaemonLost",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "Desync",
    "ForkedHandle",
    "HandleError",
    "Insufficient",
    "InvalidArgument",
    "JoinRefused",
    "JoinTimeout",
    "NotDone",
    "ProtocolError",
    "RanksGone",
    "ResourceExhausted",
    "TimedOut",
    "UltimaError",
    "Unsupported",
]


class UltimaError(Exception):
    """The root: whatever this library raises on purpose is one of these."""


class Insufficient(UltimaError):
    """A result holds nothing of any other host or, where all ranks share one, of any other rank, and
    ULTIMA_ON_INSUFFICIENT says "raise". `receipt` says why, and `message` in a sentence.
    """

    def __init__(self, message: str, receipt: Receipt) -> None:
        super().__init__(message, receipt)
        self.message, self.receipt = message, receipt

    def __str__(self) -> str:
        return self.message


class InvalidArgument(UltimaError, ValueError):
    """An argument or environment variable is outside its range. Nothing was sent and no op number was used.

    `field` is its name, `value` what was given, `allowed` a sentence of what is.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field = field
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.field} is {_shown(self.value)}; allowed: {self.allowed}"


class ResourceExhausted(UltimaError):
    """More was asked for than a limit gives. `limit` names it; `asked` and `available` are bytes or counts, None if
    unknown. `message` says in a sentence what was asked for, and what there is.
    """

    def __init__(self, limit: str, message: str, asked: int | None = None, available: int | None = None) -> None:
        super().__init__(limit, message, asked, available)
        self.limit = limit
        self.asked = asked
        self.available = available
        self.message = message

    def __str__(self) -> str:
        return f"{self.limit}: {self.message}"


class Unsupported(UltimaError):
    """This job cannot do that op natively: nothing was sent, and no op number was used.

    `collective` is its name. The `message` says why, and what can be done instead. The same on all ranks.
    """

    def __init__(self, collective: str, message: str) -> None:
        super().__init__(collective, message)
        self.collective = collective
        self.message = message

    def __str__(self) -> str:
        return f"{self.collective}: {self.message}"


class Desync(UltimaError):
    """The ranks of a job did not ask for the same thing: a mistake in the program, so it is not repaired.

    `rank` is a rank that differs from this one (None when only `message` says), `field` what differs ("collective",
    "root", "dtype", "op", "count", "mode", "agree", "note" or "world_size"), `mine` and `theirs` the two values.
    `op_seq` is the number of the op, None at the join.
    """

    def __init__(
        self,
        rank: int | None,
        field: str,
        mine: object,
        theirs: object,
        op_seq: int | None = None,
        message: str | None = None,
    ) -> None:
        super().__init__(rank, field, mine, theirs, op_seq, message)
        self.rank = rank
        self.field = field
        self.mine = mine
        self.theirs = theirs
        self.op_seq = op_seq
        self.message = message

    def __str__(self) -> str:
        if self.message is not None:
            return self.message
        where = "" if self.op_seq is None else f"op {self.op_seq}: "
        who = "another rank" if self.rank is None else f"rank {self.rank}"
        return f"{where}{self.field} differs: {_shown(self.mine)} here, {_shown(self.theirs)} on {who}"


class HandleError(UltimaError):
    """The handle is dead by this program's own doing."""


class ClosedHandle(HandleError):
    """The job was closed, or was closed while the op was under way."""


class ForkedHandle(HandleError):
    """This process is a fork of the one that connected: it has no session of its own. Connect in the child instead."""


class DaemonError(UltimaError):
    """The way to the daemon is broken. The next op attaches again, unless connect() was told reconnect=False."""


class DaemonUnavailable(DaemonError):
    """No daemon could be attached to: it does not run, does not answer, or this user may not open its socket."""


class DaemonLost(DaemonError):
    """An attached daemon stopped serving.

    `reason` is "hangup" (its process ended or closed this session), "closing" (it is being shut down) or "overrun"
    (64 ops were outstanding for the whole time of this one, and an op number cannot be skipped). Or it did not hang up,
    but is stopped or short of CPU time, and the session goes on: "unresponsive" (it did not answer, by its deadline
    plus 50 ms, a call that has no result without it: in reliable mode, with `agree`, in a coded job, a `give`) or
    "silent" (it has not answered ten calls in a row, nor anything for 10 s). `message` says it in a sentence.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


class ProtocolError(DaemonError):
    """Daemon and client do not understand each other: different versions, or a defect in one of them."""


class JoinRefused(UltimaError):
    """The daemon refuses the join, and asking again changes nothing: the rank is taken, for example."""


class RanksGone(UltimaError):
    """A reliable op cannot finish, for ranks are gone: `ranks`, as far as known. `receipt` says what was missing;
    `message` says it in a sentence.

    The array is untouched unless it lies in the arena.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = (), receipt: Receipt | None = None) -> None:
        super().__init__(message, ranks, receipt)
        self.message = message
        self.ranks = ranks
        self.receipt = receipt

    def __str__(self) -> str:
        return self.message


class Behind(UltimaError):
    """The result of a step of a coded job is not here, for this host missed it or this rank came too late for it.

    The job goes on: take the model from another rank, and go on with step `go_on_with`. `step` is the one that was
    asked for; `newest` the newest that is known to be over, None if that is not known. `receipt` is no op's.
    """

    def __init__(self, step: int, receipt: Receipt) -> None:
        super().__init__(step, receipt)
        self.step = step
        self.newest = receipt.step
        self.receipt = receipt

    @property
    def go_on_with(self) -> int | None:
        """The step that the job is at, as far as this host knows; None if it does not. A rank whose model is that of
        a rank further on goes on with that one's step."""
        return None if self.newest is None else self.newest + 1

    def __str__(self) -> str:
        past = "the job has gone on" if self.newest is None else f"the job is past step {self.newest}"
        then = "" if self.go_on_with is None else f", and go on with step {self.go_on_with}"
        return f"step {self.step}: its result is not here; {past}: take the model from another rank{then}"


class TimedOut(UltimaError, TimeoutError):
    """Too much time passed where nothing partial can be returned."""


class JoinTimeout(TimedOut):
    """The job was not complete in time. The message names the missing ranks as far as the daemon knows them."""


class DeadlineExceeded(TimedOut):
    """A reliable op did not finish by its deadline; the array is untouched unless it lies in the arena.

    `receipt` says what was missing; None if nothing was heard of the op.
    """

    def __init__(self, message: str, receipt: Receipt | None = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class NotDone(TimedOut):
    """The op has not ended yet. It goes on: wait again, and do not touch its array until then."""


def _shown(value: object, most: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
