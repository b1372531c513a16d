# SPDX-License-Identifier: Apache-2.0
"""The other daemons that watch this one, and what each of them is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from ultima.daemon.errors import ResourceExhausted, Unavailable
from ultima.daemon.job import Job
from ultima.v1 import peer_pb2

WATCHERS_MAX = 1024
BEHIND_MAX = 256  # messages; a watcher further behind starts over with a new stream


class Watchers:
    """Each watcher hears of the jobs that it shares with this host: how they are now, and then each change."""

    def __init__(self, jobs: Callable[[], Iterable[Job]]) -> None:
        """`jobs` are all jobs of this host."""
        self._jobs = jobs
        self._queues: dict[asyncio.Queue[peer_pb2.WatchResponse | None], tuple[str, int]] = {}

    def tell(self, job: Job) -> None:
        """Something changed in `job`."""
        news = job.news()
        for queue, (address, grpc_port) in self._queues.items():
            if job.sees(address, grpc_port):
                self._put(queue, news)

    def close(self) -> None:
        """Ends all streams, after what was told."""
        for queue in self._queues:
            self._put(queue, None)

    async def stream(self, address: str, grpc_port: int) -> AsyncIterator[peer_pb2.WatchResponse]:
        """All that the daemon there is to hear, until it falls behind. An empty `address` stands for any."""
        if len(self._queues) >= WATCHERS_MAX:
            raise ResourceExhausted(f"watchers = {WATCHERS_MAX}: as many daemons watch this one already")
        queue: asyncio.Queue[peer_pb2.WatchResponse | None] = asyncio.Queue(BEHIND_MAX)
        self._queues[queue] = (address, grpc_port)
        try:
            yield peer_pb2.WatchResponse()
            for job in self._jobs():
                if job.ready and (job.sessions or not job.joining) and job.sees(address, grpc_port):
                    yield job.news()
            while (news := await queue.get()) is not None:
                yield news
            raise Unavailable("the stream ends: the daemon is going down, or the watcher is too far behind")
        finally:
            del self._queues[queue]

    @staticmethod
    def _put(queue: asyncio.Queue[peer_pb2.WatchResponse | None], news: peer_pb2.WatchResponse | None) -> None:
        if queue.full():
            while not queue.empty():
                queue.get_nowait()
            news = None
        queue.put_nowait(news)
