# SPDX-License-Identifier: Apache-2.0
"""The window of a round where hosts come and go: who has given, as daemons pass it on.

There is no partial job whose hosts come and go. So the bell is an elastic job without ops, beside the training's own,
in which each rank says for which round it gave last (`ultima.api.spoken`). It has seats of its own, so ranks are
counted and not named. The thread joins it, so that nobody waits for that: a rank that is not there yet is told of
nothing, and gives at its own points.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from ultima.api.job import ElasticJob, Job
from ultima.api.spoken import Words
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.base.warning import warn
from ultima.local.window import Window
from ultima.settings.options import Options
from ultima.v1.limits import JOB_NAME_MAX

BUCKET_BYTES = 4096  # of an op, of which there is none
LEAVE_S = 2.0  # for the others to agree that this rank leaves, and for the thread to end
AGAIN_S = 5.0  # until the bell is joined again that could not be joined


class ElasticWindow(Window):
    """See Window. base: the training's own job."""

    def __init__(self, base: ElasticJob, name: str, grace: float | str) -> None:
        if len(f"{base.name}/{name}") > JOB_NAME_MAX:
            allowed = f"a name that leaves room for {'/' + name!r} in {JOB_NAME_MAX} characters"
            raise InvalidArgument("job", base.name, allowed)
        self.grace = grace
        self._base, self._name = base, name
        self._bell: ElasticJob | None = None
        self._words: Words | None = None
        self._mine = 0
        self._warned = False
        self._said: tuple[int, ...] = ()
        self._open: tuple[int, float] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def ring(self, op: int) -> None:
        self._mine = op + 1
        if self._words is not None:
            self._words.say(self._mine)

    def hear(self, timeout: float) -> None:
        if self._words is None and not self._over.is_set():
            self._join()
        if self._over.is_set():
            self._leave()
        elif self._words is not None:
            self._said = self._words.hear(self._mine, timeout)

    def given(self, op: int) -> int:
        return sum(number > op for number in self._said)

    def forget(self) -> None:
        self._mine, self._said = 0, ()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LEAVE_S)  # one that still joins the bell leaves it when it is there
        self._leave()

    def _join(self) -> None:
        try:
            made = self._base.beside(self._name, Options(), bucket_bytes=BUCKET_BYTES)
        except UltimaError as error:
            if not self._warned and not self._over.is_set():
                warn(f"grace: this rank is not told when others give: {self._name} could not be joined: {error}")
            self._warned = True
            self._over.wait(AGAIN_S)
            return
        assert isinstance(made, ElasticJob)
        self._bell, self._words = made, Words(made._connection)

    def _leave(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            with suppress(UltimaError):  # its daemon is away: the others find out
                bell.leave(LEAVE_S)
            bell.close()


def window_of(base: Job, rounds: Job, name: str, grace: float | str | None) -> Window | None:
    """Of a training's own job and that of its rounds; name: of the bell beside `base`. None where there is no grace, or
    nobody to be late."""
    if grace is not None and isinstance(base, ElasticJob):
        return ElasticWindow(base, name, grace)
    return Window.of(rounds, "bell", grace)
