# SPDX-License-Identifier: Apache-2.0
"""Starts the demo's daemons and ranks on this machine, and stops every one of them whatever happens.

Each daemon gets a runtime directory of its own and ports that were free, so nothing here meets a daemon that the
machine really runs. Children are stopped by their own process id, in reverse order; should this program be killed
outright, the kernel ends them (launch/child.py). They run in process groups of their own: a Ctrl-C reaches this
program alone, which then stops them in order.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ultima.demo import relay
from ultima.demo.relay import Weather
from ultima.launch.processes import answers, dies_with_parent, free_port, private_folder

DAEMON_START_S = 20.0
STOP_S = 5.0
# Rank 0 speaks several times a second once it trains; before that, it loads torch and the images.
SILENCE_S = 120.0
# The last number of the address by which a daemon is known behind a relay, beyond those of 16 daemons themselves.
RELAY_PLACE = 101
LOG_LINES_SHOWN = 15


class ChildFailed(Exception):
    """A daemon or a rank ended that should not have; the message holds the end of its log."""


@dataclass
class Child:
    """One process: its name for messages, the process, and the file that holds what it said."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Cluster:
    """A context manager that owns child processes and a private folder."""

    def __init__(self) -> None:
        self.folder = private_folder("ultima-demo-")
        self.sockets: list[Path] = []
        self._report = self.folder / "relay.json"
        self._relay: Child | None = None
        self._daemons: list[Child] = []
        """And the relay, if there is one."""
        self._ranks: list[Child] = []
        self._gone: list[Child] = []
        """Killed, and nobody asks for them."""

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_ranks()
        _stop(self._daemons)
        _stop(self._gone)  # for their pipes
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_daemons(self, count: int, relayed: bool = False) -> None:
        """Starts |count| daemons on loopback and returns when each takes connections. Raises ChildFailed.

        |relayed|: a relay stands between them, whose weather `change_weather` sets; else they talk to each other.
        """
        # Addresses of loopback that no other demo is likely to have: a relay's ports are those of the daemons.
        net = f"127.{secrets.randbelow(64) + 64}.{secrets.randbelow(256)}"
        for index in range(count):
            folder = self.folder / f"host{index}"
            folder.mkdir(mode=0o700)
            arguments = ["--runtime-dir", str(folder), "--port", "0", "--log-level", "warning", "--insecure"]
            arguments += ["--bind", f"{net}.{index + 1}" if relayed else "127.0.0.1"]
            environment = dict(os.environ)
            if relayed:
                environment["ULTIMAD_ADVERTISE"] = f"{net}.{index + RELAY_PLACE}"
            command = [sys.executable, "-m", "ultima.daemon.process.main", *arguments]
            self._daemons.append(self._start(f"daemon {index}", command, environment))
            self.sockets.append(folder / "ultimad.sock")
        limit = time.monotonic() + DAEMON_START_S
        for child, path in zip(self._daemons, self.sockets, strict=True):
            while not answers(path):
                if child.process.poll() is not None:
                    raise ChildFailed(describe(child))
                if time.monotonic() > limit:
                    raise ChildFailed(
                        f"{child.name} did not listen on {path} within {DAEMON_START_S:g} s\n{tail(child.log)}"
                    )
                time.sleep(0.02)
        if relayed:
            self._start_relay(net)

    def change_weather(self, weather: Weather) -> None:
        """From now on the relay does this to datagrams, and counts anew. Raises ChildFailed."""
        assert self._relay is not None and self._relay.process.stdin is not None
        self._relay.process.stdin.write(json.dumps(asdict(weather)).encode() + b"\n")
        self._relay.process.stdin.flush()
        self._wait_for_relay(lambda found: all(found[name] == value for name, value in asdict(weather).items()))

    def weather_report(self) -> dict[str, Any]:
        """What the relay has done since the last change: its Weather, its Counts, and "unread"."""
        time.sleep(2 * relay.REPORT_S)  # until it has told of the last datagrams
        found: dict[str, Any] = json.loads(self._report.read_text())
        return found

    def _start_relay(self, net: str) -> None:
        from ultima.admin.calls import get_status

        hosts = []
        for index, path in enumerate(self.sockets):
            status = get_status(str(path))
            ports = [port for lane in status.engine.lanes for port in (lane.data_port, lane.feedback_port)]
            host = relay.Host(f"{net}.{index + 1}", f"{net}.{index + RELAY_PLACE}", status.grpc_port, tuple(ports))
            hosts.append(asdict(host))
        command = [sys.executable, "-m", "ultima.demo.relay", json.dumps(hosts), str(self._report)]
        self._relay = self._start("relay", command, dict(os.environ), stdin=subprocess.PIPE)
        self._daemons.append(self._relay)
        self._wait_for_relay(lambda found: True)

    def _wait_for_relay(self, there: Callable[[dict[str, Any]], bool]) -> None:
        assert self._relay is not None
        limit = time.monotonic() + DAEMON_START_S
        while not self._report.exists() or not there(json.loads(self._report.read_text())):
            if self._relay.process.poll() is not None:
                raise ChildFailed(describe(self._relay))
            if time.monotonic() > limit:
                raise ChildFailed(f"the relay did not answer within {DAEMON_START_S:g} s\n{tail(self._relay.log)}")
            time.sleep(0.02)

    def run_ranks(self, count: int, arguments: list[str], backend: str, on_line: Callable[[bytes], None]) -> None:
        """Runs |count| ranks of `ultima.demo.train` to their end; each line of rank 0's output goes to |on_line|.

        Raises ChildFailed as soon as a rank ends with another status than 0, a daemon ends, or rank 0 falls silent.
        """
        port = free_port()
        command = [sys.executable, "-m", "ultima.demo.train", "--events", "--backend", backend, *arguments]
        for rank in range(count):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            if self.sockets:
                environment["ULTIMA_SOCKET"] = str(self.sockets[rank % len(self.sockets)])
            self._ranks.append(self._start(f"rank {rank}", command, environment, output=rank == 0))
        for line in self._lines(self._ranks[0].process):
            on_line(line)
        self._ranks.clear()

    def start_rank(self, index: int, module: str, arguments: list[str]) -> Child:
        """A rank on the host |index| that reads what to do from its standard input and tells it on its output."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ULTIMA_SOCKET": str(self.sockets[index])}
        command = [sys.executable, "-m", module, *arguments]
        self._ranks.append(self._start(f"rank {index}", command, environment, output=True, stdin=subprocess.PIPE))
        return self._ranks[-1]

    def kill_host(self, index: int, rank: Child) -> None:
        """Kills a daemon and the rank on its host; neither has a moment to say anything, and neither is missed."""
        for children, child in ((self._daemons, self._daemons[index]), (self._ranks, rank)):
            child.process.kill()
            child.process.wait()
            self._gone.append(child)
            children.remove(child)

    def check(self) -> None:
        """Raises ChildFailed if a process has ended that should not have."""
        self._check()

    def stop_ranks(self) -> None:
        _stop(self._ranks)
        self._ranks.clear()

    def _start(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        output: bool = False,
        stdin: int = subprocess.DEVNULL,
    ) -> Child:
        log = self.folder / f"{name.replace(' ', '')}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                dies_with_parent(command),
                env=environment,
                stdin=stdin,
                stdout=subprocess.PIPE if output else file,
                stderr=file,
                process_group=0,
            )
        return Child(name, process, log)

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Lines of rank 0 until all ranks have ended, watching the others meanwhile."""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        rest = b""
        open_still = True
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector, process.stdout as stream:
            selector.register(stream, selectors.EVENT_READ)
            while open_still or any(child.process.poll() is None for child in self._ranks):
                self._check()
                if time.monotonic() - heard > SILENCE_S:
                    raise ChildFailed(f"rank 0 has said nothing for {SILENCE_S:g} s\n{tail(self._ranks[0].log)}")
                if not open_still:
                    time.sleep(0.02)
                elif selector.select(0.1):
                    chunk = os.read(stream.fileno(), 65536)
                    heard = time.monotonic()
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines
                    if not chunk:
                        open_still = False
                        selector.unregister(stream)
            self._check()

    def _check(self) -> None:
        for child in self._ranks:
            if child.process.poll():
                raise ChildFailed(describe(child))
        for child in self._daemons:
            if child.process.poll() is not None:
                raise ChildFailed(describe(child))


def describe(child: Child) -> str:
    """One line of how a child ended, and the end of its log."""
    status = child.process.returncode
    how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
    return f"{child.name} ended {how}\n{tail(child.log)}"


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"  {line}" for line in lines[-LOG_LINES_SHOWN:]) or "  (it said nothing)"


def _stop(children: list[Child]) -> None:
    """SIGTERM in reverse order, SIGKILL for those that outlast the grace; returns when all are gone."""
    for child in reversed(children):
        with suppress(ProcessLookupError):
            child.process.terminate()
    limit = time.monotonic() + STOP_S
    for child in children:
        try:
            child.process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        for stream in (child.process.stdin, child.process.stdout):
            if stream is not None:
                stream.close()
