# SPDX-License-Identifier: Apache-2.0
"""Calls of gRPC whose waiter is cancelled: they end at the other end too, and leave no memory behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.heap import used
from ultima.daemon.base.calls import answered, messages

CALLS = 120
# Of a cancelled call: one array of an op (80 bytes and its header) may stay where gRPC says that a part failed, and the
# heap is not exact. What a cancelled task leaves is 1 KiB and more.
BYTES_MAX = 400


class Server:
    """Answers `unary` and `stream` when told to, and counts the calls that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.go = asyncio.Event()

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.open += 1
        try:
            await self.go.wait()
            if request == b"refuse":
                await context.abort(grpc.StatusCode.NOT_FOUND, "not here")
            return request
        finally:
            self.open -= 1

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            yield b"first"
            await self.go.wait()
            if request == b"refuse":
                await context.abort(grpc.StatusCode.NOT_FOUND, "not here")
            yield request
        finally:
            self.open -= 1


def with_server(test: Callable[[Server, Any, Any], Coroutine[Any, Any, None]]) -> None:
    """Runs `test(server, unary, stream)`."""

    async def run() -> None:
        behind, server = Server(), grpc.aio.server()
        handlers = {
            "unary": grpc.unary_unary_rpc_method_handler(behind.unary),
            "stream": grpc.unary_stream_rpc_method_handler(behind.stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Calls", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await test(behind, channel.unary_unary("/Calls/unary"), channel.unary_stream("/Calls/stream"))
        finally:
            await server.stop(None)

    asyncio.run(run())


async def all_of(stream: Any) -> list[bytes]:
    return [message async for message in messages(stream)]


def test_calls__answers_and_refusals_are_those_of_the_call() -> None:
    async def test(server: Server, unary: Any, stream: Any) -> None:
        server.go.set()
        assert await answered(unary(b"mine")) == b"mine"
        assert await all_of(stream(b"mine")) == [b"first", b"mine"]
        for waiting in (answered(unary(b"refuse")), all_of(stream(b"refuse"))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await waiting
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "not here")

    with_server(test)


@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_calls__a_cancelled_waiter_ends_the_call_and_leaves_no_memory(kind: str) -> None:
    async def test(server: Server, unary: Any, stream: Any) -> None:
        async def some(count: int) -> None:
            for _ in range(count):
                waiting = answered(unary(b"")) if kind == "unary" else all_of(stream(b""))
                task = asyncio.create_task(waiting)
                async with asyncio.timeout(10):
                    while not server.open:
                        await asyncio.sleep(0)
                await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(10):
                    while server.open:
                        await asyncio.sleep(0)

        await some(CALLS // 2)
        before = used()
        await some(CALLS)
        await asyncio.sleep(0.1)
        a_call = (used() - before) / CALLS
        assert a_call < BYTES_MAX, f"{a_call:.0f} bytes a call stay"

    with_server(test)


def test_messages__whoever_leaves_before_the_end_ends_the_call() -> None:
    async def test(behind: Server, _: Any, stream: Any) -> None:
        async with aclosing(messages(stream(b"more"))) as parts:
            async for part in parts:
                assert part == b"first" and behind.open == 1
                break
        async with asyncio.timeout(10):
            while behind.open:
                await asyncio.sleep(0.01)

    with_server(test)
