# SPDX-License-Identifier: Apache-2.0
"""Passes bytes between a socket and a stream of gRPC, or between two streams, until either end is over.

Each direction waits for the slower of its two ends, so nothing piles up here but one piece. What passes is not looked
at: between daemons with certificates it is TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc.aio

from ultima.daemon.base.calls import unbroken

PIECE_BYTES = 64 << 10
OVER = (OSError, grpc.aio.AioRpcError, grpc.aio.BaseError, StopAsyncIteration, asyncio.InvalidStateError)
"""What an end raises that is over."""


class End(Protocol):
    """One end of a connection."""

    async def read(self) -> bytes:
        """The next piece; b"" at the end. Raises one of OVER."""
        ...

    async def write(self, data: bytes) -> None:
        """Returns when the next piece may come. Raises one of OVER."""
        ...


class SocketEnd:
    """A stream socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """See End."""
        return await self._reader.read(PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        """See End."""
        self._writer.write(data)
        await self._writer.drain()


class StreamEnd:
    """A call whose messages have a field `data`."""

    def __init__(
        self, receive: Callable[[], Awaitable[Any]], send: Callable[[bytes], Awaitable[None]], call: Any = None
    ) -> None:
        """`call` is cancelled when nobody waits any more; None on the side that serves it."""
        self._receive, self._send, self._call = receive, send, call

    async def read(self) -> bytes:
        """See End."""
        message = await unbroken(self._receive(), self._call)
        if message is grpc.aio.EOF:
            return b""
        if len(message.data) > PIECE_BYTES:
            raise ConnectionError(f"data: {len(message.data)} bytes: allowed: {PIECE_BYTES}")
        return bytes(message.data)

    async def write(self, data: bytes) -> None:
        """See End."""
        await unbroken(self._send(data), self._call)


async def join(one: End, two: End) -> None:
    """Passes bytes both ways until one of the ends is over."""

    async def copy(source: End, target: End) -> None:
        try:
            while data := await source.read():
                await target.write(data)
        except OVER:
            return

    tasks = [asyncio.ensure_future(copy(one, two)), asyncio.ensure_future(copy(two, one))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
