# SPDX-License-Identifier: Apache-2.0
"""An identity from three files. Whatever is wrong with them is said in one sentence: which file, what is wrong, what to
do. Loaded only where there are such files, because the library takes a tenth of a second.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from ultima.daemon.base.errors import StartupError
from ultima.daemon.trust.identity import Identity, Life, shown_time
from ultima.v1 import secrets
from ultima.v1.certificates import certificate_pem
from ultima.v1.nodes import dns_of, node_of
from ultima.v1.withdrawn import Withdrawn, read

CHAIN_MAX = 4  # certificates between a node's own and its authority


def from_files(certificate: Path, key: Path, authority: Path, now: float, withdrawn: Path | None = None) -> Identity:
    """The identity in three files, and in a fourth the nodes that were withdrawn. Raises StartupError, with one
    sentence."""
    chain = _certificates("tls.certificate", certificate)
    private = _key("tls.key", key)
    authorities = _certificates("tls.authority", authority)
    own = chain[0]
    cluster, node = _names(certificate, own)
    issuer = _authority_of(chain, authorities)
    if private.public_key() != own.public_key():
        raise StartupError(
            f"tls.key = {str(key)!r}: is not the key of tls.certificate = {str(certificate)!r}: "
            "give the two files that were issued together"
        )
    if issuer is None:
        raise StartupError(
            f"tls.certificate = {str(certificate)!r}: was not issued by an authority in tls.authority = "
            f"{str(authority)!r}: issue it by that authority, or add the one that did to the file"
        )
    again = f"issue a new one: ultima ca issue {node}"
    _check_life("tls.certificate", certificate, own, now, again)
    _check_life("tls.authority", authority, issuer, now, "make a new one: ultima ca init")
    gone = _withdrawn(withdrawn, cluster, authorities) if withdrawn is not None else Withdrawn()
    return Identity(
        cluster=cluster,
        node=node,
        certificate=b"".join(map(certificate_pem, chain)),
        key=private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        authorities=b"".join(map(certificate_pem, authorities)),
        life=life_of(own),
        authority_life=life_of(issuer),
        withdrawn=gone.nodes,
        withdrawn_number=gone.number,
    )


def life_of(certificate: x509.Certificate) -> Life:
    """How long a certificate is valid."""
    return Life(certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp())


def _read(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(secrets.FILE_BYTES_MAX)
    except OSError as error:
        raise StartupError(
            f"{name} = {str(path)!r}: cannot be read: {error.strerror}: check the path, and that uid {os.geteuid()}, "
            "which this daemon runs as, may read it"
        ) from None


def _withdrawn(path: Path, cluster: str, authorities: Sequence[x509.Certificate]) -> Withdrawn:
    try:
        return read(_read("tls.withdrawn", path), cluster, authorities)
    except ValueError as error:
        raise StartupError(f"tls.withdrawn = {str(path)!r}: {error}") from None


def _certificates(name: str, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(name, path))
    except ValueError:
        raise StartupError(
            f"{name} = {str(path)!r}: holds no readable certificate: allowed: PEM, as `ultima ca` writes it"
        ) from None


def _key(name: str, path: Path) -> PrivateKeyTypes:
    try:
        text = secrets.read_private(path)
    except ValueError as error:
        raise StartupError(f"{name} = {str(path)!r}: {error}") from None
    try:
        return serialization.load_pem_private_key(text, password=None)
    except TypeError:
        raise StartupError(
            f"{name} = {str(path)!r}: has a password, which cannot be typed in: allowed: a key without one, mode 0600"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise StartupError(
            f"{name} = {str(path)!r}: holds no readable private key: allowed: PEM, as `ultima ca` writes it"
        ) from None


def _names(path: Path, own: x509.Certificate) -> tuple[str, str]:
    """Cluster and node. A certificate with other names than the two that are needed would fail in every handshake."""
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        names = x509.SubjectAlternativeName([])
    found = [node_of(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    hosts = names.get_values_for_type(x509.DNSName)
    if len(found) == 1 and found[0] is not None and dns_of(*found[0]) in hosts:
        return found[0]
    raise StartupError(
        f"tls.certificate = {str(path)!r}: names no node: it needs the subject alternative names "
        "URI:spiffe://CLUSTER/ultima/node/NODE, as its only URI, and DNS:NODE.CLUSTER.ultima, as `ultima ca issue` "
        "writes them"
    )


def _authority_of(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> x509.Certificate | None:
    """The authority that the first certificate of a chain leads to."""
    at = chain[0]
    for _ in range(CHAIN_MAX):
        if (issuer := _issuer(at, authorities)) is not None:
            return issuer
        if (above := _issuer(at, chain[1:])) is None:
            return None
        at = above
    return None


def _issuer(of: x509.Certificate, among: Sequence[x509.Certificate]) -> x509.Certificate | None:
    for candidate in among:
        try:
            of.verify_directly_issued_by(candidate)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return candidate
    return None


def _check_life(name: str, path: Path, certificate: x509.Certificate, now: float, again: str) -> None:
    life = life_of(certificate)
    clock = f"this host's clock says {shown_time(now)}"
    if now >= life.end:
        raise StartupError(f"{name} = {str(path)!r}: expired on {shown_time(life.end)}; {clock}: {again}")
    if now < life.begin:
        raise StartupError(
            f"{name} = {str(path)!r}: is valid from {shown_time(life.begin)} only; {clock}: set the clock right, "
            f"or {again}"
        )
