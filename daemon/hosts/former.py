# SPDX-License-Identifier: Apache-2.0
"""The names of the elastic jobs that meet at this daemon, in a file that outlives it.

A daemon that is started anew knows no job. Its hosts tell it of theirs as soon as they have found it again; a newcomer
that asks before would begin another job of the same name. So the daemon waits a moment with the names in this file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger("ultimad.rendezvous")

NAME = "meeting.json"
BYTES_MAX = 1 << 20  # of a file that is read: 1,024 jobs, each with a name of 128 characters, take less


class Former:
    """See the module. `path` is None where nothing is kept."""

    def __init__(self, path: Path | None, until: float) -> None:
        """`until`: when hosts that are still there have told of their jobs, on the loop's clock."""
        self._path, self._until = path, until
        self._names = _read(path) if path is not None else frozenset[str]()
        self._kept = sorted(self._names)

    def told_until(self, job: str, now: float) -> float | None:
        """Until when to wait to be told of a job; None if there is nothing to wait for."""
        return self._until if job in self._names and now < self._until else None

    def keep(self, names: Collection[str]) -> None:
        """These jobs meet here now."""
        kept = sorted(names)
        if self._path is None or kept == self._kept:
            return
        self._kept, fresh = kept, self._path.with_suffix(".new")
        try:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
                json.dump(kept, file)
            fresh.replace(self._path)
        except OSError as error:
            log.warning("names of jobs not kept path=%s reason=%s", self._path, error.strerror)


def _read(path: Path) -> frozenset[str]:
    """Names, of a file that may be anything."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            found = json.loads(file.read(BYTES_MAX))
    except (OSError, ValueError):
        return frozenset()
    return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()
