# SPDX-License-Identifier: Apache-2.0
"""Processes of Python that begin with their imports done.

A rank imports torch, and at its first optimizer torch's compiler too: four seconds of a core, a hundred times over. A
nursery is one process that has imported what many programs need, has no thread, and forks a child for each program that
it is asked for. The child becomes what `python -m MODULE` would be: it has a `__main__` of its own, the caller's
environment, folder and files, default signals, a process group of its own, and the interpreter's ordinary end. Workers
of one run of pytest share a nursery: each has a line to it. When a process ends, the children that it asked for are
killed, and the nursery ends with the last one.

What differs from a process started anew: the command line in /proc is the nursery's, all children hash strings with one
seed, and variables that a library reads while it is imported come too late. Tests of just that start their processes
themselves, as `test_launch.py` and `test_start.py` do.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import types
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MESSAGE_BYTES = 1 << 17
STARTED_S = 120.0
# What ranks import sooner or later, and what a daemon does.
TORCH = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.profiler")
DAEMON = ("ultima.daemon.process.server",)
# And the command line, with what its verbs ask for.
COMMANDS = (
    *("numpy", "ultima", "ultima.admin.calls", "ultima.launch.launcher", "rich.console"),
    *("ultima.cli.main", "ultima.cli.perf_bench", "ultima.cli.run"),
)
# Where `ip netns` keeps the network namespaces that have names, and what the kernel calls one (sched.h).
NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000


class Process:
    """A child of a nursery, with the part of subprocess.Popen that the tests use. Its standard input is empty."""

    def __init__(self, args: list[str], report: int, stdout: int | None, stderr: int | None) -> None:
        self.args = args
        self.returncode: int | None = None
        self.stdin = None
        self.stdout = None if stdout is None else os.fdopen(stdout, "rb")
        self.stderr = None if stderr is None else os.fdopen(stderr, "rb")
        self._report = socket.socket(fileno=report)
        self._report.settimeout(STARTED_S)
        told = self._report.recv(64)
        if not told:
            raise RuntimeError("the nursery ended; standard error may say why")
        self.pid = int(told)
        self._said: dict[Any, list[bytes]] = {each: [] for each in (self.stdout, self.stderr) if each is not None}

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired after |timeout| seconds."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._report.settimeout(timeout)
            try:
                told = self._report.recv(64)
            except (BlockingIOError, TimeoutError):
                return None
            # A nursery that is gone has killed its children.
            self.returncode = int(told) if told else -signal.SIGKILL
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the nursery is yet to say so
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to its pipes, read until it closed them, and waits for its end. May be asked again."""
        limit = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if limit is None else max(0.0, limit - time.monotonic())

        with selectors.DefaultSelector() as selector:
            for stream in self._said:
                if not stream.closed:
                    selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                if not (ready := selector.select(left())):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    if piece := os.read(key.fd, 65536):
                        self._said[key.fileobj].append(piece)
                    else:
                        selector.unregister(key.fileobj)
        self.wait(left())
        for stream in self._said:
            stream.close()
        out, errors = (b"".join(self._said.get(stream, [])).decode() for stream in (self.stdout, self.stderr))
        return out, errors


class Nursery:
    """Starts `python -m MODULE` again and again, out of one process that has imported |modules|. Whoever gives the same
    |name| at the same time has a line to the same process, with the modules of the first.
    """

    def __init__(self, modules: Sequence[str], name: str = "") -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None
        self._shared = bool(name)
        # The system chooses an address where none is given. It is in no folder, and gone with the nursery.
        address = f"\0ultima-nursery-{name}" if name else ""
        with Path(__file__).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (name and self._line.connect_ex(address) == 0):
                self._process = self._make(modules, address)
        atexit.register(self.close)

    def _make(self, modules: Sequence[str], address: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ULTIMA")}
        # Read while libraries are imported: no thread may be there at a fork, and gRPC's own care of forks starts one.
        environment |= {"OMP_NUM_THREADS": "1", "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
        command = [sys.executable, "-m", "tests.nursery", *modules]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(address)
            door.listen()
            self._line.connect(door.getsockname())
            return subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=door, stdout=subprocess.DEVNULL, process_group=0
            )

    def start(
        self,
        module: str,
        arguments: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        stdout: Any = subprocess.DEVNULL,
        stderr: Any = subprocess.DEVNULL,
        cwd: Path = ROOT,
        namespace: str = "",
    ) -> Process:
        """As `Popen([sys.executable, "-m", module, *arguments], ...)`. |stdout| and |stderr|: a file, DEVNULL, STDOUT
        (for standard error), or PIPE, which gives bytes. |namespace|: of the network, by the name that `ip netns` has.
        """
        ask = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "cwd": str(cwd),
            "namespace": namespace,
        }
        ours: list[int | None] = []
        theirs: list[int] = []
        for stream in (stdout, stderr):
            if stream == subprocess.PIPE:
                end, other = os.pipe()
                ours.append(end)
                theirs.append(other)
            elif stream == subprocess.STDOUT:
                ours.append(None)
                theirs.append(os.dup(theirs[0]))
            else:
                ours.append(None)
                theirs.append(os.open(os.devnull, os.O_WRONLY) if stream == subprocess.DEVNULL else os.dup(_fd(stream)))
        report, other_report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._line, [json.dumps(ask).encode()], [*theirs, other_report.fileno()])
        finally:
            other_report.close()
            for fd in theirs:
                os.close(fd)
        return Process([sys.executable, "-m", module, *ask["arguments"]], report.detach(), *ours)

    def close(self) -> None:
        """Ends what runs of the children that were asked for here, and the nursery if nobody else has a line to it.
        Idempotent.
        """
        self._line.close()
        if self._process is not None and not self._shared:
            self._process.wait(30)


def _fd(stream: Any) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


@functools.cache
def nursery_of(modules: tuple[str, ...]) -> Nursery:
    """The one for |modules| of this process, or of all workers of its run of pytest, made at the first call."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    return Nursery(modules, f"{run}-{zlib.crc32(' '.join(modules).encode()):08x}" if run else "")


def serve(door: socket.socket) -> dict[str, Any]:
    """Forks until the last line that came in by |door| is closed. Returns only in a child: what it is to be."""
    lines: set[socket.socket] = set()
    children: dict[int, tuple[int, socket.socket, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(door, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is door:
                    line = door.accept()[0]
                    lines.add(line)
                    selector.register(line, selectors.EVENT_READ)
                elif key.fileobj in lines:
                    line = key.fileobj  # type: ignore[assignment]
                    data, fds, _, _ = socket.recv_fds(line, MESSAGE_BYTES, 3)
                    if not data:
                        for pid, _, asked in children.values():
                            if asked is line:
                                os.kill(pid, signal.SIGKILL)
                        selector.unregister(line)
                        lines.remove(line)
                        line.close()
                        if not lines and not select.select([door], [], [], 0)[0]:
                            os._exit(0)
                        continue
                    report = socket.socket(fileno=fds.pop())
                    pid = os.fork()
                    if pid == 0:
                        os.setpgid(0, 0)  # here and below, for either may be first
                        selector.close()
                        for each in (door, *lines, report, *(other for _, other, _ in children.values())):
                            each.close()
                        for pidfd in children:
                            os.close(pidfd)
                        return {**json.loads(data), "fds": fds}
                    for fd in fds:
                        os.close(fd)
                    os.setpgid(pid, pid)
                    pidfd = os.pidfd_open(pid)
                    children[pidfd] = (pid, report, line)
                    selector.register(pidfd, selectors.EVENT_READ)
                    _tell(report, pid)
                else:
                    selector.unregister(key.fd)
                    pid, report, _ = children.pop(key.fd)
                    os.close(key.fd)
                    _tell(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    report.close()


def _tell(report: socket.socket, number: int) -> None:
    try:
        report.send(str(number).encode())
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise


def enter(namespace: str) -> None:
    """Moves this process, which has one thread, into the network of |namespace|."""
    with (NAMESPACES / namespace).open("rb") as there:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def become(wanted: dict[str, Any]) -> tuple[types.CodeType, dict[str, Any]]:
    """Makes this process what `python -m MODULE` begins as; returns what is left to run, and in which variables."""
    for target, fd in enumerate((os.open(os.devnull, os.O_RDONLY), *wanted["fds"])):
        os.dup2(fd, target)
        os.close(fd)
    if wanted["namespace"]:
        enter(wanted["namespace"])
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.path[0] = wanted["cwd"]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    main = types.ModuleType("__main__")
    spec = importlib.util.find_spec(wanted["module"])
    assert spec is not None and spec.origin is not None
    code = spec.loader.get_code(wanted["module"])  # type: ignore[union-attr]
    main.__spec__, main.__file__, main.__loader__ = spec, spec.origin, spec.loader
    main.__package__ = spec.parent
    sys.modules["__main__"] = main
    sys.argv = [spec.origin, *wanted["arguments"]]
    return code, main.__dict__


if __name__ == "__main__":
    for _module in sys.argv[1:]:
        importlib.import_module(_module)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would leave a thread behind, and what it had locked"
    gc.collect()
    gc.freeze()  # or each child's first collection would touch, and so copy, all of it
    exec(*become(serve(socket.socket(fileno=os.dup(0)))))
