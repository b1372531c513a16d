# SPDX-License-Identifier: Apache-2.0
"""An HTTP endpoint for Prometheus, in threads of its own: GET /metrics, and nothing else.

It is off unless `metrics` names where: a port of loopback, or a unix socket. On a port it answers only to who asks for
a name of loopback (`Host:`), so that no page in somebody's browser can read it under another name. A few askers are
served at once, one answer each. Any user of the host may knock at a port, so who has not said what he wants makes room
for the next, the oldest first, and nobody has more than a few seconds.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ultima.daemon.base.errors import StartFailed

AT_ONCE = 8
CLIENT_SECONDS = 5.0  # for all of one connection
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ultimad", ""
    timeout = CLIENT_SECONDS
    server: _Tcp | _Unix

    def do_GET(self) -> None:
        self.server.has_asked(self.request)
        if self.server.names and (self.headers.get("Host") or "").rpartition(":")[0] not in self.server.names:
            self._answer(421, b"this is for loopback alone\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"only /metrics is here\n")
        else:
            try:
                self._answer(200, self.server.text(), CONTENT_TYPE)
            except TimeoutError:
                self._answer(503, b"the daemon does not answer\n")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "metrics"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a scrape a second is no news."""


class _Bounded(socketserver.ThreadingMixIn):
    daemon_threads = True
    names: tuple[str, ...] = ()
    text: Callable[[], bytes]

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._served: dict[Any, float] = {}
        """Connections and when each began, the oldest first."""
        self._asking: dict[Any, None] = {}
        """Of these, the ones that have not asked yet."""
        super().__init__(*arguments)

    def has_asked(self, request: Any) -> None:
        """What is wanted on a connection is known."""
        with self._lock:
            self._asking.pop(request, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._served) >= AT_ONCE
            oldest = next(iter(self._asking), None) if full else None
            refused = full and oldest is None
            if oldest is not None:
                self._end(oldest)
            if not refused:
                self._served[request] = time.monotonic()
                self._asking[request] = None
        if refused:
            self.shutdown_request(request)  # type: ignore[attr-defined]
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._forget(request)

    def service_actions(self) -> None:
        """Between two connections, and a few times a second: ends those whose time is over."""
        with self._lock:
            began = time.monotonic() - CLIENT_SECONDS
            for request in [request for request, since in self._served.items() if since < began]:
                self._end(request)

    def _end(self, request: Any) -> None:
        """Its thread hears of it, and closes the connection."""
        self._forget(request)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: Any) -> None:
        self._served.pop(request, None)
        self._asking.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: the asker went away."""


class _Shared:
    """One text for all who ask at the same time: it is never older than a question, and is made by one thread."""

    def __init__(self, text: Callable[[], bytes]) -> None:
        self._make = text
        self._making = threading.Lock()
        self._begun, self._text = 0.0, b""

    def text(self) -> bytes:
        """Raises TimeoutError."""
        asked = time.monotonic()
        with self._making:
            if self._begun < asked or not self._text:
                begun = time.monotonic()
                self._text = self._make()
                self._begun = begun
            return self._text


class _Tcp(_Bounded, socketserver.TCPServer):
    allow_reuse_address = True
    names = _LOOPBACK


class _Tcp6(_Tcp):
    address_family = socket.AF_INET6


class _Unix(_Bounded, socketserver.UnixStreamServer):
    pass


class Exposition:
    """See the module."""

    def __init__(self, where: str, text: Callable[[], bytes]) -> None:
        """Listens at "127.0.0.1:29519", "[::1]:29519" or "unix:/run/ultima/metrics.sock". `text` is called in other
        threads, and may raise TimeoutError. Raises StartFailed."""
        self._path = Path(where.removeprefix("unix:")) if where.startswith("unix:") else None
        try:
            self._server = self._listening(where)
        except OSError as error:
            raise StartFailed(f"metrics = {where!r}: {error.strerror}") from None
        self._server.text = _Shared(text).text
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    def _listening(self, where: str) -> _Tcp | _Unix:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            before = os.umask(0o117)
            try:
                return _Unix(str(self._path), _Handler)
            finally:
                os.umask(before)
        host, _, port = where.rpartition(":")
        kind = _Tcp6 if host.startswith("[") else _Tcp
        return kind((host.strip("[]"), int(port)), _Handler)

    @property
    def port(self) -> int:
        """Of TCP; 0 for a unix socket."""
        return 0 if self._path is not None else int(self._server.socket.getsockname()[1])

    def close(self) -> None:
        """Ends it; those who are being served are hung up on."""
        self._server.shutdown()
        self._server.server_close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
