# SPDX-License-Identifier: Apache-2.0
"""The server at which hosts enrol and renew: HTTPS beside the authority's key, for as long as an operator runs it.

    GET  /authority    its certificate, for who has a token and knows it by its pin
    GET  /withdrawn    the signed list of withdrawn nodes
    POST /enroll       {"token": hex, "request": PEM}: a certificate for the token's node, once
    POST /renew        {"request": PEM}: a new certificate for the node whose valid one the TLS client shows

A private key never travels: hosts send requests (PKCS #10), of which the public key alone counts; which node it is, the
token or the former certificate says. Whatever comes is bounded in bytes, time and number.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ultima.authority.authority import SECRET_BYTES, Authority, Refusal, life
from ultima.base.errors import UltimaError
from ultima.v1 import certificates
from ultima.v1.nodes import node_of
from ultima.v1.words import printable

PORT = 29517
SECONDS = 10.0  # that a client has for each step
WHOLE_SECONDS = 20.0  # that it has for all of them, however it drips
BODY_BYTES_MAX = 16 << 10
CLIENTS_MAX = 32
OWN_DAYS = 30  # of the server's certificate, which is made anew at each start


class EnrolmentServer(http.server.ThreadingHTTPServer):
    """See the module."""

    daemon_threads = True
    request_queue_size = CLIENTS_MAX

    def __init__(self, authority: Authority, address: str, port: int, days: int, tell: Callable[[str], None]) -> None:
        """Listens at once; certificates are valid for |days|. `tell` hears a sentence of each that is given or refused.
        Raises UltimaError."""
        self.authority, self.days, self.tell = authority, days, tell
        self.context = _context(authority)
        self._free = threading.Semaphore(CLIENTS_MAX)
        if ":" in address:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise UltimaError(f"--listen {address}, --port {port}: {error.strerror or error}") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for it, or nothing where there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In that thread: the handshake too, which a silent client would hold up the others with."""
        held = [request]
        over = threading.Timer(WHOLE_SECONDS, lambda: _hang_up(held[0]))
        over.start()
        try:
            request.settimeout(SECONDS)
            try:
                held[0] = secured = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                secured.do_handshake()
            except (OSError, ValueError):  # of which ssl's errors are a kind
                self.shutdown_request(held[0])
                return
            super().process_request_thread(held[0], client_address)
        finally:
            over.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: EnrolmentServer
    timeout = SECONDS
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        """What everybody may know."""
        if self.path == "/authority":
            self._answer(200, certificates.certificate_pem(self.server.authority.certificate))
        elif self.path == "/withdrawn":
            self._try(lambda: self.server.authority.list_bytes())
        else:
            self._answer(404, b"allowed: /authority, /withdrawn\n")

    def do_POST(self) -> None:
        """A certificate."""
        if self.path not in ("/enroll", "/renew"):
            self._answer(404, b"allowed: /enroll, /renew\n")
            return
        self._try(self._issued)

    def log_message(self, format: str, *args: Any) -> None:
        """The server tells what matters by itself."""

    def _issued(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or not 0 < int(length) <= BODY_BYTES_MAX:
            raise Refusal(f"Content-Length = {length!r}: allowed: 1 to {BODY_BYTES_MAX}")
        try:
            body = json.loads(self.rfile.read(int(length)))
            request = x509.load_pem_x509_csr(str(body["request"]).encode())
            secret = bytes.fromhex(str(body.get("token", "")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Refusal("the request is none: allowed: what `ultima ca enroll` and `ultima ca renew` send") from None
        key = request.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise Refusal("the request's key is of another kind: allowed: P-256")
        if not request.is_signature_valid:
            raise Refusal("the request is not signed by its own key")
        authority = self.server.authority
        node = authority.spend(secret[:SECRET_BYTES]) if self.path == "/enroll" else self._node()
        made = authority.issue(node, key, self.server.days)
        self.server.tell(
            f"node {node}: {'enrolled' if self.path == '/enroll' else 'renewed'} by {self.client_address[0]}, "
            f"valid until {made.not_valid_after_utc:%Y-%m-%d}"
        )
        answer = {
            "certificate": certificates.certificate_pem(made).decode(),
            "authority": certificates.certificate_pem(authority.certificate).decode(),
            "withdrawn": authority.list_bytes().decode(),
        }
        return json.dumps(answer).encode()

    def _node(self) -> str:
        """The node whose certificate the client has shown in the handshake, which has checked it."""
        shown: Any = self.connection.getpeercert() or {}
        uris = [str(name) for kind, name in shown.get("subjectAltName", ()) if kind == "URI"]
        found = node_of(uris[0]) if len(uris) == 1 else None
        if found is None or found[0] != self.server.authority.cluster:
            raise Refusal("no certificate of a node of this cluster was shown: enrol with a token")
        return found[1]

    def _try(self, work: Callable[[], bytes]) -> None:
        try:
            data = work()
        except UltimaError as error:
            self.server.tell(printable(f"refused {self.client_address[0]}: {error}"))
            self._answer(403 if isinstance(error, Refusal) else 500, f"{error}\n".encode())
            return
        self._answer(200, data)

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _context(authority: Authority) -> ssl.SSLContext:
    """TLS with a certificate that is made now; clients may show theirs."""
    key = certificates.new_key()
    begin, end = life(OWN_DAYS)
    end = min(end, authority.certificate.not_valid_after_utc)
    own = certificates.enrolment_leaf(authority.key, authority.certificate, authority.cluster, key, begin, end)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    pem = authority.certificate.public_bytes(serialization.Encoding.PEM).decode()
    context.load_verify_locations(cadata=pem)
    with tempfile.TemporaryDirectory() as folder:  # Python's ssl takes its own certificate from files alone
        path = Path(folder) / "own.pem"
        path.touch(0o600)
        path.write_bytes(certificates.key_pem(key) + certificates.certificate_pem(own))
        context.load_cert_chain(path)
    return context
