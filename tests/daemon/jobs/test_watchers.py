# SPDX-License-Identifier: Apache-2.0
"""What a daemon that watches another one is sent, message by message."""

import asyncio
from types import SimpleNamespace
from typing import Any

from ultima.daemon.jobs import watchers as module
from ultima.daemon.jobs.watchers import Watchers
from ultima.v1 import peer_pb2


def job(number: int) -> Any:
    """A job whose host has that to say of epochs."""
    news = peer_pb2.WatchResponse(job="j", generation=number)
    return SimpleNamespace(sees=lambda place: True, epoch_news=lambda: news)


async def test_stream__sends_a_packet_more_after_the_last_news() -> None:
    """One for all news that come close together: it is there for the loss of the last of them to be found."""
    watchers = Watchers(lambda: [])
    stream = aiter(watchers.stream("10.0.0.2", 7, "10.0.0.2"))
    assert await anext(stream) == peer_pb2.WatchResponse(), "the stream stands"
    for burst in ([1], [2, 3, 4]):
        for number in burst:
            watchers.tell_word(job(number))
        assert [(await anext(stream)).generation for _ in burst] == burst
        began = asyncio.get_running_loop().time()
        assert await asyncio.wait_for(anext(stream), 5) == peer_pb2.WatchResponse()
        assert asyncio.get_running_loop().time() - began > module.TAIL_SECONDS / 2, "not in the packet of the news"
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(10 * module.TAIL_SECONDS)
    assert not waiting.done(), "nothing follows it"
    watchers.tell_word(job(5))
    assert (await waiting).generation == 5
    await stream.aclose()
    assert len(watchers) == 0
    await asyncio.sleep(2 * module.TAIL_SECONDS)
