# SPDX-License-Identifier: Apache-2.0
"""Who answers at a place, found out by a TLS handshake that goes no further; and why a call there failed.

gRPC says of a failed handshake little that helps. A node is named here before a connection to it is made, since a
rendezvous is an address and no name; the connection itself then accepts that node alone.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any

from ultima.daemon.base.errors import FailedPrecondition, PermissionDenied, Refused, Unavailable
from ultima.daemon.trust.trust import Trust
from ultima.v1.nodes import dns_of, node_of

SECONDS = 3.0
# Of OpenSSL's x509_vfy.h.
NOT_YET_VALID, EXPIRED = 9, 10

INSECURE_THERE = (
    "the daemon there runs with --insecure and this one does not: give both certificates, or start both with --insecure"
)
SECURE_THERE = (
    "the daemon there demands certificates and this one runs with --insecure: give both certificates, or start both "
    "with --insecure"
)


@dataclass(frozen=True, slots=True)
class Answerer:
    """`node` is empty if the trouble is what there is to tell."""

    node: str
    trouble: Refused | None = None


async def who_answers(address: str, port: int, trust: Trust, seconds: float = SECONDS, path: str = "") -> Answerer:
    """The node of the same cluster at a numeric address. Trouble is FailedPrecondition if waiting does not mend it.

    `seconds` has the handshake, and no less than SECONDS. `path`: of a Unix socket that leads there, used instead.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name is what we want to know
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: an authority may have another one above it
    context.load_verify_locations(cadata=trust.identity.authorities.decode())
    try:
        names = await _handshake(context, address, port, max(SECONDS, seconds), path)
    except ssl.SSLCertVerificationError as error:
        return Answerer("", Unavailable(_not_believed(error)))
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
            return Answerer("", FailedPrecondition(INSECURE_THERE))
        return Answerer("", Unavailable(f"no TLS connection: {error.reason or 'the connection was closed'}"))
    except OSError as error:
        return Answerer("", Unavailable(str(error.strerror or error)))
    found = next((node for kind, name in names if kind == "URI" and (node := node_of(name)) is not None), None)
    if found is None or ("DNS", dns_of(*found)) not in names:
        return Answerer("", FailedPrecondition("what answers there has a certificate, but not one of an Ultima node"))
    if found[0] != trust.cluster:
        return Answerer(
            "", FailedPrecondition(f"node {found[1]!r} there is of cluster {found[0]!r}, this one of {trust.cluster!r}")
        )
    try:
        trust.check_node(found[1])
    except PermissionDenied as error:
        return Answerer("", error)
    return Answerer(found[1])


async def demands_certificates(address: str, port: int, seconds: float = SECONDS, path: str = "") -> bool:
    """Whether what listens there speaks TLS; `seconds` and `path` as above. A name that nobody knows does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        await _handshake(context, address, port, max(SECONDS, seconds), path)
    except OSError:  # of which ssl's are a kind
        return False
    return True


def refused_us(trust: Trust) -> str:
    """Why a node that we believe ends the connection after our own certificate."""
    return (
        f"it refuses the certificate of this node, {trust.node!r}: check that both hosts have the same authorities, "
        "that this certificate has not expired, and that the two clocks agree"
    )


def _not_believed(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == EXPIRED:
        return "the certificate there has expired, or this host's clock is ahead: issue a new one on that host"
    if error.verify_code == NOT_YET_VALID:
        return "the certificate there is not valid yet: the two hosts' clocks differ, set them right"
    return (
        f"none of our authorities issued the certificate there ({error.verify_message}): give both hosts the same "
        "authorities (tls.authority), or the same job secret"
    )


async def _handshake(
    context: ssl.SSLContext, address: str, port: int, seconds: float, path: str = ""
) -> list[tuple[str, str]]:
    """The names in the certificate of what answers. Raises OSError.

    In the event loop, so that those who wait for one that never answers hold up nobody else.
    """
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(seconds):
            if path:
                _, writer = await asyncio.open_unix_connection(path, ssl=context, server_hostname="")
            else:
                _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname="")
    except TimeoutError:
        raise OSError(f"timed out after {seconds:g} s") from None
    try:
        certificate = writer.get_extra_info("peercert") or {}
    finally:
        writer.transport.abort()
    names: Any = certificate.get("subjectAltName", ())
    return [(str(kind), str(name)) for kind, name in names]
