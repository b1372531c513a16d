# SPDX-License-Identifier: Apache-2.0
"""Whether a host is gone: its daemon's watch has ended, or its ops are not complete and it says nothing.

A process that was killed refuses the next connection, and a new life of a daemon knows nothing of the old one's paths:
then the host is gone at once. Where nobody answers at all it may be only the network of the daemons that is down, or a
daemon that is very busy. So the engine of the host is asked over UDP, which answers whether an op is open or not: the
path stays as long as datagrams come on it. A machine that vanished keeps its watch until a keepalive fails, which takes
long: an op that is not complete has all engines asked, and the daemons of those that do not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ultima.daemon.base.errors import DeadlineExceeded, Refused, Unavailable
from ultima.daemon.base.waiting import spawn
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.link import Link

ANSWER_SECONDS = 1.0  # for a daemon to answer whether it lives
HEARD_SECONDS, HEARD_TRIPS = 0.12, 4  # without a datagram though it is asked, or so many round trips: it is gone
LOOK_SECONDS = 0.03  # from one question over UDP to the next, and between two looks
QUESTIONS = 4  # at least: this loop may have been held up, and a datagram be lost
# Before a daemon is asked again that could not be, and at most: it doubles each time. A process that dies closes its
# connections one by one: where the watch goes first, its port still takes a connection for a moment.
AGAIN_SECONDS, AGAIN_MOST_SECONDS = 0.01, 0.2
SUSPECT_SECONDS = 0.25  # for an engine to answer that was asked because an op is not complete

Absent = Callable[[Job, int, str], None]


class Silence:
    """See the module. It belongs to the event loop."""

    def __init__(
        self,
        engine: HostEngine,
        absent: Absent,
        stands: Callable[[Place], bool],
        watch_anew: Callable[[Place], None],
        round_trip: Callable[[Place], float],
    ) -> None:
        """`absent` is told of a host that is gone, and why; `stands` says whether a daemon is watched, and `round_trip`
        how many seconds hardly any exchange with it exceeds. A watch that only seems to stand is made anew: it tells
        how the host is once there is a way again."""
        self._engine, self._absent, self._stands, self._watch_anew = engine, absent, stands, watch_anew
        self._round_trip = round_trip
        self._asking: dict[Link, asyncio.Task[None]] = {}
        self._looks: dict[Job, asyncio.TimerHandle] = {}

    def lost(self, job: Job, link: Link) -> None:
        """The watch of a host has ended to which there is a path."""
        self._ask(job, link, watched=False)

    def not_complete(self, job: Job) -> None:
        """An op lacks something: who says nothing from now on, though it is asked, may be gone."""
        if job.over or job.links is None or job in self._looks:
            return
        links = [link for link in job.links.values() if link.up()]
        for link in links:
            with contextlib.suppress(Refused):  # of the engine, which may know before this loop that a path is down
                self._engine.peer_ask(job.number, link.host.index)
        patience = max((self._patience(job, link) for link in links), default=0.0)
        loop, heard = asyncio.get_running_loop(), self._counts(job, links)
        self._looks[job] = loop.call_later(max(SUSPECT_SECONDS, patience), self._look, job, heard)

    def _look(self, job: Job, before: dict[Link, int]) -> None:
        """Asks the daemons of those that have said nothing since: also where a watch is yet to stand again."""
        del self._looks[job]
        if job.over or job.links is None:
            return
        links = [link for link in job.links.values() if link.up()]
        heard = self._counts(job, links)
        for link in links:
            if before.get(link) == heard[link]:
                self._ask(job, link, watched=self._stands(link.host.place))

    def close(self) -> None:
        """Asks nobody any more."""
        for task in self._asking.values():
            task.cancel()
        for look in self._looks.values():
            look.cancel()

    def _ask(self, job: Job, link: Link, watched: bool) -> None:
        if link not in self._asking:
            task = self._asking[link] = spawn(self._find_out(job, link, watched), f"alive-{job.name}")
            task.add_done_callback(lambda _: self._asking.pop(link))

    async def _find_out(self, job: Job, link: Link, watched: bool) -> None:
        life = link.host.incarnation

        def same() -> bool:
            return link.up() and not job.over and link.host.incarnation == life

        links = job.links
        assert links is not None

        async def ask() -> bool | None:
            patience = max(LOOK_SECONDS, 2 * self._round_trip(link.host.place))
            return await alive(link.host.place, lambda: links.stands_by(link), patience)

        def gone(why: str) -> None:
            self._absent(job, link.host.index, why)
            if watched:
                self._watch_anew(link.host.place)

        # A watch that ended says enough; where it stands a daemon that is slow to answer is given its time.
        lives, told, pause = None, not watched, 0.0
        loop, asked = asyncio.get_running_loop(), asyncio.create_task(ask())
        before, since, questions, due = self._counts(job, [link])[link], loop.time(), 0, 0.0
        try:
            while same() and not lives:
                if lives is False:
                    gone("its daemon is gone")
                    return
                heard = self._counts(job, [link])[link]
                if heard != before and self._stands(link.host.place):
                    return
                silent = loop.time() - since
                if heard != before:
                    before, since, questions = heard, loop.time(), 0
                elif told and questions >= QUESTIONS and silent >= self._patience(job, link):
                    gone("its daemon does not answer, and nothing comes from it")
                    return
                elif loop.time() >= due:
                    self._engine.peer_ask(job.number, link.host.index)
                    questions, due = questions + 1, loop.time() + LOOK_SECONDS
                await asyncio.wait({asked}, timeout=LOOK_SECONDS)
                if asked.done():
                    lives, told, pause = asked.result(), True, min(max(AGAIN_SECONDS, 2 * pause), AGAIN_MOST_SECONDS)
                    asked = asyncio.create_task(self._again(ask, pause))
        finally:
            asked.cancel()

    @staticmethod
    async def _again(ask: Callable[[], Awaitable[bool | None]], pause: float) -> bool | None:
        await asyncio.sleep(pause)
        return await ask()

    def _counts(self, job: Job, links: list[Link]) -> dict[Link, int]:
        """Of each path all that has come on it."""
        now = self._engine.snapshot()
        each = {link: now.peer_stats(job.number, link.host.index) for link in links}
        return {link: x.received_bytes + x.feedbacks_heard + x.feedbacks_beside for link, x in each.items()}

    def _patience(self, job: Job, link: Link) -> float:
        """For how long a host says nothing that is gone. The round trip is also that of a path on which no data went
        yet."""
        measured = self._engine.snapshot().peer_stats(job.number, link.host.index).srtt_ns / 1e9
        return max(HEARD_SECONDS, HEARD_TRIPS * max(measured, self._round_trip(link.host.place)))


async def alive(place: Place, stands_by: Callable[[], Awaitable[None]], patience: float) -> bool | None:
    """Whether the life of a daemon goes on to which there is a path; None: nobody can be asked, or answers in time.
    `patience`: seconds that hardly any answer takes."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            if not await _takes_connections(place, patience):
                return False
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await stands_by()
    except (Unavailable, DeadlineExceeded, TimeoutError):
        return None
    except Refused:
        return False
    return True


async def _takes_connections(place: Place, patience: float) -> bool:
    """Whether somebody listens there. TCP sends the first packet of a connection again after a second (RFC 6298), so
    where one finds no answer another one is begun, each later than the last. Raises OSError."""
    tries: set[asyncio.Task[bool]] = set()
    try:
        while True:
            tries.add(asyncio.create_task(_connects(place)))
            done, tries = await asyncio.wait(tries, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if done:
                found, *_ = await asyncio.gather(*done, return_exceptions=True)
                if isinstance(found, BaseException):
                    raise found
                return found
            patience *= 2
    finally:
        for each in tries:
            each.cancel()


async def _connects(place: Place) -> bool:
    try:
        _, writer = await asyncio.open_connection(place.address, place.port)
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
