# SPDX-License-Identifier: Apache-2.0
"""What programs share that start others: ports that are free, sockets that answer, children that do not outlive us."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ultima.base.errors import UltimaError

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


class LaunchFailed(UltimaError):
    """What a run needs cannot be had, a process could not be started, or the private daemon ended."""


def private_folder(prefix: str) -> Path:
    """A new folder of this user alone, for the sockets and files of one run. Raises LaunchFailed."""
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        tmpdir = os.environ.get("TMPDIR")
        said = f"TMPDIR={tmpdir!r}" if tmpdir else "TMPDIR is not set"
        raise LaunchFailed(
            f"no folder for the run's own files: {error.strerror}; {said}; allowed: a folder in which this user can "
            "make files"
        ) from None


def free_port() -> int:
    """A TCP port of loopback that nobody has now. The kernel goes round them all before it names one again."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(path: Path) -> bool:
    """True if somebody takes connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def dies_with_parent() -> Callable[[], None]:
    """For Popen's preexec_fn: the kernel kills the child when the calling thread dies, however that happens."""
    parent = os.getpid()

    def in_child() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it died before the kernel was told

    return in_child


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    streams: tuple[int | None, int | None, int | None] = (None, None, None),
) -> subprocess.Popen[bytes]:
    """Starts |command| with |descriptors| open, in a process group of its own. |streams|: its standard input, output
    and error; None: no input, our output, our error. Raises LaunchFailed."""
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL if streams[0] is None else streams[0],
            stdout=streams[1],
            stderr=streams[2],
            process_group=0,
            preexec_fn=dies_with_parent(),
            pass_fds=descriptors,
        )
    except OSError as error:
        raise LaunchFailed(f"{command[0]!r} cannot be started: {error.strerror}") from None
