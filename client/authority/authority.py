# SPDX-License-Identifier: Apache-2.0
"""The folder of a cluster's authority: `ca.crt`, `ca.key`, what it has issued, its tokens, and the nodes it withdrew.

    ca.crt, ca.key     the authority and its key
    NODE.crt           the newest certificate of a node, NODE.key beside it if it was made here
    tokens.json        one-time tokens by which hosts enrol: digests, so that this file enrols nobody
    withdrawn.json     the signed list that daemons honour

Several processes may use one folder: what is read and then changed, is so under a lock.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import secrets as randoms
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ultima.authority.files import replace
from ultima.base.errors import InvalidArgument, UltimaError
from ultima.v1 import certificates, secrets, withdrawn
from ultima.v1.nodes import NODE_ALLOWED, is_cluster, is_node
from ultima.v1.withdrawn import Withdrawn

AUTHORITY, AUTHORITY_KEY, TOKENS, WITHDRAWN, LOCK = "ca.crt", "ca.key", "tokens.json", "withdrawn.json", ".lock"
EARLY = datetime.timedelta(hours=1)  # a host whose clock is a little behind takes a new certificate, too
KEPT_S = 7 * 86400.0  # that a token is remembered after its end, so that a late use is told why it fails
SECRET_BYTES = 16


class Refusal(UltimaError):
    """A host is not given a certificate; the sentence says why."""


class Token(NamedTuple):
    """What is remembered of a token. Times in seconds since 1970 UTC; `used` is 0 for one that was not."""

    node: str
    until: float
    used: float


class Authority:
    """See the module."""

    def __init__(self, folder: Path) -> None:
        """Raises UltimaError, in a sentence, if there is no authority in |folder|, or one that has expired."""
        self.folder = folder
        self.key, self.certificate, self.cluster = _authority(folder)

    @property
    def pin(self) -> bytes:
        """By which a host knows the authority before it has its certificate: SHA-256 of its public key."""
        return pin_of(self.certificate)

    def issue(self, node: str, key: certificates.Key | certificates.PublicKey, days: int) -> x509.Certificate:
        """A certificate for a node, recorded in the folder. Raises InvalidArgument and Refusal."""
        self._check(node)
        begin, end = life(days)
        end = min(end, self.certificate.not_valid_after_utc)
        made = certificates.leaf(self.key, self.certificate, self.cluster, node, key, begin, end)
        replace(self.folder / f"{node}.crt", certificates.certificate_pem(made), 0o644)
        return made

    def token(self, node: str, seconds: float) -> str:
        """A token with which one host may enrol once as |node|, within |seconds|. Raises as `issue`."""
        self._check(node)
        secret, now = randoms.token_bytes(SECRET_BYTES), time.time()
        with self._locked():
            tokens = {key: each for key, each in self._tokens().items() if each.until + KEPT_S > now}
            tokens[_digest(secret)] = Token(node, now + seconds, 0.0)
            self._keep(tokens)
        return (secret + self.pin).hex()

    def spend(self, secret: bytes) -> str:
        """The node that a token is for, which is used up from here on, whatever follows. Raises Refusal."""
        now = time.time()
        with self._locked():
            tokens = self._tokens()
            found = tokens.get(_digest(secret))
            if found is None:
                raise Refusal("the token is unknown here: make one with `ultima ca token`")
            if found.used:
                raise Refusal(
                    f"the token of node {found.node!r} was used already, on {shown(found.used)}: make another one; "
                    f"if that was no host of yours: ultima ca withdraw {found.node}"
                )
            if now >= found.until:
                raise Refusal(f"the token of node {found.node!r} ended on {shown(found.until)}: make another one")
            self._check(found.node)
            tokens[_digest(secret)] = found._replace(used=now)
            self._keep(tokens)
        return found.node

    def tokens(self) -> list[Token]:
        """All that are remembered, the one that ends last first."""
        return sorted(self._tokens().values(), key=lambda token: -token.until)

    def listed(self) -> Withdrawn:
        """The list as it is. Raises UltimaError for a file that is none."""
        path = self.folder / WITHDRAWN
        try:
            return withdrawn.read(path.read_bytes(), self.cluster, [self.certificate])
        except FileNotFoundError:
            return Withdrawn()
        except (OSError, ValueError) as error:
            raise UltimaError(f"{path}: {error}") from None

    def withdraw(self, nodes: list[str], undo: bool = False) -> Withdrawn:
        """A new list with these nodes, or without them. Raises InvalidArgument and UltimaError."""
        for node in nodes:
            if not is_node(node):
                raise InvalidArgument("NODE", node, NODE_ALLOWED)
        with self._locked():
            before = self.listed()
            now = before.nodes - set(nodes) if undo else before.nodes | set(nodes)
            if len(now) > withdrawn.NODES_MAX:
                raise UltimaError(f"{len(now)} withdrawn nodes: allowed: {withdrawn.NODES_MAX}; make a new authority")
            fresh = Withdrawn(before.number + 1, frozenset(now))
            replace(self.folder / WITHDRAWN, withdrawn.write(self.key, self.cluster, fresh.number, now), 0o644)
        return fresh

    def list_bytes(self) -> bytes:
        """The signed list as hosts get it; an empty one if nobody was ever withdrawn."""
        self.listed()
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / WITHDRAWN).read_bytes()
        return withdrawn.write(self.key, self.cluster, 0, ())

    def _check(self, node: str) -> None:
        if not is_node(node):
            raise InvalidArgument("NODE", node, NODE_ALLOWED)
        if node in self.listed().nodes:
            raise Refusal(
                f"node {node!r} was withdrawn: give the host another name, or undo it: ultima ca withdraw --undo {node}"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.folder / LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UltimaError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _tokens(self) -> dict[str, Token]:
        path = self.folder / TOKENS
        if not path.exists():
            return {}
        try:
            rows: dict[str, Any] = json.loads(secrets.read_private(path))
            return {key: Token(str(row["node"]), float(row["until"]), float(row["used"])) for key, row in rows.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UltimaError(f"{path}: holds no tokens ({error}): take it away, and make new tokens") from None

    def _keep(self, tokens: dict[str, Token]) -> None:
        rows = {key: token._asdict() for key, token in tokens.items()}
        replace(self.folder / TOKENS, (json.dumps(rows, indent=1) + "\n").encode(), 0o600)


def life(days: int) -> tuple[datetime.datetime, datetime.datetime]:
    """Begin and end of a certificate that is made now."""
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return now - EARLY, now + datetime.timedelta(days=days)


def pin_of(certificate: x509.Certificate) -> bytes:
    """SHA-256 of an authority's public key."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(certificate.public_key().public_bytes(serialization.Encoding.DER, form)).digest()


def shown(seconds: float) -> str:
    """An instant for people."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def _authority(folder: Path) -> tuple[certificates.Key, x509.Certificate, str]:
    """Key, certificate and cluster of the authority in a folder. Raises UltimaError."""
    path = folder / AUTHORITY_KEY
    try:
        key = serialization.load_pem_private_key(secrets.read_private(path), password=None)
    except (ValueError, TypeError) as error:
        why = str(error) if str(error).startswith(("cannot be", "belongs", "has mode")) else "holds no private key"
        raise UltimaError(
            f"{path}: {why}: `ultima ca init` makes an authority here, --dir names another folder"
        ) from None
    path = folder / AUTHORITY
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UltimaError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise UltimaError(f"{path}: holds no certificate: allowed: the file that `ultima ca init` has made") from None
    names = found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    cluster = str(names[0].value) if names else ""
    ours = isinstance(key, ec.EllipticCurvePrivateKey) and is_cluster(cluster)
    if not ours or key.public_key() != found.public_key():
        raise UltimaError(f"{path}: does not belong to {AUTHORITY_KEY}: give two files that `ultima ca init` has made")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    if found.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise UltimaError(f"{path}: expired on {found.not_valid_after_utc:%Y-%m-%d}: make a new one: ultima ca init")
    return key, found, cluster
