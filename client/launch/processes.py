# SPDX-License-Identifier: Apache-2.0
"""What programs share that start others: ports that are free, sockets that answer, children that do not outlive us."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ultima.base.errors import UltimaError

_CHILD = Path(__file__).with_name("child.py")


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


def dies_with_parent(command: Sequence[str]) -> list[str]:
    """The command that becomes |command|, and that the kernel kills when the thread that starts it dies, however that
    happens."""
    return [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid()), *command]


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    streams: tuple[int | None, int | None, int | None] = (None, None, None),
) -> subprocess.Popen[bytes]:
    """Starts |command| with |descriptors| open, in a process group of its own. |streams|: its standard input, output
    and error; None: no input, our output, our error. Raises LaunchFailed."""
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise LaunchFailed(f"{command[0]!r} cannot be started: {_why_not(command[0])}")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # in the child until it is the program: child.py
    try:
        return subprocess.Popen(
            dies_with_parent(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL if streams[0] is None else streams[0],
            stdout=streams[1],
            stderr=streams[2],
            process_group=0,
            pass_fds=descriptors,
        )
    except OSError as error:
        raise LaunchFailed(f"{command[0]!r} cannot be started: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _why_not(program: str) -> str:
    """In the kernel's words."""
    return os.strerror(errno.EACCES if "/" in program and os.path.exists(program) else errno.ENOENT)
