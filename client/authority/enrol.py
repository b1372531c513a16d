# SPDX-License-Identifier: Apache-2.0
"""A host gets its certificate, and later a new one, from the server beside the authority's key (serve.py).

The token says which authority is meant: it holds the SHA-256 of its public key. So the first connection, on which the
authority's certificate is fetched, need not be believed; the second one is, and only there the token travels.
"""

from __future__ import annotations

import datetime
import http.client
import json
import re
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from ultima.authority.authority import SECRET_BYTES, pin_of
from ultima.authority.files import replace
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.v1 import certificates, withdrawn
from ultima.v1.nodes import is_cluster, node_of
from ultima.v1.words import printable

SECONDS = 10.0
ANSWER_BYTES_MAX = 2 << 20
PIN_BYTES = 32
RENEW_SHARE = 3  # a certificate is renewed when this part of its life is left, a third
TOKEN_ALLOWED = f"{2 * (SECRET_BYTES + PIN_BYTES)} hexadecimal digits, as `ultima ca token` prints"


class Enrolled(NamedTuple):
    """What a host was given."""

    cluster: str
    node: str
    certificate: x509.Certificate


def enroll(address: str, port: int, token: str, folder: Path) -> Enrolled:
    """Makes a key, has the authority sign for it, and writes NODE.key, NODE.crt, ca.crt and withdrawn.json into
    |folder|. Raises InvalidArgument for what is no token, UltimaError in one sentence."""
    if re.fullmatch(rf"[0-9a-fA-F]{{{2 * (SECRET_BYTES + PIN_BYTES)}}}", token) is None:
        raise InvalidArgument("TOKEN", "a text that is not shown", TOKEN_ALLOWED)
    secret, pin = bytes.fromhex(token)[:SECRET_BYTES], bytes.fromhex(token)[SECRET_BYTES:]
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    authority = _certificate(_call(address, port, blind, "", "GET", "/authority"), f"{address}:{port}")
    if pin_of(authority) != pin:
        raise UltimaError(f"{address}:{port}: what answers there is not the authority that made the token")
    return _asked(address, port, authority, "/enroll", secret.hex(), folder, None)


def renew(address: str, port: int, folder: Path, node: str, now: bool) -> Enrolled | None:
    """A new key and certificate for |node|, whose valid ones are in |folder|; None if the old one has more than a third
    of its life left, unless |now|. The list of withdrawn nodes is fetched in any case. Raises UltimaError."""
    pair, authority = (folder / f"{node}.crt", folder / f"{node}.key"), _read(folder / "ca.crt")
    old = _read(pair[0])
    if now or is_due(old):
        return _asked(address, port, authority, "/renew", "", folder, pair)
    listed = _call(address, port, _trusting(authority), _server_of(authority), "GET", "/withdrawn")
    _take_list(listed, cluster_of(authority), authority, folder)
    return None


def is_due(certificate: x509.Certificate) -> bool:
    """Less than a third of its life is left."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return end - datetime.datetime.now(datetime.UTC) < (end - begin) / RENEW_SHARE


def cluster_of(authority: x509.Certificate) -> str:
    """The cluster of an authority's certificate. Raises UltimaError."""
    names = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    cluster = str(names[0].value) if names else ""
    if not is_cluster(cluster):
        raise UltimaError("the authority's certificate names no cluster: allowed: one that `ultima ca init` has made")
    return cluster


def _asked(
    address: str,
    port: int,
    authority: x509.Certificate,
    path: str,
    token: str,
    folder: Path,
    pair: tuple[Path, Path] | None,
) -> Enrolled:
    """Has a fresh key signed, and writes what came; |pair| are the certificate and key to show."""
    key = certificates.new_key()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    context = _trusting(authority)
    if pair is not None:
        try:
            context.load_cert_chain(*pair)
        except (OSError, ssl.SSLError) as error:
            raise UltimaError(f"{pair[0]}, {pair[1]}: cannot be shown: {error.strerror or error}") from None
    body = json.dumps({"token": token, "request": certificates.request_pem(request).decode()}).encode()
    data = _call(address, port, context, _server_of(authority), "POST", path, body)
    where, cluster = f"{address}:{port}", cluster_of(authority)
    try:
        answer = json.loads(data)
        made, listed = _certificate(str(answer["certificate"]).encode(), where), str(answer["withdrawn"]).encode()
    except (ValueError, KeyError, TypeError):
        raise UltimaError(f"{where}: its answer is none: is another version of Ultima there?") from None
    node = _checked(made, key, authority, cluster, where)
    if pair is not None and pair[0].name != f"{node}.crt":
        raise UltimaError(f"{where}: it answered for node {node!r}, which was not asked for")
    # The key first: a daemon that looks meanwhile sees that the two do not belong together, and waits.
    replace(folder / f"{node}.key", certificates.key_pem(key), 0o600)
    replace(folder / f"{node}.crt", certificates.certificate_pem(made), 0o644)
    if pair is None:
        replace(folder / "ca.crt", certificates.certificate_pem(authority), 0o644)
    _take_list(listed, cluster, authority, folder)
    return Enrolled(cluster, node, made)


def _checked(
    made: x509.Certificate, key: certificates.Key, authority: x509.Certificate, cluster: str, where: str
) -> str:
    """The node of a certificate that must be for our key, and of that authority. Raises UltimaError."""
    try:
        made.verify_directly_issued_by(authority)
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = [node_of(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        found = []
    if len(found) != 1 or found[0] is None or found[0][0] != cluster or made.public_key() != key.public_key():
        raise UltimaError(f"{where}: its certificate is not for this host's key and cluster {cluster!r}")
    return found[0][1]


def _take_list(data: bytes, cluster: str, authority: x509.Certificate, folder: Path) -> None:
    """Writes a list of withdrawn nodes, unless the one that is there is as new. Raises UltimaError."""
    try:
        fresh = withdrawn.read(data, cluster, [authority])
    except ValueError as error:
        raise UltimaError(f"the list of withdrawn nodes {error}") from None
    path = folder / "withdrawn.json"
    try:
        if withdrawn.read(path.read_bytes(), cluster, [authority]).number >= fresh.number:
            return
    except (OSError, ValueError):
        pass
    replace(path, data, 0o644)


def _server_of(authority: x509.Certificate) -> str:
    return certificates.enrolment_name(cluster_of(authority))


def _trusting(authority: x509.Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=certificates.certificate_pem(authority).decode())
    return context


def _read(path: Path) -> x509.Certificate:
    try:
        return _certificate(path.read_bytes(), str(path))
    except OSError as error:
        raise UltimaError(f"{path}: cannot be read: {error.strerror}") from None


def _certificate(data: bytes, where: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise UltimaError(f"{where}: holds no certificate") from None


def _call(
    address: str, port: int, context: ssl.SSLContext, name: str, method: str, path: str, body: bytes = b""
) -> bytes:
    """One request; |name| is what the server must be. Raises UltimaError."""
    where = f"{address}:{port}"
    try:
        with (
            socket.create_connection((address, port), timeout=SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=name or None) as secured,
        ):
            connection = http.client.HTTPConnection(address, port, timeout=SECONDS)
            connection.sock = secured
            connection.request(method, path, body=body or None, headers={"Connection": "close"})
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX)
    except ssl.SSLCertVerificationError as error:
        raise UltimaError(f"{where}: what answers there is not the authority: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise UltimaError(f"{where}: it ended the handshake ({error.reason}): has this host's certificate expired? "
                          "Then enrol again with a token") from None  # fmt: skip
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UltimaError(f"{where}: {why}: see whether `ultima ca serve` runs there") from None
    if answer.status != 200:
        raise UltimaError(f"{where} refuses: {printable(data.decode(errors='replace').strip())}")
    return data
