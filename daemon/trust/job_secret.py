# SPDX-License-Identifier: Apache-2.0
"""What follows from the secret of a job: an authority of its own, and proofs that somebody knows the secret.

Everything is derived by HKDF-SHA256 (RFC 5869) under labels of its own, so that no use tells anything of another one.
Daemons that were started for one job have no certificates: each derives the same authority from the secret and issues
itself a certificate. So whoever knows the secret is in the job, and nobody else is.
"""

from __future__ import annotations

import datetime
import hmac
import secrets

from ultima.daemon.trust.identity import Identity, Life
from ultima.v1 import types_pb2

NONCE_BYTES, MAC_BYTES = 16, 32
LEAF_SECONDS = 7 * 86400.0
SKEW_SECONDS = 86400.0  # that two hosts' clocks may differ
AUTHORITY_BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)  # the same on all hosts, whatever their clocks say
AUTHORITY_END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # SEC 2, section 2.4.2
CALL, ANSWER = b"call", b"answer"


def derive(secret: bytes, label: str, length: int) -> bytes:
    """Bytes for one purpose. The secret is uniformly random already, so nothing has to be extracted."""
    from cryptography.hazmat.primitives import hashes  # here, so that only daemons that have a secret load it
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    return HKDFExpand(hashes.SHA256(), length, f"ultima 1 {label}".encode()).derive(secret)


def cluster_of(secret: bytes) -> str:
    """The name of the cluster that the daemons of a job form."""
    return f"job-{derive(secret, 'cluster', 8).hex()}"


def issue(secret: bytes, node: str, now: float) -> Identity:
    """A fresh certificate for a node, by the authority that the secret stands for; `now` in seconds since 1970 UTC."""
    from cryptography.hazmat.primitives.asymmetric import ec

    from ultima.v1 import certificates

    scalar = int.from_bytes(derive(secret, "authority", 48), "big") % (P256_ORDER - 1) + 1  # FIPS 186-5, A.2.1
    signer = ec.derive_private_key(scalar, ec.SECP256R1())
    cluster = cluster_of(secret)
    authority = certificates.authority(signer, cluster, AUTHORITY_BEGIN, AUTHORITY_END)
    life = Life(now - SKEW_SECONDS, now + LEAF_SECONDS)
    key = certificates.new_key()
    begin, end = (datetime.datetime.fromtimestamp(at, datetime.UTC) for at in (life.begin, life.end))
    leaf = certificates.leaf(signer, authority, cluster, node, key, begin, end)
    return Identity(
        cluster=cluster,
        node=node,
        certificate=certificates.certificate_pem(leaf),
        key=certificates.key_pem(key),
        authorities=certificates.certificate_pem(authority),
        life=life,
        authority_life=Life(AUTHORITY_BEGIN.timestamp(), AUTHORITY_END.timestamp()),
    )


def prove(secret: bytes, job: str, generation: int, caller: str, called: str) -> types_pb2.JobProof:
    """What the node `caller` sends along when it calls the node `called`."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return types_pb2.JobProof(nonce=nonce, mac=_mac(secret, CALL, nonce, job, generation, caller, called))


def answer(
    secret: bytes, asked: types_pb2.JobProof, job: str, generation: int, caller: str, called: str
) -> types_pb2.JobProof:
    """What `called` sends back. It is no proof that could be sent along with a call."""
    return types_pb2.JobProof(nonce=asked.nonce, mac=_mac(secret, ANSWER, asked.nonce, job, generation, caller, called))


def proves(secret: bytes, proof: types_pb2.JobProof, job: str, generation: int, caller: str, called: str) -> bool:
    """Whether who made a call knows the secret."""
    return len(proof.nonce) == NONCE_BYTES and hmac.compare_digest(
        proof.mac, _mac(secret, CALL, proof.nonce, job, generation, caller, called)
    )


def answers(
    secret: bytes,
    proof: types_pb2.JobProof,
    asked: types_pb2.JobProof,
    job: str,
    generation: int,
    caller: str,
    called: str,
) -> bool:
    """Whether who answered the call with the proof `asked` knows the secret."""
    return proof.nonce == asked.nonce and hmac.compare_digest(
        proof.mac, _mac(secret, ANSWER, asked.nonce, job, generation, caller, called)
    )


def _mac(secret: bytes, role: bytes, nonce: bytes, job: str, generation: int, caller: str, called: str) -> bytes:
    fields = (role, nonce, job.encode(), generation.to_bytes(8, "big"), caller.encode(), called.encode())
    text = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hmac.digest(derive(secret, "proof", 32), text, "sha256")
