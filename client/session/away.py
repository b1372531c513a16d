# SPDX-License-Identifier: Apache-2.0
"""What a session leaves to the next one when its daemon was told to stop.

Such a daemon ends the ops that it can end, says that it goes, and hangs up (daemon/trainers/attach.py). What it never
began, or could not end, is asked of the next daemon under the same numbers: the other hosts still wait for it in
reliable ops. In bounded ops they do not, so one whose time is over meanwhile ends as for a rank that calls too late.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from ultima.base.errors import DaemonError, DeadlineExceeded, JoinTimeout, UltimaError
from ultima.base.receipt import Host
from ultima.base.views import View, view_of
from ultima.base.words import MODES
from ultima.session.attachment import Attachment, Rings, RoundLine, StateLine
from ultima.session.notes import hear
from ultima.session.op import Op, OpState

LATE_NS = 1_000_000_000  # that an op has whose time is over, behind one that is not: its number must be used in turn


class Away:
    """See the module. It is guarded by the session that left it."""

    def __init__(self, until_ns: int, ops: Iterable[Op], next_seq: int, hosts: tuple[Host, ...], rank: int) -> None:
        """`until_ns`: when the daemon is to be back, by time.monotonic_ns. `ops` have not ended, `next_seq` follows
        them."""
        self.until_ns = until_ns
        self.ops = deque(sorted(ops, key=lambda op: op.seq))
        self._next_seq, self._hosts, self._rank = next_seq, hosts, rank
        self._told = False
        for op in self.ops:
            op.hand_back()

    @property
    def resume(self) -> int | None:
        """The op that this rank calls next; None once an exception has told its caller that one was lost."""
        if self._told:
            return None
        return self.ops[0].seq if self.ops else self._next_seq

    def answer(self, op: Op) -> bool:
        """Ends a bounded op that was called meanwhile, and whose time is over, as one that came too late. False if an
        earlier one must come first."""
        self.expire(op.expires_ns)
        if self.ops or self._told or time.monotonic_ns() > self.until_ns or op.mode == MODES["reliable"]:
            return False
        self._next_seq = op.take_number(self._next_seq)
        op.answer_alone(op.seq, self._hosts, self._rank)
        return True

    def expire(self, by_ns: int) -> None:
        """Ends the bounded ops whose time is over by then, as far as no earlier op stands before them."""
        while self.ops and self.ops[0].mode != MODES["reliable"] and self.ops[0].expires_ns <= by_ns:
            op = self.ops.popleft()
            self._next_seq = self._next_seq if self.ops else op.seq + op.portions
            op.answer_alone(op.seq, self._hosts, self._rank)

    def fail(self, op: Op, reason: UltimaError, late: bool) -> None:
        """Its caller waits no longer: it fails, and with it all that was called after it. `late`: its time is over."""
        if op not in self.ops:
            return
        self._told = True
        while self.ops:
            last = self.ops.pop()
            text = (
                f"op {last.seq} (reliable): not finished by its deadline, because this host's daemon was told to stop"
            )
            last.fail(DeadlineExceeded(text) if late and last.mode == MODES["reliable"] else reason)
            if last is op:
                break

    def add(self, ops: list[Op]) -> None:
        """These have not ended either; they come after the others."""
        for op in ops:
            op.hand_back()
        self.ops.extend(ops)

    def take(self) -> list[Op]:
        """The ops, for the next session."""
        self.expire(time.monotonic_ns())
        ops = [*self.ops]
        self.ops.clear()
        now = time.monotonic_ns()
        for op in ops:
            if now + LATE_NS > op.expires_ns and op.mode != MODES["reliable"]:
                op.expires_ns = now + LATE_NS
        return ops


class Following:
    """The part of a session that is about the one before it, and the one after it."""

    hosts: tuple[Host, ...]
    rank: int
    _attachment: Attachment
    _lock: threading.Lock
    _rings: Rings
    _partial: bool
    _next_seq: int
    _flying: dict[int, Op]

    def __init__(self, follow: Callable[[int], object] | None) -> None:
        """`follow` makes the session that comes after this one, by a time in ns of time.monotonic_ns, and has it adopt
        what this one leaves; None: there will be none. Raises what attaching raises."""
        self._follow = follow
        self._notes: list[str] = []
        """From the daemon, for people, until somebody without a lock can tell them."""
        self._view: View | None = None
        """The newest of them."""
        self._views: list[View] = []
        """Of a job whose hosts come and go, until somebody takes them."""
        self.state_wanted = False
        """Another rank of such a job waits for the state of this one."""
        self.followed = False
        """Another rank, which is in no op yet, takes the state and the results of this one."""
        self._behind = 0
        """Ops that the other ranks did without this one, and that it has yet to call: see `Session.take_over`."""
        self._back_within_s = 0.0
        self._looked_for = False
        self.away: Away | None = None
        """What it leaves to the next one, if its daemon was told to stop."""

    def start(self, op: Op) -> None:
        """See Session."""
        raise NotImplementedError

    def wait(self, op: Op, until_ns: int) -> bool:
        """See Session."""
        raise NotImplementedError

    def _hung_up(self) -> bool:
        """Whether the daemon's end of the life line is closed; what came before is kept."""
        heard = hear(self._attachment.lifeline)
        self._notes += heard.notes
        self._see([view for told in heard.views if (view := view_of(told, self._attachment.rank)) is not None])
        self.state_wanted = self.state_wanted if heard.state_wanted is None else heard.state_wanted
        self.followed = self.followed if heard.followed is None else heard.followed
        self._back_within_s = heard.back_within_s or self._back_within_s
        return heard.ended

    @property
    def state_line(self) -> StateLine | None:
        """To the daemon, for state that newcomers take; None if this one has no such thing."""
        return self._attachment.state_line

    @property
    def round_line(self) -> RoundLine | None:
        """To the daemon, for what became of rounds; None if this one has no such thing."""
        return self._attachment.round_line

    @property
    def calls_next(self) -> int:
        """The number of the op that this rank calls next."""
        return self._next_seq - self._behind

    @property
    def standing(self) -> int | None:
        """`calls_next`; None while ops are under way, or this rank is behind the others."""
        with self._lock:
            return None if self._flying or self._behind else self._next_seq

    def _see(self, views: list[View]) -> None:
        self._views += views
        self._view = views[-1] if views else self._view

    def _present(self) -> tuple[Host, ...]:
        """The hosts that an op is to have, as far as this rank was told: not the free seats of a job whose hosts come
        and go, nor hosts that are out of its view."""
        if self._view is None:
            return self.hosts
        ranks = {self.rank, *self._view.ranks}
        return tuple(host for host in self.hosts if ranks.intersection(host.ranks))

    def take_views(self) -> list[View]:
        """Of a job whose hosts come and go: the views that nobody has taken yet, the oldest first."""
        with self._lock:
            taken, self._views = self._views, []
            return taken

    def _adopt(self, left: Away, next_seq: int) -> None:
        """Asks for what an earlier session has left, in its order, where the next op of this one is `next_seq`."""
        left.expire(time.monotonic_ns())
        resume, ops = left.resume, left.take()
        self._behind = 0 if resume is None else max(0, next_seq - resume)
        for op in ops:
            op.owner, op.state = self, OpState.FLYING
        for at, op in enumerate(ops):
            try:
                self.start(op)
            except UltimaError as error:
                if self.away is not None:  # told to stop once more
                    self.away.add(ops[at:])
                    return
                op.fail(error)

    def answer(self, op: Op) -> bool:
        """While the daemon is away: ends a bounded op as for a rank that calls too late. False if that cannot be."""
        with self._lock:
            op.owner = self
            op.portions = self._rings.portions_of(op)
            return self.away is not None and self.away.answer(op)

    def _leaves_word(self) -> bool:
        """Whether the daemon has said that it goes and comes back, and there is somebody to follow it."""
        if not self._back_within_s:
            self._hung_up()
        return self._back_within_s > 0 and self._follow is not None and not self._partial

    def _leave(self, flying: dict[int, Op], next_seq: int) -> None:
        """Under the lock, at the end: takes out what the next session is to ask for. If some of it cannot be asked for
        again its caller is told, and what he called after it has lost its place."""
        ops = [op for op in flying.values() if not op.abandoned]
        if not any(op.spoilt for op in ops):
            until_ns = time.monotonic_ns() + int(self._back_within_s * 1e9)
            self.away = Away(until_ns, ops, next_seq, self._present(), self.rank)
            for op in ops:
                del flying[op.seq]

    def _wait_for_next(self, op: Op, until_ns: int) -> bool:
        """Waits for the next session, and there for an op that this one has left."""
        if op.owner is not self:
            return bool(op.owner.wait(op, until_ns))
        assert self._follow is not None and self.away is not None
        until_ns = min(until_ns, op.expires_ns)
        try:
            self._follow(until_ns)
        except UltimaError as error:
            late = isinstance(error, DaemonError | JoinTimeout)  # until there was no time left
            with self._lock:
                if late and until_ns < op.expires_ns:
                    return False
                if late:
                    self.away.expire(op.expires_ns)
                if op.state is OpState.BACK:
                    self.away.fail(op, error, late)
        return bool(op.owner.wait(op, until_ns))

    def _look_for_next(self, op: Op) -> bool:
        """For who polls and never waits: somebody must look for the next daemon."""
        if time.monotonic_ns() >= op.expires_ns:
            return self.wait(op, op.expires_ns)
        with self._lock:
            looks, self._looked_for = self._looked_for, True
        if not looks:
            threading.Thread(target=self._look_until, args=(op.expires_ns,), name="ultima-follow", daemon=True).start()
        return False

    def _look_until(self, until_ns: int) -> None:
        assert self._follow is not None
        with contextlib.suppress(UltimaError):
            self._follow(until_ns)
        self._looked_for = False
