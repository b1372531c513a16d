# SPDX-License-Identifier: Apache-2.0
"""What the engine tells, brought to those who count it, keep it, log it and act on it.

The engine wakes the daemon for ops that have ended ten times a second, or when sixteen of them wait, and at once
for all else (udp/events.h). Whoever answers a question settles first: takes what has been told by then.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from ultima.daemon.base.logs import about
from ultima.daemon.engine.engine import FIELDS, Event, EventKind, Status
from ultima.daemon.engine.events import address_of, value_word
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Host
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.probe.initiators import Initiators

log = logging.getLogger("ultimad")
# How a call is refused by which a newcomer with state uses up the number of an op that the others are through with
# (client/api/newcomers.py): UT_ERR_REDOP, which no other call of a client in an elastic job comes to.
OP_SKIPPED = 9


class News:
    """See the module. It belongs to the event loop."""

    def __init__(self, engine: HostEngine, jobs: JobTable, initiators: Initiators) -> None:
        self._engine, self._jobs, self._initiators = engine, jobs, initiators
        self._waiting: deque[Event] = deque()  # told and not taken, where taking one of them failed

    def listen(self) -> None:
        """From now on the loop brings it by itself."""
        for fd in self._engine.event_fds:
            asyncio.get_running_loop().add_reader(fd, self.settle)

    def settle(self) -> None:
        """Brings all that the engine has told by now. A flood is cut into pieces: the loop calls again while there is
        more."""
        self._waiting.extend(self._engine.events())
        while self._waiting:
            self._take(self._waiting.popleft())

    def close(self) -> None:
        """Settles, and hears nothing more."""
        self.settle()
        for fd in self._engine.event_fds:
            asyncio.get_running_loop().remove_reader(fd)

    def _note(self, kind: str, text: str, job: str, level: str, host: Host | None = None) -> None:
        self._jobs.recorder.events.note(kind, text, job, level, host="" if host is None else str(host.place))

    def _op_done(self, job: Job | None, name: str, event: Event) -> None:
        if job is not None:
            job.stats.op_done(event)
            receipt = functools.partial(self._engine.receipt_of, job.number, event.op_seq)
            self._jobs.recorder.op_done(job.record, event, receipt)
            self._jobs.fellows.council.op_done(job)
            if job.partial is not None:
                job.partial.read(functools.partial(self._engine.receipt, job.number))
        if event.a != Status.COMPLETE:
            if job is not None:
                self._jobs.fellows.silence.not_complete(job)
            log.warning(
                "op not complete job=%s op_seq=%d status=%s missing_bytes=%d elapsed_us=%d",
                *(name, event.op_seq, _word(event.a), event.c, event.b // 1000),
                extra=about(name, event.a),
            )

    def _take(self, event: Event) -> None:
        job = self._jobs.by_number(event.job)
        name = job.name if job is not None else "-"
        known = job.membership.hosts if job is not None and job.membership is not None else ()
        host = known[event.host] if event.host < len(known) else None
        there = host.name if host is not None else f"host {event.host}"
        if job is not None and event.kind in (EventKind.OP_DONE, EventKind.READY, EventKind.ACTIVATED):
            self._initiators.take(job, event)
        if event.kind == EventKind.OP_DONE:
            self._op_done(job, name, event)
        elif event.kind == EventKind.QUANT:
            if job is not None:
                job.stats.quantised(event)
        elif event.kind == EventKind.DESYNC:
            field = FIELDS[event.a] if event.a < len(FIELDS) else str(event.a)
            here, other = value_word(field, event.b), value_word(field, event.c)
            log.error(
                "desync job=%s op_seq=%d host=%d field=%s here=%s there=%s",
                *(name, event.op_seq, event.host, field, here, other),
                extra=about(name),
            )
            self._note(
                "desync",
                f"op {event.op_seq} of job {name}: {field} is {here} here and {other} on {there}",
                name, "error", host,
            )  # fmt: skip
        elif event.kind == EventKind.BAD_SUBMISSION:
            if event.a == OP_SKIPPED and job is not None and job.elastic:
                return
            seen = about(name, event.session)
            log.warning("bad submission job=%s session=%d error=-%d", name, event.session, event.a, extra=seen)
        elif event.kind == EventKind.DIVERGED:
            if job is not None:
                job.stats.op_diverged(event)
            values = (name, event.op_seq, event.a, event.b)
            self._note("replicas_differ", f"op {event.op_seq} of job {name}: results differ", name, "warning")
            log.warning("replicas differ job=%s op_seq=%d hosts=%#x of=%#x", *values, extra=about(name))
        elif event.kind == EventKind.PATH:
            what = "full packets do not get through, sending in pieces" if event.a else "full packets get through"
            self._note("path_changed", f"to {there} of job {name}: {what}", name, "warning", host)
            level = logging.WARNING if event.a else logging.INFO
            log.log(level, "path changed job=%s host=%d: %s", name, event.host, what, extra=about(name, event.host))
        elif event.kind == EventKind.PATH_MOVED:
            port, now = "feedback" if event.a else "data", address_of((event.b, event.c, event.d, event.e))
            self._note("path_moved", f"{port} of {there} of job {name} is at {now} now", name, "warning", host)
            moved = (name, event.host, port, now)
            log.warning("path moved job=%s host=%d port=%s to=%s", *moved, extra=about(name, event.host))
        elif event.kind == EventKind.VIOLATION:
            wait = self._jobs.fellows.violated(job, event.host) if job is not None else None
            then = "" if wait is None else f"; next path in {wait:g} s"
            log.error("protocol violated job=%s host=%d%s", name, event.host, then, extra=about(name, event.host))
            text = f"{there} of job {name} broke the protocol{then}"
            self._note("protocol_violated", text, name, "error", host)


class Fresh(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Settles before each call of a server, so that its answer knows of every op that had ended before the question."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """A call begins."""
        self._settle()
        return await continuation(handler_call_details)


def _word(status: int) -> str:
    return Status(status).name if status in set(Status) else str(status)
