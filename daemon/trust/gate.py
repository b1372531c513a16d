# SPDX-License-Identifier: Apache-2.0
"""What stands between the network and every handler: the name in the caller's certificate.

TLS has let nobody in without a certificate of one of our authorities. An authority may have issued others than those of
nodes, or of other clusters; they are turned away here, whatever the method, so that no handler can forget to ask.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from ultima.daemon.base.errors import PermissionDenied, abort
from ultima.daemon.trust.trust import Trust
from ultima.v1.nodes import node_of


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
    return found[1]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """See the module."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wraps the handler of a call that begins."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None

        async def unary(request: Any, context: Any) -> Any:
            await self._check(context)
            return await handler.unary_unary(request, context)

        async def generator(request: Any, context: Any) -> Any:
            await self._check(context)
            async for answer in handler.unary_stream(request, context):
                yield answer

        async def writer(request: Any, context: Any) -> Any:
            await self._check(context)
            await handler.unary_stream(request, context)

        assert not handler.request_streaming  # no service between daemons takes a stream
        coding = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            yields = inspect.isasyncgenfunction(handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(generator if yields else writer, *coding)
        return grpc.unary_unary_rpc_method_handler(unary, *coding)

    async def _check(self, context: Any) -> None:
        try:
            caller_node(context, self._trust)
        except PermissionDenied as error:
            await abort(context, error)
