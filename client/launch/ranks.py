# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host: how they are started, started again after a failure, and ended.

Each rank leads a process group of its own, so a signal reaches its data loaders too. A rank is not reaped before its
group is gone, so nothing that it started is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType

from ultima.launch.output import Output
from ultima.launch.private_daemon import PrivateDaemon
from ultima.launch.processes import start
from ultima.launch.run_plan import Plan
from ultima.launch.signals import ENDING, INTERRUPT_GRACE_S, TERMINATE_GRACE_S, Signals

LOOK_S = 1.0


class Ranks:
    """A context: leaving it ends the ranks that still run."""

    def __init__(
        self,
        plan: Plan,
        signals: Signals,
        output: Output,
        variables: Callable[[int, int], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        """|variables|: those of a local rank after that many restarts."""
        self._plan, self._signals, self._output = plan, signals, output
        self._variables, self._say = variables, say
        self._restarts = 0
        self._well = 0
        """How many ranks have ended by themselves with status 0 since the run was told to end."""
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        """By local rank."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(signal.SIGTERM, INTERRUPT_GRACE_S)
        self._output.close()

    def start(self) -> None:
        """Starts them all. Raises LaunchFailed."""
        for local in range(self._plan.per_node):
            self._start(local)

    def watch(self, daemon: PrivateDaemon | None) -> int:
        """Waits until all have ended well, one has failed for good, or a signal says so; returns the exit status of the
        run."""
        while self._running:
            number = self._next(LOOK_S)
            if number in ENDING:
                return self._interrupted(number)
            if number is not None:
                self._pass_on(number)
            for local, status in self._ended():
                # One that has ended meanwhile, because all are started again, has no say any more.
                if status and (ret := self._failed(local, status)) is not None:
                    return ret
                if status and not self._plan.alone:
                    break
            if daemon is not None and self._running:
                daemon.check()
        return 0

    def _start(self, local: int) -> None:
        streams = self._output.attach(self._plan.first_rank + local, self._restarts)
        try:
            variables = self._variables(local, self._restarts)
            self._running[local] = start(self._plan.command, variables, streams=streams)
        finally:
            for fd in streams:
                if fd is not None:
                    os.close(fd)

    def _failed(self, local: int, status: int) -> int | None:
        """What follows from it: the exit status of the run, or None if ranks were started again."""
        how = f"with status {status}" if status > 0 else f"by {signal.Signals(-status).name}"
        plan = self._plan
        if self._restarts >= plan.max_restarts:
            spent = f" after {plan.max_restarts} of {plan.max_restarts} restarts" if plan.max_restarts else ""
            self._say(f"local rank {local} ended {how}{spent}; stopping the others")
            self._end(signal.SIGTERM, TERMINATE_GRACE_S)
            return status if status > 0 else 128 - status
        self._restarts += 1
        what = "it" if plan.alone else "all ranks"
        count = f"restart {self._restarts} of {plan.max_restarts}"
        self._say(f"local rank {local} ended {how}; starting {what} again, {count}")
        if plan.alone:
            self._start(local)
            return None
        number = self._end(signal.SIGTERM, TERMINATE_GRACE_S)
        if number is not None:
            return 128 + number
        self.start()
        return None

    def _next(self, seconds: float) -> int | None:
        number = self._signals.next(self._output.patience(seconds))
        self._output.show_unfinished()
        return number

    def _interrupted(self, number: int) -> int:
        running = len(self._running)
        self._end(number, ENDING[signal.Signals(number)])
        # A host that was told to go, and left in good order, is no failure of a job whose hosts come and go.
        left = self._plan.elastic and number == signal.SIGTERM and self._well == running
        return 0 if left else 128 + number

    def _end(self, number: int, grace_s: float) -> int | None:
        """Sends |number| to all, and SIGKILL to those that outlast the grace or another signal that ends a run, which
        it returns. Returns when all are gone."""
        self._pass_on(number)
        limit = time.monotonic() + grace_s
        ret = None
        while self._running and time.monotonic() < limit and ret is None:
            came = self._next(limit - time.monotonic())
            ret = came if came in ENDING else None
            self._well += sum(not status for _, status in self._ended())
        for local in list(self._running):
            self._reap(local)
        return ret

    def _pass_on(self, number: int) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _ended(self) -> list[tuple[int, int]]:
        """Local rank and status of those that have ended since, as Popen tells it; what they started is ended too."""
        return [(local, self._reap(local)) for local, process in list(self._running.items()) if _has_ended(process.pid)]

    def _reap(self, local: int) -> int:
        # First the group, then the child: while it is a zombie nobody else can have its number.
        process = self._running.pop(local)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
