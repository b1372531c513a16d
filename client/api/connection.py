# SPDX-License-Identifier: Apache-2.0
"""A job's sessions with its daemon, one after another: after a lost daemon the next op attaches again."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ultima.base.buffers import AnyArray, dtype_named
from ultima.base.durations import DURATION_MAX_S, Duration, deadline_s
from ultima.base.errors import DaemonError, DaemonLost, InvalidArgument, JoinTimeout, ResourceExhausted
from ultima.base.words import NEVER
from ultima.session.attachment import ENGINE_SHARE, GRACE_NS, Connector
from ultima.session.op import Op
from ultima.session.session import Session, SessionState
from ultima.settings.config import Settings

# How long connect() keeps trying while no daemon answers at all: it may be starting.
START_PATIENCE_NS = 2_000_000_000
LEAVE_TIMEOUT_S = 1.0


class Connection:
    """What the faces of one job share: its settings, and the session of now. Safe for several threads."""

    def __init__(self, settings: Settings, connector: Connector) -> None:
        """Attaches and joins. Raises as `connect`."""
        if settings.trace:
            from ultima.session import timeline

            timeline.begin(settings.trace, settings.rank)
        self.settings = settings
        self.connector = connector
        self.reconnects = 0
        """How often it has attached again."""
        self._rejoining = threading.Lock()
        self._closed = threading.Event()
        now = time.monotonic_ns()
        until = now + int(settings.timeout_s * 1e9)
        self._follow = self.ready if settings.reconnect else None
        self.session = Session(connector.attach(settings, until, now + START_PATIENCE_NS), self._follow)

    @property
    def closed(self) -> bool:
        """By the caller."""
        return self._closed.is_set()

    @property
    def policy(self) -> str:
        """Of the job's ops, as of the join; "none" in an ordinary job."""
        return self.session.options.get("policy", "none")

    def close(self, seconds: float) -> None:
        """See `Job.close`."""
        self._closed.set()
        self.session.close(seconds)

    def leave(self, seconds: float) -> None:
        """See `ElasticJob.leave`."""
        until_ns = time.monotonic_ns() + int(seconds * 1e9)
        self.session.drain(until_ns)
        self._closed.set()
        self.session.close(LEAVE_TIMEOUT_S, max(0.0, (until_ns - time.monotonic_ns()) / 1e9))

    def ready(self, expires_ns: int) -> Session:
        """The session. If it has ended, attaches again if that is wanted, within the time of the op."""
        session = self.session
        if session.state is SessionState.OPEN:
            return session
        if self._closed.is_set() or session.state in (SessionState.FORKED, SessionState.CLOSED):
            raise session.failure()
        if not self.settings.reconnect:
            raise session.failure()
        until = min(expires_ns - GRACE_NS, time.monotonic_ns() + int(DURATION_MAX_S * 1e9))
        if not self._rejoining.acquire(timeout=max(0.0, (until - time.monotonic_ns()) / 1e9)):
            raise DaemonLost(
                "hangup", "the daemon was lost, and another thread could not attach again by this op's deadline"
            )
        try:
            if self.session.state is SessionState.LOST:
                away = self.session.away
                said = {} if away is None or away.resume is None else {"next_op_seq": away.resume}
                fresh = Session(self.connector.attach(self.settings, until, until, **said), self._follow)
                fresh.take_over(self.session)
                if self._closed.is_set():
                    fresh.close(LEAVE_TIMEOUT_S)
                self.session = fresh
                self.reconnects += 1
            return self.session
        finally:
            self._rejoining.release()

    def begin(self, op: Op) -> Session:
        """Starts an op, and returns the session that has it. Raises as `ready` and `Session.start`.

        While a daemon that was told to stop is not back, a bounded op whose time is over ends as for a rank that calls
        too late.
        """
        while True:
            try:
                session = self.ready(op.expires_ns)
            except (DaemonError, JoinTimeout):
                if not self._closed.is_set() and self.session.answer(op):
                    return self.session
                raise
            try:
                session.start(op)
            except DaemonLost:
                if session.away is None:
                    raise
            else:
                return session

    def times(self, now: int, deadline: Duration | None) -> tuple[int, int]:
        """By when the engine is to be done, and by when a caller is to return: NEVER and ns of CLOCK_MONOTONIC.

        None for the job's own deadline. Raises InvalidArgument.
        """
        seconds = self.settings.deadline_s if deadline is None else deadline_s(deadline, "deadline")
        span = int((DURATION_MAX_S if math.isinf(seconds) else seconds) * 1e9)
        return NEVER if math.isinf(seconds) else now + int(span * ENGINE_SHARE), now + span + GRACE_NS

    def empty(self, shape: int | Sequence[int], dtype: Any) -> AnyArray:
        """See `Job.empty`."""
        kind = _storage(dtype)
        sizes = _shape(shape)
        session = self.session
        if session.state is SessionState.FORKED:
            raise session.failure()
        nbytes = math.prod(sizes) * kind.itemsize
        block = session.arena.allocate(nbytes)
        if block is None:
            whole, largest = session.arena.nbytes, session.arena.free_bytes()[1]
            text = f"{nbytes} bytes asked, {largest} of {whole} are free in one piece (connect(arena=...))"
            raise ResourceExhausted("arena_bytes", text, nbytes, largest)
        session.arena.touch(block)
        return np.asarray(block).view(kind).reshape(sizes)


def _storage(dtype: Any) -> np.dtype[Any]:
    """The numpy type that holds elements of `dtype`. Types that are not ours are fine: memory to take views of."""
    try:
        kind: np.dtype[Any] = dtype_named(dtype).numpy
    except InvalidArgument:
        try:
            kind = np.dtype(dtype)
        except TypeError:
            kind = np.dtype(object)
        if kind.hasobject or not kind.itemsize:
            raise
    return kind


def _shape(shape: Any) -> tuple[int, ...]:
    allowed = "a whole number of 0 or more, or a sequence of them"
    try:
        sizes = (
            (operator.index(shape),) if hasattr(shape, "__index__") else tuple(operator.index(size) for size in shape)
        )
    except TypeError:
        raise InvalidArgument("shape", shape, allowed) from None
    if any(size < 0 for size in sizes):
        raise InvalidArgument("shape", shape, allowed)
    return sizes
