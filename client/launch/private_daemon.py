# SPDX-License-Identifier: Apache-2.0
"""The daemon of one run: started where none runs on this host, and stopped with the run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from ultima.base.errors import InvalidArgument
from ultima.launch.processes import LaunchFailed, answers, private_folder, start
from ultima.launch.run_plan import Plan
from ultima.launch.signals import ENDING, Ended, Signals
from ultima.settings.config import DEFAULT_PORT, SECRET_FILE_VARIABLE, SECRET_VARIABLE, job_secret
from ultima.v1.installed import lacks

DAEMON_START_S = 20.0
DAEMON_FILE = "/etc/ultima/ultimad.toml"
SECRET_VARIABLES = (SECRET_VARIABLE, SECRET_FILE_VARIABLE)
DAEMON_STOP_S = 0.3
LISTENS_S = 1.0  # on this host: a listener answers at once
TURN = "\0ultima-run-elastic"  # a name goes with whoever has it, and counts in one network namespace, as ports do


class PrivateDaemon:
    """A daemon for one run, with a folder of its own that goes with it."""

    def __init__(self, plan: Plan, environment: Mapping[str, str], signals: Signals) -> None:
        self.bind = ""
        """Where it listens for other hosts; empty where the run has just this one."""
        self._port, self._here = "0", list[str]()
        if plan.towards:
            from ultima.launch.reach import address_towards

            try:
                self.bind = address_towards(plan.towards)
                self._here = self._entries(plan.meets) if plan.elastic else []
            except OSError as error:
                option = "--meet" if plan.elastic else "--master"
                raise InvalidArgument(option, plan.towards, f"a host that can be reached ({error})") from None
            if not plan.elastic:
                # Where programs without torch look for the daemon of rank 0.
                self._port = environment.get("ULTIMA_PORT") or str(DEFAULT_PORT)
        self._secret = job_secret(environment)
        if plan.towards:
            _check_security(plan, bool(self._secret), environment)
        self._insecure = plan.insecure
        self._node = f"node-{self.bind if plan.elastic else plan.node_rank}"
        self._environment = environment
        self._signals = signals
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = private_folder("ultima-run-")
        self.socket = str(self._folder / "ultimad.sock")

    def _entries(self, meets: list[tuple[str, str]]) -> list[str]:
        """The ports of those daemons that are to be here. Raises OSError."""
        return [port for host, port in meets if self.bind in {found[4][0] for found in socket.getaddrinfo(host, 0)}]

    def __enter__(self) -> PrivateDaemon:
        try:
            with self._turn():
                self._begin()
        except BaseException:
            self._stop()
            raise
        return self

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Where several runs of this host may each serve the place where hosts meet, one at a time looks whether it is
        free, and starts its daemon there. Others wait. A name of a socket is taken by one, and free again when that
        ends, however it does; who cannot have it in time goes on without."""
        with socket.socket(socket.AF_UNIX) as turn:
            until = time.monotonic() + DAEMON_START_S
            while self._here and time.monotonic() < until:
                with suppress(OSError):
                    turn.bind(TURN)
                    break
                self._wait()
            # One at which somebody listens is that of another run on this host.
            self._port = next((port for port in self._here if not _listens(self.bind, port)), self._port)
            yield

    def _wait(self) -> None:
        """For a moment. Raises Ended if the run is told to end."""
        number = self._signals.next(0.02)
        if number in ENDING:
            raise Ended(number)

    def _begin(self) -> None:
        command = [sys.executable, "-m", "ultima.daemon.process.main", "--runtime-dir", str(self._folder)]
        command += ["--port", self._port, "--log-level", "warning"]
        command += ["--bind", self.bind] if self.bind else []
        command += ["--insecure"] if self.bind and self._insecure else []
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
            self._wait()
            self.check()
            if time.monotonic() > limit:
                raise LaunchFailed(f"the private daemon did not listen within {DAEMON_START_S:g} s")

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


def _listens(host: str, port: str) -> bool:
    try:
        socket.create_connection((host, int(port)), timeout=LISTENS_S).close()
    except OSError:
        return False
    return True


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
