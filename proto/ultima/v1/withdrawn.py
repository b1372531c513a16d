# SPDX-License-Identifier: Apache-2.0
"""The list of nodes that an authority has withdrawn: a file that it signs, and that daemons of the cluster honour.

It names nodes, not certificates: a withdrawn name is void in all certificates, on both ends of a connection, where the
caller knows only the name that it wants. A machine that takes a withdrawn one's place gets a name of its own. Lists are
numbered; who has seen a list takes none with a lower number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ultima.v1.certificates import Key
from ultima.v1.nodes import is_node

NODES_MAX = 8192  # whose file is below secrets.FILE_BYTES_MAX
_SIGNED = b"ultima: withdrawn nodes 1\n"
"""In front of what is signed, so that no signature of another kind fits."""


class Withdrawn(NamedTuple):
    """One list."""

    number: int = 0
    nodes: frozenset[str] = frozenset()


def write(signer: Key, cluster: str, number: int, nodes: Iterable[str]) -> bytes:
    """A signed list, as its file holds it."""
    told = _told(cluster, number, sorted(set(nodes)))
    signature = signer.sign(_SIGNED + told.encode(), ec.ECDSA(hashes.SHA256())).hex()
    return (json.dumps({**json.loads(told), "signature": signature}, indent=1) + "\n").encode()


def read(data: bytes, cluster: str, authorities: Iterable[x509.Certificate]) -> Withdrawn:
    """The list in a file's bytes. Raises ValueError, for a sentence that begins with the file's name, unless one of the
    authorities has signed it for this cluster."""
    try:
        found = json.loads(data)
        number, nodes, signature = found["number"], found["nodes"], bytes.fromhex(found["signature"])
        whose = str(found["cluster"])
        good = type(number) is int and 0 <= number < 2**53 and isinstance(nodes, list) and len(nodes) <= NODES_MAX
        if not good or not all(isinstance(node, str) and is_node(node) for node in nodes):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(
            "holds no list of withdrawn nodes: allowed: the file that `ultima ca withdraw` writes"
        ) from None
    if whose != cluster:
        raise ValueError(f"is of cluster {whose!r}: allowed: {cluster!r}")
    signed = _SIGNED + _told(cluster, number, nodes).encode()
    for authority in authorities:
        key = authority.public_key()
        if isinstance(key, ec.EllipticCurvePublicKey):
            try:
                key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
            except InvalidSignature:
                continue
            return Withdrawn(number, frozenset(nodes))
    raise ValueError("was not signed by an authority that this host believes: copy it again from where it was made")


def _told(cluster: str, number: int, nodes: list[str]) -> str:
    return json.dumps({"cluster": cluster, "number": number, "nodes": nodes}, separators=(",", ":"))
