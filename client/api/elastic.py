# SPDX-License-Identifier: Apache-2.0
"""A job whose hosts come and go while it runs: who is in it, and how to leave it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ultima.api.connection import Connection
from ultima.base.durations import Duration, duration_s
from ultima.base.errors import InvalidArgument
from ultima.base.views import Change, View

VIEWS_MAX = 256  # that are kept for `changes`, for a program that does not ask
LOOK_S = 0.02  # between two looks of `changes`
DRAIN_S_MAX = 600.0


class Views:
    """What an elastic job has beside `Job`."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        self._views: deque[View] = deque(maxlen=VIEWS_MAX)
        self._count = 0
        """Of all that were ever told."""
        self._shown: View | None = None
        self._guard = threading.Lock()
        self._look()

    @property
    def view(self) -> View:
        """Who is in the job now, as far as this host knows. The next op may have a newer view: its receipt says."""
        newest = self._look()
        self._shown = newest
        return newest

    @property
    def changed(self) -> bool:
        """Whether there is another view than the one that `view` returned last. It costs about a microsecond."""
        return self._look() != self._shown

    @property
    def world_size(self) -> int:
        """Number of ranks in the newest view."""
        return self._look().world_size

    @property
    def seats(self) -> int:
        """Ranks that the job can have, as it was opened: each one is below it."""
        return self._connection.settings.world_size

    def changes(self, timeout: Duration | None = None) -> Iterator[Change]:
        """One view after another, from now on.

        timeout: for which the next one is waited; then the iterator ends. None: it ends with the job. A program that
        takes none while 256 views come and go misses the oldest ones.
        """
        seconds = None if timeout is None else duration_s(timeout, "timeout")
        before = self._look()
        seen = self._count
        until = None if seconds is None else time.monotonic() + seconds
        while not self._connection.closed:
            self._look()
            with self._guard:
                fresh = list(self._views)[-(self._count - seen) :] if self._count > seen else []
                seen = self._count
            for view in fresh:
                came = tuple(rank for rank in view.ranks if rank not in before.ranks)
                left = tuple(rank for rank in before.ranks if rank not in view.ranks)
                before = view
                yield Change(view, came, left)
                until = None if seconds is None else time.monotonic() + seconds
            if not fresh:
                if until is not None and time.monotonic() >= until:
                    return
                time.sleep(LOOK_S)

    def leave(self, drain: Duration = "30s") -> None:
        """Leaves the job in good order: ops under way end first, and then the others agree on a view without this rank.

        drain: for which that may take, up to 10 min; then the rank leaves as with `close`. The others do not wait for
        it: an op that they have already begun ends at once, without what this rank was to bring. Idempotent.
        """
        seconds = duration_s(drain, "drain")
        if seconds > DRAIN_S_MAX:
            raise InvalidArgument("drain", drain, f"a duration of at most {DRAIN_S_MAX:.0f} s")
        self._connection.leave(seconds)

    def _look(self) -> View:
        session = self._connection.session
        session.look()
        with self._guard:
            for view in session.take_views():
                if not self._views or self._views[-1] != view:
                    self._views.append(view)
                    self._count += 1
            return self._views[-1]


def of_members(options: Mapping[str, Any], lossy: str) -> dict[str, Any]:
    """The options of a sum of the ranks that are in; lossy: the mode where none is named. Raises InvalidArgument for
    modes that need every rank, and for `agree`."""
    said = dict(options)
    if said.get("mode") is None and lossy == "reliable":
        said["mode"] = "bounded"
    if said.get("mode") not in (None, "bounded", "best_effort"):
        raise InvalidArgument("mode", said["mode"], "bounded or best_effort where hosts come and go")
    agree = said.pop("agree", False)
    if agree is not None and agree is not False:
        raise InvalidArgument("agree", agree, "False where hosts come and go")
    return said
