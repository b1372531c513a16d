# SPDX-License-Identifier: Apache-2.0
"""Watches other daemons: a stream to each, over which it tells news, and whose end says that it is gone.

A stream that rests on former certificates, or is old, is replaced before it ends. Which connection it runs over, and
how far the daemon is, `peers.py` says.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import grpc.aio

from ultima.daemon.base.calls import messages
from ultima.daemon.base.errors import Refused, said
from ultima.daemon.base.waiting import spawn
from ultima.daemon.hosts.distance import RoundTrip, connection, exchange
from ultima.daemon.hosts.host import Place
from ultima.daemon.trust.trust import RENEW_SECONDS, Trust
from ultima.v1 import peer_pb2
from ultima.v1.words import clean

log = logging.getLogger("ultimad.peers")

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 5.0
MISSED_SECONDS = 2.0  # for which a daemon may refuse to be watched, at least, before it counts as gone
UNPROVEN_SECONDS = 60.0  # for which a place is called where no peer has ever answered
LOOK_SECONDS = 2.0  # between two looks whether a watch is to be made anew


@dataclass(eq=False)
class _Stream:
    """One stream of a watch."""

    task: asyncio.Task[str]
    """Ends when the stream does, and says why."""
    version: int
    """Of the certificates that it was made with."""
    began: float
    stands: bool = False


class Told(NamedTuple):
    """What is called as watches go."""

    on_news: Callable[[Place, peer_pb2.WatchResponse], None]
    on_lost: Callable[[Place, bool], None]
    """With whether the watch stood: if so it broke, and this is the only call for it; if not, every attempt has failed
    for MISSED_SECONDS or, where that is more, for what a connection and a call may take; and the call is repeated with
    each further one."""
    on_found: Callable[[Place], None]
    """Each time that a watch stands, after a break or as the first one."""


class Watching:
    """The part of `Peers` that is about watches."""

    def __init__(self, watch_request: peer_pb2.WatchRequest, told: Told, trust: Trust | None = None) -> None:
        self._request, self._told, self._trust = watch_request, told, trust
        self._watches: dict[Place, asyncio.Task[None]] = {}
        self._streams: dict[Place, _Stream] = {}

    def round_trip(self, place: Place) -> RoundTrip:
        """How far a daemon is, as far as was measured."""
        raise NotImplementedError

    def _peer(self, place: Place, seconds: float) -> AbstractAsyncContextManager[Any]:
        """The PeerService of the daemon at `place`, connected in `seconds` at most. Raises Unavailable."""
        raise NotImplementedError

    async def _trouble(self, place: Place, error: grpc.aio.AioRpcError) -> Refused | None:
        """What a call that met no daemon may have failed of, where gRPC does not say it; None if it does."""
        raise NotImplementedError

    def _close_channel(self, place: Place) -> None:
        """Calls that are under way on it may end."""
        raise NotImplementedError

    def watch(self, places: Iterable[Place], answered: Collection[Place] = ()) -> None:
        """Watches exactly these daemons from now on; but one that never answered for UNPROVEN_SECONDS only if it has
        `answered` since."""
        wanted = set(places)
        for place in [place for place in answered if place in self._watches and self._watches[place].done()]:
            del self._watches[place]
        for place in self._watches.keys() - wanted:
            self._watches.pop(place).cancel()
            self._close_channel(place)
        for place in wanted - self._watches.keys():
            self._watches[place] = spawn(self._keep_watching(place), f"watch {place}")

    def watch_anew(self, place: Place) -> None:
        """Gives up a watch that only seems to stand, and makes another one. Calls to that daemon go on."""
        if place in self._watches:
            self._watches.pop(place).cancel()
            self._watches[place] = spawn(self._keep_watching(place), f"watch {place}")

    def stands(self, place: Place) -> bool:
        """Whether a watch of it stands: the node is there."""
        return place in self._streams and self._streams[place].stands

    def watched(self) -> set[Place]:
        """The daemons that are watched now."""
        return set(self._watches)

    def watch_versions(self) -> list[int]:
        """With which certificates each watch was made (Trust.version)."""
        return [stream.version for stream in self._streams.values()]

    def unwatch(self) -> list[asyncio.Task[None]]:
        """Watches nobody any more; the tasks, which are to be cancelled."""
        tasks = [*self._watches.values()]
        self._watches.clear()
        return tasks

    async def _keep_watching(self, place: Place) -> None:
        clock = asyncio.get_running_loop().time
        delay, missed_from = RETRY_SECONDS_MIN, clock() + self._missed(place)
        began: float | None = clock()
        while True:
            # A way of which nothing is known has the time of a first connection.
            left = missed_from - clock() if self.round_trip(place).measured else 0.0
            stands, why = await self._watch_once(place, left if left > 0 else math.inf)
            began = None if stands else began
            if stands:
                delay = RETRY_SECONDS_MIN
                log.warning("peer daemon lost place=%s reason=%s", place, why)
                missed_from = clock() + self._missed(place)
            if stands or clock() >= missed_from:
                # A peer may die between its Connect and the first watch, or between two: no stream ends to tell of it.
                self._told.on_lost(place, stands)
            if began is not None and clock() >= began + UNPROVEN_SECONDS:
                log.warning("peer daemon never answered place=%s seconds=%.0f reason=%s", place, clock() - began, why)
                return  # whoever it is, it may be none of ours
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, RETRY_SECONDS_MAX)

    def _missed(self, place: Place) -> float:
        """For how long a daemon may refuse to be watched."""
        trip = self.round_trip(place)
        return max(MISSED_SECONDS, connection(trip) + exchange(trip) if trip.measured else 0.0)

    async def _watch_once(self, place: Place, seconds: float) -> tuple[bool, str]:
        """Watches until nothing does any more, connected in `seconds` at most; whether a stream has stood, and why it
        ended."""

        def found() -> None:
            log.debug("watch stands place=%s", place)
            self._told.on_found(place)

        now, then = self._begin(place, found, seconds), None
        self._streams[place] = now
        retry = -math.inf
        try:
            while True:
                waited = [stream.task for stream in (now, then) if stream is not None]
                look = LOOK_SECONDS if self._trust is not None else None
                await asyncio.wait(waited, timeout=look, return_when=asyncio.FIRST_COMPLETED)
                if then is not None and then.stands:
                    now.task.cancel()
                    now, then = then, None
                    self._streams[place] = now
                elif then is not None and then.task.done():
                    log.warning("watch not renewed place=%s reason=%s", place, then.task.result())
                    then, retry = None, asyncio.get_running_loop().time() + RETRY_SECONDS_MAX
                if now.task.done():
                    return now.stands, now.task.result()
                if then is None and self._is_old(now) and asyncio.get_running_loop().time() >= retry:
                    then = self._begin(place, lambda: None)
        finally:
            if self._streams.get(place) is now:  # else another watch has begun
                del self._streams[place]
            for stream in (now, then):
                if stream is not None:
                    stream.task.cancel()

    def _is_old(self, stream: _Stream) -> bool:
        """Whether a stream is to be replaced: it rests on former certificates, or may be ended soon for its age."""
        if self._trust is None or not stream.stands:
            return False
        age = asyncio.get_running_loop().time() - stream.began
        return stream.version != self._trust.version or age >= RENEW_SECONDS

    def _begin(self, place: Place, on_found: Callable[[], None], seconds: float = math.inf) -> _Stream:
        async def run() -> str:
            return await self._listen(place, found, seconds)

        def found() -> None:
            stream.stands = True
            on_found()

        version = self._trust.version if self._trust is not None else 0
        stream = _Stream(asyncio.create_task(run()), version, asyncio.get_running_loop().time())
        return stream

    async def _listen(self, place: Place, on_found: Callable[[], None], seconds: float) -> str:
        """One stream of a watch, to its end; says why it ended."""
        stands = False
        try:
            async with self._peer(place, seconds) as stub, aclosing(messages(stub.Watch(self._request))) as stream:
                async for news in stream:
                    clean(news)
                    if not stands:
                        stands = True
                        on_found()
                    if news.job:
                        self._told.on_news(place, news)
            return "it ended the stream"
        except grpc.aio.AioRpcError as error:
            trouble = None if stands else await self._trouble(place, error)
            return str(trouble or said(error))
        except Refused as error:
            return str(error)
        except Exception:  # our own mistake, but a peer that nobody watches would be worse
            log.exception("watch failed place=%s", place)
            return "internal error"
