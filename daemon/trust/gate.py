# SPDX-License-Identifier: Apache-2.0
"""What stands between the network and every handler: the name in the caller's certificate, and how many calls he has.

TLS has let nobody in without a certificate of one of our authorities. An authority may have issued others than those of
nodes, or of other clusters; they are turned away here, whatever the method, so that no handler can forget to ask.

A call counts from its first byte. gRPC calls an ordinary handler only when the request is there, and has a bound for
all calls together, so whoever began calls and never sent a request would take the places of all. Here each handler is
one that reads its request itself; to the caller there is no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio

from ultima.daemon.base.errors import DeadlineExceeded, InvalidArgument, PermissionDenied, Refused, abort
from ultima.daemon.base.quota import Quota
from ultima.daemon.trust.trust import Trust
from ultima.v1.nodes import node_of

CALLS_MAX = 4096  # calls of other daemons at once, registrations that wait and watches included
REQUEST_SECONDS = 5.0  # from the beginning of a call to its request, which are one write of the caller


def caller_node(context: Any, trust: Trust | None) -> str:
    """The node that makes a call, by its certificate alone; "" where there are none. Raises PermissionDenied."""
    if trust is None:
        return ""
    shown = context.auth_context()
    if shown.get("ssl_session_reused") != [b"false"]:
        # Whoever resumes a session shows no certificate, and could so outlive the one that he once had.
        raise PermissionDenied("the TLS session is a resumed one: allowed: a handshake with the caller's certificate")
    uris = shown.get("peer_uri", [])
    found = node_of(uris[0].decode(errors="replace")) if len(uris) == 1 else None
    if found is None:
        raise PermissionDenied("the caller's certificate names no node: allowed: those that `ultima ca issue` makes")
    if found[0] != trust.cluster:
        raise PermissionDenied(f"node {found[1]!r} is of cluster {found[0]!r}: allowed: nodes of {trust.cluster!r}")
    trust.check_node(found[1])
    return found[1]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """See the module."""

    def __init__(self, trust: Trust | None, calls: Quota, arrivals: Mapping[str, str]) -> None:
        """Callers are told apart by their nodes, or by their addresses where nobody is authenticated (None). `arrivals`
        are connections that a line led here (hosts/outgoing.py): by their other end, where they come from."""
        self._trust, self._calls, self._arrivals = trust, calls, arrivals

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wraps the handler of a call that begins."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None

        async def unary(requests: Any, context: Any) -> Any:
            context = self._arrived(context)
            with await self._entered(context):
                return await handler.unary_unary(await _only(requests, context), context)

        async def generator(requests: Any, context: Any) -> Any:
            context = self._arrived(context)
            with await self._entered(context):
                async for answer in handler.unary_stream(await _only(requests, context), context):
                    yield answer

        async def writer(requests: Any, context: Any) -> Any:
            context = self._arrived(context)
            with await self._entered(context):
                await handler.unary_stream(await _only(requests, context), context)

        async def both(requests: Any, context: Any) -> Any:
            context = self._arrived(context)
            with await self._entered(context):
                await handler.stream_stream(requests, context)

        coding = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming:  # Carry, which reads its first request in time by itself
            assert handler.response_streaming and not inspect.isasyncgenfunction(handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(both, *coding)
        if handler.response_streaming:
            yields = inspect.isasyncgenfunction(handler.unary_stream)
            return grpc.stream_stream_rpc_method_handler(generator if yields else writer, *coding)
        return grpc.stream_unary_rpc_method_handler(unary, *coding)

    def _arrived(self, context: Any) -> Any:
        """The call as one from where its connection was made, if a line led that here."""
        source = self._arrivals.get(unquote(context.peer())) if self._arrivals else None
        return context if source is None else _Arrived(context, source)

    async def _entered(self, context: Any) -> contextlib.ExitStack:
        """Counts one more call of the caller, as long as the context."""
        try:
            counted = contextlib.ExitStack()
            counted.enter_context(self._calls.taken(caller_node(context, self._trust) or _address(context)))
        except Refused as error:
            await abort(context, error)
        return counted


class _Arrived:
    """The context of a call, but for the other end of its connection."""

    def __init__(self, context: Any, source: str) -> None:
        self._context, self._source = context, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def peer(self) -> str:
        """As gRPC writes it. The port is another one's, and of no use."""
        return f"ipv6:[{self._source}]:0" if ":" in self._source else f"ipv4:{self._source}:0"


async def _only(requests: Any, context: Any) -> Any:
    """The one request of a call, which has to come soon."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for request in requests:
                return request
    except TimeoutError:
        await abort(context, DeadlineExceeded(f"the request did not come within {REQUEST_SECONDS:g} s"))
    await abort(context, InvalidArgument("the call ended without a request"))


def _address(context: Any) -> str:
    """As gRPC writes it, without the port."""
    return str(context.peer()).rpartition(":")[0]
