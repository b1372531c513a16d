# SPDX-License-Identifier: Apache-2.0
"""The folder of the two sockets: it belongs to one daemon at a time, and what a dead one left there is cleared away.

The lock is what counts (flock on DIR/ultimad.lock): the kernel drops it when its holder dies, however that happens.
Socket files stay behind when a daemon is killed; one that nobody listens on is removed, and nothing else ever is.

A user who may write to the folder may put another socket where trainers look for ours. So the folder must belong
to this daemon's user or to root, and besides only the group that may attach, if one is configured, may write to it.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import socket
import stat
from pathlib import Path

from ultima.daemon.base.errors import StartFailed, StartupError

SOCKET_PATH_MAX = 107  # bytes of sun_path, less the closing zero


class RuntimeDir:
    """A folder that this process holds."""

    def __init__(self, path: Path, group: str = "") -> None:
        """Takes the folder, making it if it is not there. Raises StartupError, with one sentence.

        `group` is the one that may attach; "" for none.
        """
        self.path = path
        longest = len(os.fsencode(path / "ultimad.sock"))
        if longest > SOCKET_PATH_MAX:
            raise StartupError(
                f"runtime_dir = {str(path)!r}: a socket in it would have a path of {longest} bytes; "
                f"allowed: {SOCKET_PATH_MAX}"
            )
        try:
            path.mkdir(mode=0o750, parents=True, exist_ok=True)
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                _check(path, os.fstat(folder), group)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._lock = os.open("ultimad.lock", flags, 0o640, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            why = "it is a link, or no folder" if error.errno in (errno.ELOOP, errno.ENOTDIR) else error.strerror
            raise StartupError(f"runtime_dir = {str(path)!r}: cannot be used: {why}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise StartFailed(f"runtime_dir = {str(path)!r}: in use by another ultimad (pid {holder})") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def clear(self, socket_path: Path) -> None:
        """Makes way for a new socket. Raises StartupError if something else is there, or someone listens."""
        try:
            mode = socket_path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise StartupError(f"{socket_path}: in the way, and not a socket")
        if self._someone_listens(socket_path):
            raise StartFailed(f"{socket_path}: another process listens there")
        socket_path.unlink(missing_ok=True)

    def release(self, *socket_paths: Path) -> None:
        """Removes the sockets and lets go of the folder."""
        for path in socket_paths:
            path.unlink(missing_ok=True)
        os.close(self._lock)

    @staticmethod
    def hand_over(socket_path: Path, group: str) -> None:
        """Lets `group` open a socket that was just made; what another put there instead is not followed."""
        if group:
            os.chown(socket_path, -1, grp.getgrnam(group).gr_gid, follow_symlinks=False)

    @staticmethod
    def _someone_listens(path: Path) -> bool:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC) as probe:
                probe.settimeout(1.0)
                try:
                    probe.connect(str(path))
                except OSError as error:
                    if error.errno in (errno.ECONNREFUSED, errno.EPROTOTYPE, errno.ENOENT):
                        continue  # nobody, or a socket of the other kind
                return True
        return False


def _check(path: Path, found: os.stat_result, group: str) -> None:
    """Raises StartupError unless only we, root and `group` can put something into the folder."""
    own, mode = os.geteuid(), stat.S_IMODE(found.st_mode)
    what = f"runtime_dir = {str(path)!r}: belongs to uid {found.st_uid} and gid {found.st_gid}, mode {mode:04o}"
    if found.st_uid not in (own, 0):
        raise StartupError(f"{what}: allowed: a folder of uid {own}, which this daemon runs as, or of root")
    if mode & stat.S_IWOTH:
        raise StartupError(f"{what}: allowed: a folder that others may not write to, as with chmod 0750")
    if mode & stat.S_IWGRP and not (group and found.st_gid == grp.getgrnam(group).gr_gid):
        raise StartupError(
            f"{what}: allowed: a folder that no group may write to, but for allow_group = {group!r}, as with chmod 0750"
        )
