# SPDX-License-Identifier: Apache-2.0
"""One session with a daemon, from attach to hang-up: numbers ops, submits them, and waits for them on time.

Many threads may submit and wait. Two locks, always taken in this order:

    _order  is held from the choice of an op's number to its submission, so that numbers follow the order of the
            calls. Copies into the arena happen under it.
    _lock   protects the rings and all state. It is held for microseconds, never while sleeping or copying.

Of the threads that wait, one sleeps in poll() on the completion bell and the daemon's socket, and drains the
completion ring for all. The others sleep on a condition, and one of them takes over when the first one leaves. No
thread spins, and each thread waits for its own deadline + 50 ms at most, unless the daemon has its array (silence.py).

A session ends once: LOST (the daemon hung up, or numbering broke), CLOSED (by the caller) or FORKED (this is a child).
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from ultima.base.errors import ClosedHandle, DaemonLost, ForkedHandle, ProtocolError, ResourceExhausted, UltimaError
from ultima.base.words import ERR_CLOSED, ERR_SEQUENCE, NEVER
from ultima.session import forks
from ultima.session.arena import Block
from ultima.session.attachment import GRACE_NS, Attachment, GiftWords
from ultima.session.away import Following
from ultima.session.notes import ended, tell
from ultima.session.op import Op, OpState, failure_of
from ultima.session.silence import Silence
from ultima.session.waiters import Waiters

POLL_MAX_MS = 3_600_000  # poll() counts milliseconds in an int: 24 days would be too many


class SessionState(Enum):
    OPEN = auto()
    LOST = auto()
    CLOSED = auto()
    FORKED = auto()


class Session(Following):
    """An attachment in use."""

    def __init__(self, attachment: Attachment, follow: Callable[[int], object] | None = None) -> None:
        """`follow`: see `Following`."""
        super().__init__(follow)
        self._attachment = attachment
        self._rings = attachment.rings
        self.arena = attachment.arena
        self.hosts = attachment.hosts
        self.host_index = attachment.host_index
        self.rank = attachment.rank
        self._see([] if attachment.view is None else [attachment.view])
        self.bucket_bytes_max = attachment.bucket_bytes_max
        self.state = SessionState.OPEN
        self._end = ("hangup", "")
        self._order = threading.Lock()
        self._lock = threading.Lock()
        self._changed = Waiters(self._lock)
        self._someone_polls = False
        self._fds_open = True
        self._fds_wanted = True
        self.options, self.sparse = attachment.options, attachment.sparse
        self.next_op = attachment.next_op_seq
        """Where the job stood when this session began."""
        # Of submissions. In a job with a policy these are no ops, and only begin at the number of the next one.
        self._next_seq = attachment.next_op_seq
        self._partial = self.options.get("policy", "none") != "none"
        self._silence = Silence(attachment.lifeline)
        self._unheard = False
        self._told: GiftWords | None = None
        """What the rings told at the end of the session."""
        self._flying: dict[int, Op] = {}
        # Ended, with a result that still lies in staging memory.
        self._ended: deque[Op] = deque()
        self._poll = select.poll()
        self._poll.register(attachment.bell, select.POLLIN)
        self._line = select.poll()
        for poll in (self._poll, self._line):
            poll.register(attachment.lifeline, select.POLLIN | select.POLLRDHUP)
        forks.follow(self)

    @property
    def lanes(self) -> int:
        """See `Job.lanes`."""
        return self._rings.lanes

    def look(self) -> SessionState:
        """The state, after a look whether the daemon hung up while nothing was under way and so nobody listened.

        Who looks before each op does not lose one to a daemon that was restarted in between.
        """
        if not self._flying:
            with self._lock:
                nobody_listens = self.state is SessionState.OPEN and not self._someone_polls
                if nobody_listens and self._line.poll(0) and self._hung_up():
                    self._lose("hangup", "the daemon hung up between two ops")
                    self._unheard = True
            if self._notes:
                self._tell()
        return self.state

    def drain(self, until_ns: int) -> None:
        """Waits until no op is under way."""
        with self._lock:
            self._wait(lambda: not self._flying or self.state is not SessionState.OPEN, until_ns)

    def take_over(self, before: Session) -> None:
        """Continues where `before` ended, if its end came between two ops and so no caller heard of it.

        The other ranks may have gone on meanwhile. What this rank calls next is then not what they call next, and to
        number it so would add up different buckets: it is answered alone until the calls are level again.
        """
        if before.away is not None:
            self._adopt(before.away, self._next_seq)
        elif before._unheard and not self._partial:
            self._behind = max(0, self._next_seq - (before._next_seq - before._behind))

    # Submitting

    def start(self, op: Op) -> None:
        """Numbers and submits an op; blocks while the rings or the arena have no room for it, until it expires.

        Raises ResourceExhausted when it can never fit, and what `failure` says when the session has ended. An op that
        got no place in time ends the session too: the other ranks have used its number.
        """
        self._check_open()
        self.check_size(op)
        if not self._order.acquire(blocking=False) and not self._order.acquire(timeout=self._silence.patience_s(op)):
            raise self._overrun()
        try:
            op.owner = self
            op.portions = self._rings.portions_of(op)
            following = op.take_number(self._next_seq - self._behind)
            if self._behind:
                op.answer_alone(op.seq, self._present(), self.rank)
                self._behind = max(0, self._next_seq - following)
                return
            if not self._rings.have_room(op):
                self._wait_until_taken(op)
            self._stage(op)
            with self._lock:
                self._check_open()
                op.submitted_ns = time.monotonic_ns()
                op.expires_ns = max(op.expires_ns, op.submitted_ns + GRACE_NS)  # it may have waited for room
                if not self._rings.submit(op):
                    self._lose("session", "a submission ring is full although fewer than 64 of its ops are outstanding")
                    raise self.failure()
                self._next_seq = following
                self._flying[op.seq] = op
        finally:
            self._order.release()

    def words(self) -> GiftWords:
        """What the engine of a job with a policy tells besides completions; of a lost session what it told last."""
        return self._rings.words() if self._told is None else self._told

    def check_size(self, op: Op) -> None:
        """Raises ResourceExhausted for an array that this job does not take."""
        if op.nbytes > self.bucket_bytes_max:
            text = f"an array of {op.nbytes} bytes; this job takes at most {self.bucket_bytes_max} (see connect)"
            raise ResourceExhausted("bucket_bytes_max", text, op.nbytes, self.bucket_bytes_max)

    def _wait_until_taken(self, op: Op) -> None:
        with self._lock:
            self._check_open()
            ready = self._wait_for_room(lambda: self._rings.have_room(op), op)
        if not ready:
            raise self._overrun()

    def _wait_for_room(self, ready: Callable[[], object], op: Op) -> bool:
        """Under the lock: until the op expires; longer for what ops hold that ended without the daemon."""
        until_ns = self._silence.patience_ns(op)
        return self._wait(lambda: bool(ready()) or self.state is not SessionState.OPEN, until_ns)

    def _stage(self, op: Op) -> None:
        needed = op.place(self.arena, not self._flying or self._may_lie_in_arena(op))
        if needed:
            op.stage(self.arena, self.arena.allocate(needed) or self._make_room(needed, op))

    def _may_lie_in_arena(self, op: Op) -> bool:
        """False when an op that its caller gave up on may still touch the same memory: then a copy is used instead."""
        if not op.touches(self.arena):
            return True
        with self._lock:
            self._drain()
            return op.is_alone_there(self.arena, self._flying.values())

    def _make_room(self, nbytes: int, op: Op) -> Block:
        """Staging memory when there was none: copies results out, then waits for ops to end."""
        while True:
            self._copy_all_out()
            block = self.arena.allocate(nbytes)
            if block is not None:
                return block
            with self._lock:
                self._check_open()
                staged = [other for other in self._flying.values() if other.block is not None]
                if not staged or nbytes > self.arena.nbytes:
                    free, largest = self.arena.free_bytes()
                    text = (
                        f"{nbytes} bytes needed in one piece; {largest} are free in one piece, {free} in all of "
                        f"{self.arena.nbytes} (see connect)"
                    )
                    raise ResourceExhausted("arena_bytes", text, nbytes, largest)
                ready = self._wait_for_room(partial({other.seq for other in staged}.difference, self._flying), op)
            if not ready:
                raise self._overrun()

    # Waiting

    def wait(self, op: Op, until_ns: int = NEVER) -> bool:
        """Sleeps until the op has ended, its result copied out, but at most until `until_ns`. True if it has ended.

        An op that has expired ends here: the daemon had deadline and grace, and said nothing.
        """
        with self._lock:
            if op.state is OpState.FLYING and not self._wait_for(op, min(until_ns, op.expires_ns)):
                if op.owner not in (None, self):
                    pass  # a later session has taken it over meanwhile
                elif time.monotonic_ns() < op.expires_ns or not self._end_without_word(op, until_ns):
                    return False
        if op.state is OpState.BACK or op.owner not in (None, self):
            return self._wait_for_next(op, until_ns)
        self.copy_out(op)
        self._tell()
        return True

    def _wait_for(self, op: Op, until_ns: int) -> bool:
        return self._wait(lambda: op.state is not OpState.FLYING, until_ns)

    def _end_without_word(self, op: Op, until_ns: int) -> bool:
        """Under the lock: ends an op that has expired, later if the daemon may still write to the caller's array."""
        limit_ns = self._silence.limit_ns(op)
        if self._wait_for(op, min(until_ns, limit_ns)):
            if op.state is not OpState.BACK:
                self._notes += self._silence.late(op)
        elif time.monotonic_ns() < limit_ns:
            return False
        else:
            self._end_unheard(op)
        return True

    def _end_unheard(self, op: Op) -> None:
        """It stays outstanding, and its late answer will be thrown away."""
        if self._silence.lasts(op) or not op.may_be_alone or not op.is_apart:
            self._abandon(op, self._silence.lost(op))
        else:
            op.go_alone(self._present(), self.rank, self.hosts[self.host_index].ranks)
            self._notes += self._silence.alone(op)
            self._changed.notify_all()

    def go_without(self, op: Op) -> None:
        """Ends an op that was not submitted, in a job with a policy: the daemon has not yet answered an earlier one."""
        with self._lock:
            self._end_unheard(op)
        self.copy_out(op)
        self._tell()

    def hears_of(self, before: Op, op: Op) -> bool:
        """Before `op` is submitted: waits for the answer to one that expired without. False if none comes in time."""
        with self._lock:
            expired = before.expires_ns <= time.monotonic_ns()
            return self._wait(lambda: not expired or not self.is_flying(before.seq), op.expires_ns)

    def poll(self, op: Op) -> bool:
        """True if the op has ended; looks, but does not wait."""
        return self._look_for_next(op) if op.state is OpState.BACK else self.wait(op, 0)

    def abandon(self, op: Op) -> None:
        """The caller no longer wants it (Ctrl-C in a wait): its array will not be written. The daemon is not told."""
        with self._lock:
            if op.state is OpState.FLYING:
                self._abandon(op, ClosedHandle(f"op {op.seq}: its wait was interrupted"))

    def copy_out(self, op: Op) -> None:
        """Brings the result of an ended op into the caller's array, once, whoever asks first."""
        if op.state is OpState.DONE:
            return
        with self._lock:
            while op.state is OpState.COPYING:
                self._changed.wait()
            if op.state is not OpState.ENDED:
                return
            op.state = OpState.COPYING
        try:
            op.copy_out()
        finally:
            with self._lock:
                op.state = OpState.DONE
                if not op.abandoned:
                    op.block = None
                with contextlib.suppress(ValueError):
                    self._ended.remove(op)
                self._changed.notify_all()

    def _copy_all_out(self) -> None:
        while self._ended:
            with self._lock:
                self._drain()
                op = self._ended[0] if self._ended else None
            if op is not None:
                self.copy_out(op)

    def _wait(self, ready: Callable[[], bool], until_ns: int) -> bool:
        """Under the lock: sleeps until `ready()`, or `until_ns`. Returns ready()."""
        while not ready():
            left_ns = until_ns - time.monotonic_ns()
            if self.state is not SessionState.OPEN or left_ns <= 0:
                if self.state is SessionState.OPEN:
                    self._drain()
                return ready()
            if self._someone_polls:
                self._changed.wait(left_ns / 1e9)
            else:
                self._sleep(left_ns)
        return True

    def _sleep(self, left_ns: int) -> None:
        """Under the lock, which it releases meanwhile: waits for the daemon to say something, and takes it in."""
        self._someone_polls = True
        self._lock.release()
        events: list[tuple[int, int]] = []
        try:
            events = self._poll.poll(min(left_ns / 1e6, POLL_MAX_MS))
        finally:
            self._lock.acquire()
            self._someone_polls = False
            if self.state is SessionState.OPEN:
                self._take_in(events)
            else:
                self._close_fds()
            self._changed.notify_all()
        if self._notes:
            self._lock.release()
            try:
                self._tell()
            finally:
                self._lock.acquire()

    def _tell(self) -> None:
        """Without the lock, as a warning may run code of the user's."""
        notes, self._notes = self._notes, []
        tell(notes)

    def _take_in(self, events: list[tuple[int, int]]) -> None:
        hung_up = False
        for fd, _ in events:
            hung_up |= ended(self._attachment.bell) if fd == self._attachment.bell.fileno() else self._hung_up()
        self._drain()
        if hung_up:
            self._lose("hangup", "the daemon hung up: it ended, or it closed this session")

    def _drain(self) -> None:
        """Under the lock: takes in every completion that is there."""
        going = False
        while (completion := self._rings.take()) is not None:
            op = self._flying.get(completion.number)
            if op is not None and completion.early:
                if op.state is OpState.FLYING:
                    self._abandon(op, failure_of(completion, self.hosts, self.rank, op.asked()))
                continue
            self._flying.pop(completion.number, None)
            self._silence.end()
            if op is None:
                self._lose("session", f"the daemon completed op {completion.number}, which is not outstanding")
                return
            if completion.error == ERR_CLOSED and self._leaves_word():
                self._flying[completion.number] = op
                op.cut = going = True
                continue
            op.end(completion, self.hosts, self.rank)
            if completion.error == ERR_CLOSED:
                op.fail(DaemonLost("closing", f"op {op.seq}: the daemon is shutting down, or the job is being removed"))
                self._lose("closing", "the daemon is shutting down, or the job is being removed")
            elif completion.error == ERR_SEQUENCE:
                op.fail(ProtocolError(f"op {op.seq}: the daemon expected another number"))
                self._lose("session", f"the daemon did not expect number {op.seq}")
            if op.state is OpState.ENDED and not op.abandoned:
                self._ended.append(op)
        if going:
            self._lose("closing", "the daemon was told to stop")

    # Ending

    def failure(self) -> UltimaError:
        """The exception for using a session that has ended, as a new instance."""
        if self.state is SessionState.FORKED:
            return ForkedHandle("this process is a fork of the one that connected: call connect() in it")
        if self.state is SessionState.CLOSED:
            return ClosedHandle("the job was closed")
        return DaemonLost(*self._end)

    def close(self, timeout_s: float, drain_s: float = 0.0) -> None:
        """Leaves the job, lets go of everything but the arena's memory. Open ops end with ClosedHandle. Idempotent.

        `drain_s`: of a job whose hosts come and go, for the others to agree that this rank leaves."""
        with self._lock:
            if self.state in (SessionState.FORKED, SessionState.CLOSED):
                return
            leaving = self.state is SessionState.OPEN
            if leaving:
                self._drain()
            self._fds_wanted = leaving
            self._finish(SessionState.CLOSED)
        if leaving:
            self._attachment.leave(timeout_s, drain_s, self.calls_next)
            with self._lock:
                self._fds_wanted = False
                self._close_fds()

    def _check_open(self) -> None:
        if self.state is not SessionState.OPEN:
            raise self.failure()

    def is_flying(self, seq: int) -> bool:
        """Whether the engine may still touch the memory of an op, wanted or abandoned."""
        return seq in self._flying

    def _overrun(self) -> UltimaError:
        with self._lock:
            if self.state is SessionState.OPEN:
                self._lose(
                    "overrun",
                    "an op could not be submitted by its deadline because earlier ops filled the ring or the arena; "
                    f"its number cannot be skipped, so this session ends{self._silence.blame()}",
                )
            return self.failure()

    def _abandon(self, op: Op, failure: UltimaError) -> None:
        """Under the lock. The op stays in `_flying`, and with it its memory, until the daemon is through with it."""
        block = op.block
        op.fail(failure)
        op.block = block
        op.abandoned = True
        self._changed.notify_all()

    def _lose(self, reason: str, message: str) -> None:
        if self.state is SessionState.OPEN:
            self._end = (reason, message)
            self._fds_wanted = False
            self._finish(SessionState.LOST)

    def _finish(self, state: SessionState) -> None:
        """Under the lock: ends the session for everybody."""
        self.state = state
        self._told = self._rings.words()
        if state is SessionState.LOST and self._leaves_word():
            self._leave(self._flying, self._next_seq - self._behind)
        for op in self._flying.values():
            op.fail(self.failure())
        self._flying.clear()
        if self._someone_polls:
            # Then he closes the descriptors: closing them under his poll() would give their numbers to others.
            with contextlib.suppress(OSError):
                self._attachment.bell.shutdown(socket.SHUT_RD)
        self._close_fds()
        self._changed.notify_all()

    def _close_fds(self, dropped: bool = False) -> None:
        """Unless somebody still needs them; whoever that is calls this again."""
        if self._fds_open and not self._fds_wanted and not self._someone_polls:
            self._fds_open = False
            if self.state is not SessionState.FORKED:
                self.arena.leave()
            self._attachment.close(dropped)

    def __del__(self) -> None:
        # A job that was dropped without close(): the hang-up tells the daemon.
        self._fds_wanted = False
        self._close_fds(dropped=True)

    def after_fork(self) -> None:
        """In a forked child: the parent's session is not ours to touch, locks may be held by threads left behind."""
        self._order = threading.Lock()
        self._lock = threading.Lock()
        self._changed = Waiters(self._lock)
        self._someone_polls = False
        if self.state is not SessionState.CLOSED:
            self.state = SessionState.FORKED
        self._told = None
        self._rings.after_fork()
        self.arena.after_fork()
        for op in [*self._flying.values(), *self._ended]:
            op.fail(self.failure())
        self._flying.clear()
        self._ended.clear()
        # Our copies only, the parent keeps his: with ours open the daemon would not see him die.
        self._fds_wanted = False
        self._close_fds(dropped=True)
