# SPDX-License-Identifier: Apache-2.0
"""The other daemons that watch this one, and what each of them is told.

After the last news an empty message follows. TCP finds a packet that was lost by a later one, within a round trip; for
the last one that it has sent it waits 200 ms and more (RFC 8985, section 7: a tail loss probe allows for delayed
acknowledgements). Ops are held back meanwhile.

A watcher says at which place it listens itself, and hears of the jobs that have a host there. One whose call comes from
that very address is taken at its word so far that this daemon may watch it in turn (fellows.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ultima.daemon.base.addresses import same_machine
from ultima.daemon.base.errors import Unavailable
from ultima.daemon.base.quota import Quota
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.job import Job
from ultima.v1 import peer_pb2

WATCHERS_MAX = 1024
BEHIND_MAX = 256  # messages; a watcher further behind starts over with a new stream
TAIL_SECONDS = 0.003  # from the last news to the message after it, so that it is a packet of its own
GRACE_SECONDS = 6.0  # that a watcher has to come again, before its place counts as one that watches no more


@dataclass(eq=False)
class _Watcher:
    place: Place
    source: str
    queue: asyncio.Queue[peer_pb2.WatchResponse | None] = field(default_factory=lambda: asyncio.Queue(BEHIND_MAX))
    tail: asyncio.TimerHandle | None = None

    def put(self, news: peer_pb2.WatchResponse | None) -> None:
        if self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            news = None
        self.queue.put_nowait(news)
        self.told()

    def told(self) -> None:
        """Something was told just now, or is about to be."""
        self.stop_tail()
        self.tail = asyncio.get_running_loop().call_later(TAIL_SECONDS, self._put_tail)

    def stop_tail(self) -> None:
        if self.tail is not None:
            self.tail.cancel()

    def _put_tail(self) -> None:
        if self.queue.empty():
            self.queue.put_nowait(peer_pb2.WatchResponse())


class Watchers:
    """Each watcher hears of the jobs that it shares with this host: how they are now, and then each change."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[Job]],
        on_come: Callable[[], None] = lambda: None,
        on_gone: Callable[[Place], None] = lambda place: None,
    ) -> None:
        """`jobs` are all jobs of this host. `on_come` is told that a place begins to watch, `on_gone` that none has
        watched from there for GRACE_SECONDS."""
        self._jobs, self._on_come, self._on_gone = jobs, on_come, on_gone
        self._watchers: set[_Watcher] = set()
        self._leaving: dict[Place, tuple[asyncio.TimerHandle, str]] = {}
        self._closed = False
        self._quota = Quota("daemons that watch this one", WATCHERS_MAX)

    def __len__(self) -> int:
        return len(self._watchers)

    def places(self) -> set[Place]:
        """Where those listen that watch this daemon, or did a moment ago."""
        return {watcher.place for watcher in self._watchers} | self._leaving.keys()

    def proven(self) -> set[Place]:
        """Those of them who call from the address at which they say that they listen."""
        return {
            place for place, sources in self._sources().items() if any(same_machine(s, place.address) for s in sources)
        }

    def tell(self, job: Job) -> None:
        """Something changed in `job`."""
        news = job.news()
        for watcher in self._watchers:
            if job.tells(watcher.place):
                watcher.put(news)

    def tell_word(self, job: Job) -> None:
        """This host has something new to say for the agreement on epochs."""
        news = job.epoch_news()
        for watcher in self._watchers:
            if job.sees(watcher.place):
                watcher.put(news)

    def tell_state(self, job: Job, rank: int) -> None:
        """A rank here says something new of its state."""
        news = job.state_news(rank)
        for watcher in self._watchers:
            if job.sees(watcher.place):
                watcher.put(news)

    def part_with(self, nodes: Iterable[str]) -> None:
        """Ends the streams to these nodes."""
        gone = set(nodes)
        for watcher in self._watchers:
            if watcher.place.node in gone:
                watcher.put(None)

    def close(self) -> None:
        """Ends all streams, after what was told."""
        self._closed = True
        for handle, _ in self._leaving.values():
            handle.cancel()
        self._leaving.clear()
        for watcher in self._watchers:
            watcher.put(None)

    async def stream(
        self, address: str, grpc_port: int, source: str, node: str = ""
    ) -> AsyncIterator[peer_pb2.WatchResponse]:
        """All that the daemon there is to hear, until it falls behind. `source` is where the call comes from, and
        stands for an empty `address`; `node` is whose certificate it shows."""
        with self._quota.taken(node or source):
            watcher = _Watcher(Place(address or source, grpc_port, node), source)
            self._come(watcher)
            try:
                yield peer_pb2.WatchResponse()
                for known in self._known(watcher.place):
                    watcher.told()
                    yield known
                while (news := await watcher.queue.get()) is not None:
                    yield news
                raise Unavailable("the stream ends: the daemon is going down, or the watcher is too far behind")
            finally:
                self._go(watcher)

    def _known(self, place: Place) -> Iterator[peer_pb2.WatchResponse]:
        """What a daemon that begins to watch is told of the jobs that are here."""
        for job in self._jobs():
            if job.ready and (job.sessions or not job.joining) and job.tells(place):
                yield job.news()
            if job.word is not None and job.sees(place):
                yield job.epoch_news()
            for rank in [rank for rank, word in job.state_words.items() if word.here and job.sees(place)]:
                yield job.state_news(rank)

    def _come(self, watcher: _Watcher) -> None:
        self._watchers.add(watcher)
        if (leaving := self._leaving.pop(watcher.place, None)) is not None:
            leaving[0].cancel()
        self._on_come()

    def _go(self, watcher: _Watcher) -> None:
        self._watchers.remove(watcher)
        watcher.stop_tail()
        if watcher.place not in self.places() and not self._closed:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(GRACE_SECONDS, self._gone, watcher.place)
            self._leaving[watcher.place] = handle, watcher.source

    def _sources(self) -> dict[Place, set[str]]:
        ret: dict[Place, set[str]] = {place: {source} for place, (_, source) in self._leaving.items()}
        for watcher in self._watchers:
            ret.setdefault(watcher.place, set()).add(watcher.source)
        return ret

    def _gone(self, place: Place) -> None:
        del self._leaving[place]
        self._on_gone(place)
