# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of one host, and a private daemon where none runs, and sees to their end.

What torchrun does for people who have it, less the restarts. Each rank gets torchrun's variables and leads a process
group of its own, so a signal reaches its data loaders too, and a Ctrl-C at the terminal reaches this program alone,
which passes it on. The first rank that fails ends the others. Nothing is left behind: a child is not reaped before its
group is gone, and should this program be killed outright, the kernel ends the ranks and the daemon (PR_SET_PDEATHSIG).

Signals interrupt nothing: one place asks for the next one, or for a pause.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from ultima.base.errors import DaemonUnavailable, InvalidArgument
from ultima.launch.processes import LaunchFailed, answers, dies_with_parent, private_folder
from ultima.settings.config import (
    DEFAULT_PORT,
    DEFAULT_SOCKET,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    job_secret,
    socket_path,
)
from ultima.v1.installed import lacks

# A rank that was interrupted has this long to end; a rank that was told to end may want to write a checkpoint.
INTERRUPT_GRACE_S = 0.8
TERMINATE_GRACE_S = 10.0
DAEMON_START_S = 20.0
DAEMON_FILE = "/etc/ultima/ultimad.toml"
SECRET_VARIABLES = (SECRET_VARIABLE, SECRET_FILE_VARIABLE)
DAEMON_STOP_S = 0.3
ENDING = {signal.SIGINT: INTERRUPT_GRACE_S, signal.SIGTERM: TERMINATE_GRACE_S, signal.SIGHUP: TERMINATE_GRACE_S}
PASSED_ON = {*ENDING, signal.SIGUSR1, signal.SIGUSR2}


class _Ended(Exception):
    """A signal came that ends the run before the ranks had started."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(frozen=True)
class Plan:
    """What to run on this host. |nodes| hosts have |per_node| ranks each; this one is |node_rank|, counted from 0."""

    command: Sequence[str]
    per_node: int = 1
    nodes: int = 1
    node_rank: int = 0
    master: str = "127.0.0.1"
    """Address of node 0, which the others reach."""
    port: int = 29500
    """Where rank 0 listens for torch's store."""
    insecure: bool = False
    """Whether a private daemon may serve other hosts that it does not know; else they need a job secret."""


class Signals:
    """Keeps signals from their usual effect while the context lasts, and hands them out one at a time."""

    def __init__(self) -> None:
        self._came: list[int] = []

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # What a shell told us to ignore (nohup) stays ignored; a Ctrl-C is always heard.
        wanted = {number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
        wanted |= {signal.SIGINT, signal.SIGCHLD}
        self._before = {number: signal.signal(number, _nothing) for number in wanted}
        # Written by whichever thread the kernel picks: numpy has some that we know nothing of.
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def next(self, seconds: float) -> int | None:
        """The next signal, or None after |seconds|. A child that ended is a reason to return, and no signal."""
        if not self._came and select.select([self._read], [], [], max(0.0, seconds))[0]:
            self._came += os.read(self._read, 4096)
        while self._came:
            number = self._came.pop(0)
            if number != signal.SIGCHLD:
                return number
        return None


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler: without one the wake-up descriptor is not written."""


def launch(plan: Plan, environment: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Runs |plan| to its end and returns the exit status: 0, that of the first rank that failed, 128 and the number of
    a signal that ended a rank or was sent to this program.

    |environment| is what ranks get beside their own variables; ULTIMA_SOCKET in it names a daemon that runs. |say| is
    told what a person should know, a line each. Raises InvalidArgument, DaemonUnavailable and LaunchFailed.
    """
    with Signals() as signals, ExitStack() as stack:
        try:
            daemon, found = None, _running_daemon(environment)
            if found is None:
                daemon = stack.enter_context(PrivateDaemon(plan, environment, signals))
                found = daemon.socket
                where = f" on {daemon.bind}" if daemon.bind else ""
                say(f"no daemon runs on this host: a private one serves this run{where}")
            if plan.nodes == 1 and not environment.get("ULTIMA_RENDEZVOUS"):
                # The daemon of rank 0 is the one here, whatever port it has.
                from ultima.launch.reach import daemon_reach

                environment = {**environment, "ULTIMA_RENDEZVOUS": daemon_reach(found).address}
            ranks = stack.enter_context(Ranks(signals, say))
            for local in range(plan.per_node):
                ranks.start(plan.command, rank_environment(plan, local, found, environment))
            return ranks.watch(daemon)
        except _Ended as ended:
            return 128 + ended.number


def rank_environment(plan: Plan, local: int, socket: str, environment: Mapping[str, str]) -> dict[str, str]:
    """All variables of the rank that is |local| on this host: those of torchrun that scripts read, and the daemon's."""
    world = plan.nodes * plan.per_node
    variables = {
        **environment,
        "RANK": str(plan.node_rank * plan.per_node + local),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(plan.per_node),
        "GROUP_RANK": str(plan.node_rank),
        "MASTER_ADDR": plan.master,
        "MASTER_PORT": str(plan.port),
        "ULTIMA_SOCKET": socket,
    }
    # Else each try of torch's store to reach a wrong --master prints twenty frames of C++; the exception says it all.
    variables.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    if plan.per_node > 1:
        variables.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks would take each other's cores
    return variables


def _check_security(plan: Plan, secret: bool, environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument unless it is clear how the hosts of a run authenticate each other, or that they do not."""
    if secret and plan.insecure:
        raise InvalidArgument("--insecure", "given", "not together with a job secret, which it would not use")
    configured = Path(DAEMON_FILE).exists() or any(name.startswith("ULTIMAD_") for name in environment)
    if not secret and not plan.insecure and not configured:
        raise InvalidArgument(
            "--job-secret",
            None,
            "a file that `ultima ca secret FILE` has made, the same on all hosts, so that they know each other; "
            "--insecure does without, on a network of your own",
        )


def _running_daemon(environment: Mapping[str, str]) -> str | None:
    """Socket of the daemon of this host; None where none runs. One that was named must be there."""
    named = environment.get("ULTIMA_SOCKET")
    path = socket_path(named or DEFAULT_SOCKET, "ULTIMA_SOCKET")
    if answers(Path(path)):
        return path
    if named:
        raise DaemonUnavailable(f"no daemon answers on {path}, which ULTIMA_SOCKET names; unset it for a private one")
    return None


class PrivateDaemon:
    """A daemon for one run, with a folder of its own that goes with it."""

    def __init__(self, plan: Plan, environment: Mapping[str, str], signals: Signals) -> None:
        self.bind = ""
        """Where it listens for other hosts; empty where the run has just this one."""
        self._port = "0"
        if plan.nodes > 1:
            from ultima.launch.reach import address_towards

            try:
                self.bind = address_towards(plan.master)
            except OSError as error:
                raise InvalidArgument("--master", plan.master, f"a host that can be reached ({error})") from None
            # Where programs without torch look for the daemon of rank 0.
            self._port = environment.get("ULTIMA_PORT") or str(DEFAULT_PORT)
        self._secret = job_secret(environment)
        if plan.nodes > 1:
            _check_security(plan, bool(self._secret), environment)
        self._insecure, self._node = plan.insecure, f"node-{plan.node_rank}"
        self._environment = environment
        self._signals = signals
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = private_folder("ultima-run-")
        self.socket = str(self._folder / "ultimad.sock")

    def __enter__(self) -> PrivateDaemon:
        command = [sys.executable, "-m", "ultima.daemon.process.main", "--runtime-dir", str(self._folder)]
        command += ["--port", self._port, "--log-level", "warning"]
        command += ["--bind", self.bind] if self.bind else []
        command += ["--insecure"] if self.bind and self._insecure else []
        try:
            if why := lacks("daemon", "no daemon runs on this host, and a private one"):
                raise LaunchFailed(why)
            secret = self._secret_pipe()
            # It ends with its run, and nobody starts it again.
            ending = {"ULTIMAD_LIMITS_DRAIN_WINDOW_SECONDS": "0"}
            try:
                self._process = start(command, {**self._daemon_environment(secret), **ending}, secret)
            finally:
                for fd in secret:
                    os.close(fd)
            limit = time.monotonic() + DAEMON_START_S
            while not answers(Path(self.socket)):
                number = self._signals.next(0.02)
                if number in ENDING:
                    raise _Ended(number)
                self.check()
                if time.monotonic() > limit:
                    raise LaunchFailed(f"the private daemon did not listen within {DAEMON_START_S:g} s")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _secret_pipe(self) -> tuple[int, ...]:
        """The end of a pipe from which the daemon reads the job's secret, if it needs one: it is in no file, which
        would stay when this process is killed."""
        if not self.bind or not self._secret:
            return ()
        reading, writing = os.pipe()
        os.write(writing, self._secret.hex().encode("ascii"))
        os.close(writing)
        return (reading,)

    def _daemon_environment(self, secret: tuple[int, ...]) -> Mapping[str, str]:
        """With the job's secret, it is all that the daemon goes by: what files say of certificates is for others."""
        if not secret:
            return self._environment
        ours = {
            "ULTIMAD_TLS_JOB_SECRET": f"/proc/self/fd/{secret[0]}",
            "ULTIMAD_TLS_NODE": self._node,
            "ULTIMAD_INSECURE": "false",
        }
        theirs = {f"ULTIMAD_TLS_{name}": "" for name in ("CERTIFICATE", "KEY", "AUTHORITY")}
        kept = {name: value for name, value in self._environment.items() if name not in SECRET_VARIABLES}
        return {**kept, **theirs, **ours}

    def check(self) -> None:
        """Raises LaunchFailed when it has ended; what it said stands on standard error."""
        if self._process is not None and self._process.poll() is not None:
            raise LaunchFailed(f"the private daemon ended with status {self._process.returncode}; see above")

    def _stop(self) -> None:
        if self._process is not None:
            # Its trainers are gone: a second request ends its wait for their last ops, and then there is the hard way.
            for stop in (self._process.terminate, self._process.terminate, self._process.kill):
                stop()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(DAEMON_STOP_S)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Ranks:
    """The ranks of this host. Leaving the context ends those that still run."""

    def __init__(self, signals: Signals, say: Callable[[str], None]) -> None:
        self._signals, self._say = signals, say
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        """By local rank."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(signal.SIGTERM, INTERRUPT_GRACE_S)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._running[int(environment["LOCAL_RANK"])] = start(command, environment)

    def watch(self, daemon: PrivateDaemon | None) -> int:
        """Waits until all have ended well, one has not, or a signal says so; returns the exit status of the run."""
        while self._running:
            number = self._signals.next(1.0)
            if number in ENDING:
                return self._interrupted(number)
            if number is not None:
                self._pass_on(number)
            for local, status in self._ended():
                if status:
                    how = f"with status {status}" if status > 0 else f"by {signal.Signals(-status).name}"
                    self._say(f"local rank {local} ended {how}; stopping the others")
                    self._end(signal.SIGTERM, TERMINATE_GRACE_S)
                    return status if status > 0 else 128 - status
            if daemon is not None and self._running:
                daemon.check()
        return 0

    def _interrupted(self, number: int) -> int:
        self._end(number, ENDING[signal.Signals(number)])
        return 128 + number

    def _end(self, number: int, grace_s: float) -> None:
        """Sends |number| to all, and SIGKILL to those that outlast the grace or a second signal. Returns when all are
        gone."""
        self._pass_on(number)
        limit = time.monotonic() + grace_s
        while self._running and time.monotonic() < limit:
            if self._signals.next(limit - time.monotonic()) in ENDING:
                break
            self._ended()
        for local in list(self._running):
            self._reap(local)

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


def start(
    command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Starts |command| with our output, no input and those descriptors, in a process group of its own. Raises
    LaunchFailed."""
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=dies_with_parent(),
            pass_fds=descriptors,
        )
    except OSError as error:
        raise LaunchFailed(f"{command[0]!r} cannot be started: {error.strerror}") from None


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
