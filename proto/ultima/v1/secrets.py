# SPDX-License-Identifier: Apache-2.0
"""How the secret of a job is written, and what keeps it secret on disk. Trainers and daemons read the same files."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

SECRET_BYTES = 32
SECRET_ALLOWED = f"{2 * SECRET_BYTES} hexadecimal digits, as `ultima ca secret FILE` writes"
_TEXT = re.compile(rf"\s*([0-9A-Fa-f]{{{2 * SECRET_BYTES}}})\s*")
FILE_BYTES_MAX = 1 << 20


def new_text() -> str:
    """A new secret, as text."""
    return secrets.token_hex(SECRET_BYTES)


def parse(text: str) -> bytes:
    """The secret in a text. Raises ValueError, which does not repeat the text."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"holds no secret: allowed: {SECRET_ALLOWED}")
    return bytes.fromhex(found[1])


def read_private(path: Path) -> bytes:
    """What a file holds that only its owner, root and at most one group may read.

    Raises ValueError with what is wrong and what to do, for a sentence that begins with the file's name.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ValueError(
            f"cannot be read: {error.strerror}: check the path, and that uid {os.geteuid()} may read it"
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise ValueError(f"belongs to uid {found.st_uid}: allowed: uid {os.geteuid()}, which reads it, or root")
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ValueError(
            f"has mode {mode:04o}, so that others can read or change it: make a new one, and keep it with chmod 0600"
        )
    return data


def read_file(path: Path) -> bytes:
    """The secret in a file. Raises ValueError, as `read_private`."""
    return parse(read_private(path).decode("ascii", errors="replace"))
