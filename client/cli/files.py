# SPDX-License-Identifier: Apache-2.0
"""Files for somebody who may be root, in folders that may be everybody's: made anew, for their owner alone.

A name in a folder where others write may be theirs already, or a link of theirs to one of our files. So nothing is
opened that is there already, no link is followed, and a folder for several files must be one where only its owner, who
is this user, can put something.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

FOLDER_ALLOWED = "a new folder, or one of this user that others may not write to, as `$(mktemp -d)` makes"
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_all(folder: Path, files: Mapping[str, Callable[[], bytes]]) -> None:
    """Writes files into a folder, which is made if it is not there. Raises InvalidArgument, which names DIR."""
    from ultima.base.errors import InvalidArgument

    try:
        with _opened(folder) as inside:
            for name, content in files.items():
                with new_file(name, inside) as file:
                    file.write(content())
    except FileExistsError as error:
        raise InvalidArgument(
            "DIR", str(folder), f"a folder without {error.filename}, which is never replaced"
        ) from None
    except OSError as error:
        raise InvalidArgument("DIR", str(folder), f"a folder that can be written ({error.strerror})") from None


def new_file(path: str | Path, folder: int | None = None, mode: int = 0o600) -> BinaryIO:
    """A file that was not there, for its owner alone by itself; `path` is relative to the open `folder` if there is
    one. Raises OSError."""
    return os.fdopen(os.open(path, NEW, mode, dir_fd=folder), "wb")


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A folder where nobody but us can put something. Raises InvalidArgument or OSError."""
    from ultima.base.errors import InvalidArgument

    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(inside)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise InvalidArgument(
                "DIR", f"{folder} (of uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})", FOLDER_ALLOWED
            )
        yield inside
    finally:
        os.close(inside)
