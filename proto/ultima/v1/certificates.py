# SPDX-License-Identifier: Apache-2.0
"""What the certificates of daemons look like: X.509 (RFC 5280) with names as SPIFFE writes them, on the curve P-256.

The certificate of a node has two names: URI:spiffe://CLUSTER/ultima/node/NODE, which the called daemon reads, and
DNS:NODE.CLUSTER.ultima, which the caller's TLS demands of whoever answers. Both `ultima ca` and a daemon that has a
job's secret make certificates of this form; those that others make (cert-manager, SPIRE) must have the same two names.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ultima.v1.nodes import dns_of, uri_of

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
Time = datetime.datetime


def new_key() -> Key:
    """A private key."""
    return ec.generate_private_key(ec.SECP256R1())


def authority(key: Key, cluster: str, begin: Time, end: Time) -> x509.Certificate:
    """The certificate of a cluster's authority, signed by itself. Its subject tells authorities apart by their key."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Ultima authority {identifier.digest.hex()[:16]}"),
        ]
    )
    return (
        _builder(name, name, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def leaf(
    signer: Key, issuer: x509.Certificate, cluster: str, node: str, key: Key | PublicKey, begin: Time, end: Time
) -> x509.Certificate:
    """The certificate of a node with the key `key`, of which the public half is enough."""
    names = [x509.UniformResourceIdentifier(uri_of(cluster, node)), x509.DNSName(dns_of(cluster, node))]
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    return _leaf(signer, issuer, node, names, public, begin, end)


def enrolment_leaf(
    signer: Key, issuer: x509.Certificate, cluster: str, key: Key, begin: Time, end: Time
) -> x509.Certificate:
    """The certificate of the server at which hosts enrol. It names no node, so no daemon takes it for one."""
    name = enrolment_name(cluster)
    return _leaf(signer, issuer, name, [x509.DNSName(name)], key.public_key(), begin, end)


def enrolment_name(cluster: str) -> str:
    """The name that the server at which hosts enrol must show. No node can have it: a node is one label."""
    return f"enrolment.authority.{cluster}.ultima"


def _leaf(
    signer: Key,
    issuer: x509.Certificate,
    subject: str,
    names: list[x509.GeneralName],
    key: PublicKey,
    begin: Time,
    end: Time,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(name, issuer.subject, key, begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """As a file holds it."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def request_pem(request: x509.CertificateSigningRequest) -> bytes:
    """As it travels."""
    return request.public_bytes(serialization.Encoding.PEM)


def key_pem(key: Key) -> bytes:
    """As a file holds it, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: Time, end: Time
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
