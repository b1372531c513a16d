# SPDX-License-Identifier: Apache-2.0
"""Writes the files of an authority and of a node: a new one is whole or not there, and private from its first byte."""

from __future__ import annotations

import os
from pathlib import Path

from ultima.base.errors import UltimaError


def write(path: Path, data: bytes, mode: int) -> None:
    """A new file, which nobody else could read for a moment. Raises UltimaError if there is one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise UltimaError(f"{path}: already exists and would be overwritten: move it, or name another place") from None
    except OSError as error:
        raise UltimaError(f"{path}: cannot be written: {error.strerror}") from None


def replace(path: Path, data: bytes, mode: int) -> None:
    """A file in place of an older one: whoever opens it sees the one or the other, whole. Whose the older one was, his
    is the new one, as far as this user may give it. Raises UltimaError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        write(fresh, data, mode)
        if path.exists():
            before = path.stat()
            if os.geteuid() == 0:
                os.chown(fresh, before.st_uid, before.st_gid)
        os.replace(fresh, path)
    except OSError as error:
        raise UltimaError(f"{path}: cannot be written: {error.strerror}") from None
