# SPDX-License-Identifier: Apache-2.0
"""What gRPC is told of a Unix socket, in one place for daemons and clients: it takes a target for a URI, and a path may
hold whatever a folder's name may.
"""

from __future__ import annotations

import os
from functools import cache
from urllib.parse import quote


def unix_target(path: str | os.PathLike[str]) -> str:
    """The target of the socket at |path|: `#`, `?` and `%` are encoded. A comma separates addresses to gRPC however it
    is encoded, so a folder with one is named by a descriptor, of which the process keeps one for each such folder.
    """
    whole = os.path.abspath(os.fsencode(path))
    folder, name = os.path.split(whole)
    if b"," in folder and os.path.isdir(folder):
        found = os.stat(folder)
        whole = b"/proc/self/fd/%d/%s" % (_opened(folder, found.st_dev, found.st_ino), name)
    return "unix:" + quote(whole)


@cache
def _opened(folder: bytes, device: int, inode: int) -> int:
    """By device and number, too: a folder that was made anew is another one."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
