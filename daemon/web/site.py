# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of the status page, on the daemon's own loop: GET / and GET /feed, and nothing that changes anything.

This is the one file that loads aiohttp; the daemon imports it only where `web` names a place to listen. The page is one
file without requests to anywhere else, and its policy (CSP) holds the browser to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from ultima.daemon.base.errors import StartFailed
from ultima.daemon.web.feed import Feed
from ultima.daemon.web.guard import SESSION_SECONDS, Guard

CONNECTIONS_MAX = 32
HELLO_SECONDS = 10.0  # for the first request of a connection
KEEP_SECONDS = 5.0  # until the next request of a connection
WRITE_SECONDS = 10.0  # for a picture to leave
NONCE = "{{nonce}}"
ASK = "run `ultima web` on this host: it prints an address that opens the page once\n"

log = logging.getLogger("ultimad.web")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """See the module."""

    def __init__(self, where: str, feed: Feed, guard: Guard) -> None:
        """`where` is "127.0.0.1:29518", "[::1]:29518" or "unix:/run/ultima/web.sock"."""
        self._where, self._feed, self._guard = where, feed, guard
        self._path = Path(where.removeprefix("unix:")) if where.startswith("unix:") else None
        self._page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        self._strange: dict[web.RequestHandler, None] = {}
        """Connections that have not shown yet that they may look, the oldest first."""
        self.port = 0
        """Of TCP."""

    @property
    def _cookie(self) -> str:
        """Its name: cookies of loopback are the same for all ports, so each daemon has one of its own."""
        return f"ultima_page_{self.port}"

    async def start(self) -> None:
        """Listens. Raises StartFailed."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        app = web.Application(middlewares=[guarded])
        app.router.add_get("/", self._index, allow_head=False)
        app.router.add_get("/feed", self._pictures, allow_head=False)
        app.router.add_get("/ready", self._ready, allow_head=False)
        app.on_response_prepare.append(_headers)
        times: dict[str, Any] = {"shutdown_timeout": 0.5, "keepalive_timeout": KEEP_SECONDS}
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, logger=log, **times)
        await self._runner.setup()
        try:
            listener = self._listener()
        except OSError as error:
            await self._runner.cleanup()
            raise StartFailed(f"web = {self._where!r}: {error.strerror}") from None
        self.port = 0 if self._path is not None else int(listener.getsockname()[1])
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=listener)

    async def close(self) -> None:
        """Ends it; those who look are hung up on."""
        self._feed.close()
        self._server.close()
        await self._runner.cleanup()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def address(self) -> str:
        """Where a browser on this host finds the page, with a token that is good for one use; or the unix socket."""
        if self._path is not None:
            return f"unix:{self._path}"
        host = self._where.rpartition(":")[0]
        return f"http://{host}:{self.port}/?token={self._guard.token()}"

    def _listener(self) -> socket.socket:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before = os.umask(0o117)
            try:
                listener.bind(str(self._path))
            finally:
                os.umask(before)
        else:
            host, _, port = self._where.rpartition(":")
            listener = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host.strip("[]"), int(port)))
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)
        return listener

    def _connection(self) -> asyncio.BaseProtocol:
        """What answers a new connection. Where there are too many, the oldest that has not shown that it may look makes
        room; as is one that never does, it is hung up on."""
        server = self._runner.server
        if server is None:
            return _HungUp()
        if len(server.connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._strange), None)
            if oldest is None:
                return _HungUp()
            self._end(oldest)
        protocol = server()
        self._strange[protocol] = None
        asyncio.get_running_loop().call_later(HELLO_SECONDS, self._end, protocol)
        return protocol

    def _end(self, protocol: web.RequestHandler) -> None:
        """Hangs up on a connection if it still has not shown that it may look."""
        if protocol in self._strange:
            del self._strange[protocol]
            if isinstance(protocol.transport, asyncio.Transport):
                protocol.transport.abort()

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await self._answer(request, handler)
        if answer.status >= 400:
            answer.force_close()
        return answer

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = request.headers
        refused = self._guard.refusal(
            request.method, headers.get("Host", ""), headers.get("Origin"), headers.get("Sec-Fetch-Site")
        )
        if refused is not None:
            allow = {"Allow": "GET"} if refused[0] == 405 else {}
            return web.Response(status=refused[0], text=refused[1], headers=allow)
        if request.path == "/" and "token" in request.query:
            return self._entered(request.query["token"])
        if not self._guard.known(request.cookies.get(self._cookie)):
            return web.Response(status=401, text=ASK)
        self._strange.pop(request.protocol, None)
        return await handler(request)

    def _entered(self, token: str) -> web.Response:
        """A token that is good leaves a cookie, and leads to the address without it: it is in no history."""
        cookie = self._guard.redeem(token)
        if cookie is None:
            return web.Response(status=403, text=f"this address was used before, or is older than a minute: {ASK}")
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(self._cookie, cookie, max_age=SESSION_SECONDS, httponly=True, samesite="Strict", path="/")
        return answer

    async def _index(self, request: web.Request) -> web.Response:
        nonce = secrets.token_urlsafe(16)
        text = self._page.replace(NONCE, nonce)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": policy})

    async def _ready(self, request: web.Request) -> web.Response:
        """For a page whose feed was refused: it cannot see why."""
        return web.Response(text="full\n" if self._feed.full else "ready\n")

    async def _pictures(self, request: web.Request) -> web.StreamResponse:
        if self._feed.full:
            return web.Response(status=503, text="eight browsers have this page open already\n")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError, TimeoutError, BlockingIOError):
            async with contextlib.aclosing(self._feed.follow()) as pictures:
                async for picture in pictures:
                    await asyncio.wait_for(answer.write(b"retry: 1000\ndata: " + picture + b"\n\n"), WRITE_SECONDS)
        return answer


class _HungUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


async def _headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer: nothing of it is kept, framed, or taken for another kind."""
    response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    response.headers.update(
        {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Server": "ultimad",
        }
    )
