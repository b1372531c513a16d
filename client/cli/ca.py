# SPDX-License-Identifier: Apache-2.0
"""`ultima ca`: makes the files by which daemons authenticate each other. It needs no daemon and no network."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ultima.base.errors import InvalidArgument, UltimaError
from ultima.cli.common import say
from ultima.cli.help import WithExample
from ultima.v1 import secrets
from ultima.v1.nodes import CLUSTER_ALLOWED, NODE_ALLOWED, is_cluster, is_node

if TYPE_CHECKING:
    from cryptography import x509

    from ultima.v1.certificates import Key

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
AUTHORITY_DAYS, NODE_DAYS = 3650, 365
DAYS_MAX = 36500
EARLY = datetime.timedelta(hours=1)  # a host whose clock is a little behind takes a new certificate, too

Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the files.")]


def init(
    cluster: Annotated[str, typer.Option(metavar="NAME", help="The cluster's name, in all its certificates.")] = "main",
    days: Annotated[int, typer.Option(min=1, max=DAYS_MAX, help="How long the authority is valid.")] = AUTHORITY_DAYS,
    folder: Dir = Path("."),
) -> None:
    from ultima.v1 import certificates

    if not is_cluster(cluster):
        raise InvalidArgument("--cluster", cluster, CLUSTER_ALLOWED)
    key = certificates.new_key()
    begin, end = _life(days)
    authority = certificates.authority(key, cluster, begin, end)
    _write(folder / AUTHORITY_KEY, certificates.key_pem(key), 0o600)
    _write(folder / AUTHORITY, certificates.certificate_pem(authority), 0o644)
    say(f"{folder / AUTHORITY}: authority of cluster {cluster!r}, valid until {end:%Y-%m-%d}; give it to all hosts")
    say(f"{folder / AUTHORITY_KEY}: its key; keep it off the hosts: with it anyone can pose as any of them")


def issue(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the host: hostname -s.")],
    days: Annotated[int, typer.Option(min=1, max=DAYS_MAX, help="How long the certificate is valid.")] = NODE_DAYS,
    folder: Dir = Path("."),
) -> None:
    from ultima.v1 import certificates

    if not is_node(node):
        raise InvalidArgument("NODE", node, NODE_ALLOWED)
    signer, authority, cluster = _authority(folder)
    key = certificates.new_key()
    begin, end = _life(days)
    end = min(end, authority.not_valid_after_utc)
    leaf = certificates.leaf(signer, authority, cluster, node, key, begin, end)
    older = (folder / f"{node}.crt").exists()
    _replace(folder / f"{node}.key", certificates.key_pem(key), 0o600)
    _replace(folder / f"{node}.crt", certificates.certificate_pem(leaf), 0o644)
    replaced = ", in place of the older ones" if older else ""
    say(f"{folder / node}.crt, {folder / node}.key: node {node!r} of {cluster!r}, valid until {end:%Y-%m-%d}{replaced}")


def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; nothing is overwritten.")],
) -> None:
    _write(file, (secrets.new_text() + "\n").encode(), 0o600)
    say(f"{file}: the secret of a job; with it a process can pose as any rank")


def group(ends_well: Callable[[Callable[..., None]], Callable[..., None]]) -> typer.Typer:
    """The verbs below `ultima ca`; `ends_well` turns what they raise into a sentence."""
    made = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for name, function, told, example in (
        ("init", init, "Make the authority of a cluster: ca.crt and ca.key.", "ultima ca init --cluster lab"),
        ("issue", issue, "Make a certificate for a host: NODE.crt and NODE.key.", "ultima ca issue n1 --days 365"),
        ("secret", secret, "Make a secret for one job, for hosts without certificates.", "ultima ca secret job.secret"),
    ):
        made.command(name, cls=WithExample, help=told, epilog=example)(ends_well(function))
    return made


def _life(days: int) -> tuple[datetime.datetime, datetime.datetime]:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return now - EARLY, now + datetime.timedelta(days=days)


def _authority(folder: Path) -> tuple[Key, x509.Certificate, str]:
    """Key, certificate and cluster of the authority in a folder. Raises UltimaError."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

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


def _write(path: Path, data: bytes, mode: int) -> None:
    """A new file, which nobody else could read for a moment. Raises UltimaError if there is one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except FileExistsError:
        raise UltimaError(f"{path}: already exists and would be overwritten: move it, or name another place") from None
    except OSError as error:
        raise UltimaError(f"{path}: cannot be written: {error.strerror}") from None


def _replace(path: Path, data: bytes, mode: int) -> None:
    """A file in place of an older one: whoever opens it sees the one or the other, whole. Raises UltimaError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        _write(fresh, data, mode)
        os.replace(fresh, path)
    except OSError as error:
        raise UltimaError(f"{path}: cannot be written: {error.strerror}") from None
