# SPDX-License-Identifier: Apache-2.0
"""Ultima on the hosts of a lab: a daemon on each, and `ultima perf` across them with one rank a host.

Ranks are started as torchrun starts them, by environment alone, so what is tested is what users run. Tests have daemons
and ranks forked (tests/nursery.py); a benchmark starts them as users do.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.daemon.trust.papers import Authority, papers
from tests.lab.lab import Host, Lab
from tests.nursery import COMMANDS, DAEMON, Process, nursery_of
from ultima.admin.calls import get_status
from ultima.cli.status import to_dict

BIN = Path(sys.executable).parent
PORT = 29520
START_S = 30.0


@dataclass
class PerfRun:
    """What one `ultima perf` came to: exit status and output of each rank, and rank 0's table and JSON."""

    statuses: list[int]
    outputs: list[str]
    report: dict[str, Any]

    @property
    def table(self) -> str:
        return self.outputs[0]

    def explain(self) -> str:
        """All that the ranks said, for the message of a failing test."""
        ended = zip(self.statuses, self.outputs, strict=True)
        return "\n".join(f"--- rank {rank}, status {status}\n{said}" for rank, (status, said) in enumerate(ended))


class Cluster:
    """A daemon on every host of |lab| while the context lasts. |v6| binds the hosts' IPv6 addresses instead. |anew|:
    every process by an interpreter of its own. |authority|: daemons have certificates of it, and seal their packets.
    """

    def __init__(self, lab: Lab, v6: bool = False, anew: bool = False, authority: Authority | None = None) -> None:
        self.lab = lab
        self._authority = authority
        self._anew = anew
        self.addresses = [host.address6 if v6 else host.address for host in lab.hosts]
        self.folder = Path(tempfile.mkdtemp(prefix="ultima-lab-"))
        self.daemons: list[subprocess.Popen[bytes] | Process] = []
        self._runs = 0

    def __enter__(self) -> Cluster:
        try:
            for host, address in zip(self.lab.hosts, self.addresses, strict=True):
                self.daemons.append(self._start(host.index, address))
            for index in range(len(self.daemons)):
                self._wait(index)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def runtime_dir(self, index: int) -> Path:
        return self.folder / f"host{index}"

    def socket(self, index: int) -> Path:
        """The daemon's gRPC socket on host |index|: what ULTIMA_SOCKET names."""
        return self.runtime_dir(index) / "ultimad.sock"

    def log(self, index: int) -> str:
        return (self.folder / f"host{index}.log").read_text(errors="replace")

    def kill(self, index: int) -> None:
        """Ends the daemon of one host, as when its machine loses power."""
        self.daemons[index].kill()
        self.daemons[index].wait()

    def launch(self, index: int) -> None:
        """Starts the daemon of one host anew, after `kill`."""
        shutil.rmtree(self.runtime_dir(index))
        self.daemons[index] = self._start(index, self.addresses[index])

    def wait_until_ready(self, index: int) -> None:
        """Returns when the daemon of one host listens. Raises RuntimeError if it does not start."""
        self._wait(index)

    def _start(self, index: int, address: str) -> subprocess.Popen[bytes] | Process:
        self.runtime_dir(index).mkdir(mode=0o700)
        where, more = self._listens(index, address)
        arguments = ["--runtime-dir", str(self.runtime_dir(index)), *where]
        arguments += ["--port", str(PORT), "--log-level", "info", *([] if self._authority else ["--insecure"])]
        trust = papers(self.folder, f"n{index}", self._authority).environment if self._authority else {}
        with (self.folder / f"host{index}.log").open("wb") as log:
            variables = trust | more
            return self._child(self.lab.host(index), "ultimad", "ultima.daemon.process.main", arguments, variables, log)

    def _listens(self, index: int, address: str) -> tuple[list[str], dict[str, str]]:
        """Flags that say where the daemon of host |index| is found, which is |address|, and variables."""
        return ["--bind", address], {}

    def _child(
        self, host: Host, name: str, module: str, arguments: list[str], variables: dict[str, str], out: IO[bytes]
    ) -> subprocess.Popen[bytes] | Process:
        """The command |name|, which is |module| when it is forked; all that it says goes to |out|."""
        if self._anew:
            files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            return host.popen([str(BIN / name), *arguments], variables, **files)
        nursery = nursery_of(DAEMON + COMMANDS)
        return host.fork(nursery, module, arguments, environment=os.environ | variables, stdout=out, stderr=out)

    def _wait(self, index: int) -> None:
        limit = time.monotonic() + START_S
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(self.socket(index))) == 0:
                    return
            if self.daemons[index].poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"the daemon of host {index} does not listen:\n{self.log(index)}")
            time.sleep(0.05)

    def _stop(self) -> None:
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, rank: int) -> dict[str, str]:
        """What torchrun and a user would set for |rank|, one rank a host."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.lab.hosts)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.addresses[0],
            # A run has a job of its own: its name comes from here, and what one run spoils is not the next one's.
            "MASTER_PORT": str(29500 - self._runs),
            "ULTIMA_SOCKET": str(self.socket(rank)),
            "OMP_NUM_THREADS": "1",
        }

    def perf(self, *flags: str, timeout: float = 120) -> PerfRun:
        """Runs `ultima perf` with |flags| on all hosts to its end; a rank that outlasts |timeout| seconds is killed."""
        self._runs += 1
        report = self.folder / "perf.json"
        report.unlink(missing_ok=True)
        arguments = ["perf", *flags, "--loss-columns", "-J", str(report)]
        # Files, not pipes: nobody reads while the ranks run, and a full pipe would stop one.
        outputs = [self.folder / f"rank{rank}.out" for rank in range(len(self.lab.hosts))]
        ranks = []
        for rank, path in enumerate(outputs):
            with path.open("wb") as out:
                host, variables = self.lab.host(rank), self.environment(rank)
                ranks.append(self._child(host, "ultima", "ultima.cli.__main__", arguments, variables, out))
        limit = time.monotonic() + timeout
        for rank in ranks:
            try:
                rank.wait(timeout=max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
        said = [path.read_text(errors="replace") for path in outputs]
        found = json.loads(report.read_text()) if report.exists() else {}
        return PerfRun([rank.returncode for rank in ranks], said, found)

    def status(self, index: int) -> dict[str, Any]:
        """What `ultima status --json` prints of the daemon on host |index|."""
        return to_dict(get_status(str(self.socket(index))))
