# SPDX-License-Identifier: Apache-2.0
"""Real daemons on loopback for the end-to-end tests, and ranks that talk to them from this process.

Each daemon is a process with its own runtime folder and ports, as on a host of its own. They are stopped by their
process id, whatever a test left behind.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import ultima
from tests.nursery import DAEMON, Process, nursery_of
from ultima.admin.calls import get_status
from ultima.v1 import types_pb2

ADDRESS = "127.0.0.1"
START_S = 30.0
Place = TypeVar("Place")
_job_numbers = iter(range(10**6))
_given: set[int] = set()


def free_port() -> int:
    """A port P with TCP P and UDP P+1 to P+4 free just now, below the range from which the kernel picks by itself.

    None is given twice, nor to two workers of pytest: the daemon that it was for may not have taken it yet.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for _ in range(200):
        port = random.SystemRandom().randrange(10240 + 5 * mine, 32700, 5 * workers)
        if port in _given:
            continue
        wanted = ((socket.SOCK_STREAM, port), *((socket.SOCK_DGRAM, port + more) for more in range(1, 5)))
        with ExitStack() as held:
            try:
                for kind, number in wanted:
                    held.enter_context(socket.socket(socket.AF_INET, kind)).bind((ADDRESS, number))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError("no five free ports in a row")


class DaemonProcess:
    """One `ultimad` with its folder. May be killed, stopped, continued and started again in the same place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "ultimad.sock"
        self.port = free_port()
        self.lanes = 2
        self.environment: dict[str, str] = {}
        """Options of the daemon, as ULTIMAD_ variables."""
        self._process: Process | None = None
        (folder / "run").mkdir(mode=0o700, parents=True)

    @property
    def rendezvous(self) -> str:
        return f"{ADDRESS}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def flags(self) -> list[str]:
        return ["--bind", ADDRESS, "--insecure"]

    def launch(self) -> None:
        """Starts it; `wait_until_ready` is a second step so that several start at once."""
        flags = ["--runtime-dir", str(self.folder / "run"), "--port", str(self.port), *self.flags()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ULTIMA")}
        environment |= {"ULTIMAD_ENGINE_LANES": str(self.lanes), **self.environment}
        with (self.folder / "log").open("ab") as log:
            self._process = nursery_of(DAEMON).start("ultima.daemon.process.main", flags, environment, log, log)

    def wait_until_ready(self) -> None:
        limit = time.monotonic() + START_S
        assert self._process is not None
        while True:
            try:
                get_status(str(self.socket), timeout_s=1.0)
                return
            except ultima.DaemonError:
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"the daemon did not start:\n{self.log()}") from None
                time.sleep(0.05)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def suspend(self) -> None:
        """SIGSTOP, and waits until it stands still. SIGCONT wakes it."""
        self.signal(signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def kill(self) -> None:
        """As when its machine loses power. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def stop(self) -> int:
        """Asks it to end and returns its exit status; kills it when it does not."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            return process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(10)


Hosts = list[DaemonProcess]


@contextmanager
def running(count: int, **environment: str) -> Iterator[Hosts]:
    """`count` daemons, ready. `environment` is theirs alone."""
    with tempfile.TemporaryDirectory(prefix="ultima-e2e-") as folder:
        hosts = [DaemonProcess(Path(folder) / f"host{index}") for index in range(count)]
        for host in hosts:
            host.environment |= environment
        with started(hosts):
            yield hosts


@contextmanager
def started(hosts: Sequence[DaemonProcess]) -> Iterator[None]:
    """All of them, until the end of the block."""
    try:
        for host in hosts:
            host.launch()
        for host in hosts:
            host.wait_until_ready()
        yield
    finally:
        for host in hosts:
            host.kill()


def new_job_name() -> str:
    return f"test-{os.getpid()}-{next(_job_numbers)}"


def connect_all(places: Sequence[DaemonProcess], job: str | None = None, **options: Any) -> list[ultima.Job]:
    """A rank on each of `places` (a host may appear several times), all in this process, when all have joined."""
    name = job or new_job_name()
    everything = {"timeout": 30, "deadline": 20, "arena": "16M", **options}

    def one(rank: int) -> ultima.Job:
        host = places[rank]
        return ultima.connect(name, rank, len(places), host.socket, places[0].rendezvous, **everything)

    with ThreadPoolExecutor(len(places)) as threads:
        return list(threads.map(one, range(len(places))))


@contextmanager
def ranks(places: Sequence[DaemonProcess], **options: Any) -> Iterator[list[ultima.Job]]:
    """`connect_all`, and closed at the end."""
    jobs = connect_all(places, **options)
    try:
        yield jobs
    finally:
        for job in jobs:
            job.close()


def everywhere(places: Sequence[Place], call: Callable[[int, Place], Any]) -> list[Any]:
    """`call(rank, place)` for all ranks at once; its results, or the exceptions that it ended with, by rank."""

    def one(rank: int) -> Any:
        try:
            return call(rank, places[rank])
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(places)) as threads:
        return list(threads.map(one, range(len(places))))


def sees(host: DaemonProcess, job: str, other: int) -> bool:
    """Whether the daemon of `host` hears that of the job's host number `other` just now."""
    (found,) = get_status(str(host.socket), job).jobs
    return found.hosts[other].state == types_pb2.HOST_STATE_UP


def complete_soon(jobs: Sequence[ultima.Job], deadline: str = "3s", patient: bool = False) -> bool:
    """True once one op is complete on all ranks: whoever was away is back. `deadline`: of each call.

    Each rank goes at its own pace, as in a training: one that comes back may be an op ahead of the others. `patient`:
    joining may take longer than a call, and an op be complete on some ranks alone; then once more, and once again.
    """
    excused = (ultima.DaemonError, ultima.JoinTimeout) if patient else (ultima.DaemonError,)

    def one(rank: int, job: ultima.Job) -> int | None:
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            data = np.full(500, 1.0 + rank)
            try:
                receipt = job.allreduce(data, "sum", deadline=deadline)
            except excused:
                continue
            if receipt.complete:
                assert (data == sum(range(1, len(jobs) + 1))).all()
                return receipt.op_seq
        return None

    for _ in range(3 if patient else 1):
        ends = everywhere(jobs, one)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        if ends[0] is not None and ends == [ends[0]] * len(jobs):
            return True
    return False
