# SPDX-License-Identifier: Apache-2.0
"""The daemon's identity as it is now: certificates are replaced while connections stand and calls are made.

The files are looked at every few seconds. New ones count from the next handshake on, in both directions, if they are
valid together; until then the old ones stay in use, and the status says why. Connections that stand are not touched.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from ultima.daemon.base.config import DaemonConfig, TlsOptions
from ultima.daemon.base.errors import PermissionDenied, StartupError
from ultima.daemon.trust import job_secret
from ultima.daemon.trust.identity import Identity, shown_time
from ultima.v1 import admin_pb2, secrets
from ultima.v1.nodes import NODE_ALLOWED, dns_of, is_node

log = logging.getLogger("ultimad.trust")

LOOK_SECONDS = 2.0
SETTLE_SECONDS = 60.0  # that new files may be at odds with one another while somebody copies them
AGE_MS = 3_600_000  # after which a connection is to be made anew, with the certificates of then
AGE_GRACE_MS = 600_000
RENEW_SECONDS = 1800.0  # after which we make ours anew, well before the other side insists

SERVER_OPTIONS = (("grpc.max_connection_age_ms", AGE_MS), ("grpc.max_connection_age_grace_ms", AGE_GRACE_MS))


class Trust:
    """See the module."""

    def __init__(self, mode: str, load: Callable[[float], Identity], stamp: Callable[[float], object]) -> None:
        """`load` makes the identity as of a time in seconds since 1970 UTC, and raises StartupError; it is called again
        when what `stamp` returns has changed. Raises StartupError."""
        self.mode = mode
        self._load, self._stamp = load, stamp
        now = time.time()
        self._seen = stamp(now)
        self.identity = load(now)
        self.version = 0
        """Counts the identities that this daemon has had."""
        self._served = 0
        self._wrong, self._wrong_since, self._told = "", 0.0, ""
        self._channel: tuple[int, grpc.ChannelCredentials] | None = None
        self.on_withdrawn: Callable[[frozenset[str]], None] = lambda nodes: None
        """Is told of a new list of withdrawn nodes."""

    def check_node(self, node: str) -> None:
        """Raises PermissionDenied for a node that the authority has withdrawn."""
        if node in self.identity.withdrawn:
            raise PermissionDenied(f"node {node!r} was withdrawn by the authority of cluster {self.cluster!r}")

    @property
    def node(self) -> str:
        """Name of the node that this daemon runs on."""
        return self.identity.node

    @property
    def cluster(self) -> str:
        return self.identity.cluster

    def look(self, now: float) -> None:
        """Takes over what is new, and logs what an operator should see to; `now` in seconds since 1970 UTC."""
        seen = self._stamp(now)
        if seen != self._seen or self._wrong:
            self._take(seen, now)
        warning = self.warning(now)
        if warning != self._told:
            self._told = warning
            if warning:
                log.warning("certificates: %s", warning)

    def warning(self, now: float) -> str:
        """What an operator should see to, in a sentence; else empty."""
        identity = self.identity
        if self._wrong and now - self._wrong_since >= SETTLE_SECONDS:
            return f"new certificates are not used: {self._wrong}"
        if identity.node in identity.withdrawn:
            return f"node {identity.node!r} was withdrawn: other nodes refuse it; stop it, or give it another name"
        for what, life in (("authority", identity.authority_life), ("certificate", identity.life)):
            if life.ends_soon(now):
                when = "expired on" if now >= life.end else "expires on"
                return (
                    f"the {what} of node {identity.node!r} {when} {shown_time(life.end)}: put a new one in its place; "
                    "the daemon takes it over by itself"
                )
        return ""

    def not_after_s(self) -> dict[str, int]:
        """When certificate and authority become void, in seconds since 1970 UTC."""
        return {"certificate": int(self.identity.life.end), "authority": int(self.identity.authority_life.end)}

    def status(self, now: float) -> admin_pb2.Security:
        """For operators."""
        return admin_pb2.Security(
            mode=self.mode,
            cluster=self.cluster,
            node=self.node,
            certificate_not_after_s=int(self.identity.life.end),
            authority_not_after_s=int(self.identity.authority_life.end),
            warning=self.warning(now),
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a port on which only nodes of this cluster's authorities get through the handshake."""
        self._served = self.version
        return grpc.dynamic_ssl_server_credentials(self._server(), self._fetch, require_client_authentication=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a new connection."""
        if self._channel is None or self._channel[0] != self.version:
            one = self.identity
            made = grpc.ssl_channel_credentials(one.authorities, one.key, one.certificate)
            self._channel = self.version, made
        return self._channel[1]

    def channel_options(self, node: str) -> tuple[tuple[str, str], ...]:
        """By which a connection is refused unless that node answers."""
        return (("grpc.ssl_target_name_override", dns_of(self.cluster, node)),)

    def _take(self, seen: object, now: float) -> None:
        try:
            fresh = self._load(now)
            if (fresh.cluster, fresh.node) != (self.cluster, self.node):
                raise StartupError(
                    f"tls.certificate: is of node {fresh.node!r} in cluster {fresh.cluster!r}, this daemon is "
                    f"{self.node!r} in {self.cluster!r}: restart it to give it another name"
                )
            if fresh.withdrawn_number < self.identity.withdrawn_number:
                raise StartupError(
                    f"tls.withdrawn: is list {fresh.withdrawn_number}, older than list "
                    f"{self.identity.withdrawn_number}, which stays in force: give the newest one"
                )
        except StartupError as error:
            if not self._wrong:
                self._wrong_since = now
            self._wrong = str(error)
            self._seen = seen
            return
        self._wrong, self._seen = "", seen
        if fresh == self.identity:
            return
        former, self.identity = self.identity, fresh
        self.version += 1
        if (fresh.certificate, fresh.authorities) != (former.certificate, former.authorities):
            log.info("new certificate node=%s not_after=%s", fresh.node, shown_time(fresh.life.end))
        if fresh.withdrawn != former.withdrawn:
            log.warning("withdrawn nodes list=%d nodes=%s", fresh.withdrawn_number, ",".join(sorted(fresh.withdrawn)))
            self.on_withdrawn(fresh.withdrawn)

    def _server(self) -> grpc.ServerCertificateConfiguration:
        one = self.identity
        return grpc.ssl_server_certificate_configuration([(one.key, one.certificate)], one.authorities)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC, in threads of its own, at each handshake; None if nothing is new."""
        version = self.version
        if version == self._served:
            return None
        made = self._server()
        self._served = version
        return made


async def look_for_ever(trust: Trust) -> None:
    """Looks for new certificates now and then."""
    while True:
        trust.look(time.time())
        await asyncio.sleep(LOOK_SECONDS)


def trust_of(config: DaemonConfig) -> Trust | None:
    """How the daemon authenticates itself and its peers; None if it does not, or has none. Raises StartupError."""
    tls = config.tls
    if not config.bind or config.insecure:
        return None
    if tls.job_secret:
        return _by_secret(tls)
    from ultima.daemon.trust.files import from_files  # not loaded where nobody needs it

    paths = Path(tls.certificate), Path(tls.key), Path(tls.authority)
    withdrawn = Path(tls.withdrawn) if tls.withdrawn else None

    def stamp(now: float) -> object:
        return [_stamp(path) for path in (*paths, *([withdrawn] if withdrawn is not None else []))]

    return Trust("certificates", lambda now: from_files(*paths, now, withdrawn), stamp)


def _by_secret(tls: TlsOptions) -> Trust:
    try:
        secret = secrets.read_file(Path(tls.job_secret))
    except ValueError as error:
        raise StartupError(f"tls.job_secret = {tls.job_secret!r}: {error}") from None
    # A new certificate long before the old one ends, however long the job runs.
    half_life, node = job_secret.LEAF_SECONDS / 2, tls.node or _host_name()
    return Trust("job secret", lambda now: job_secret.issue(secret, node, now), lambda now: now // half_life)


def _host_name() -> str:
    """This host's own name, as far as a node may have it."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")[:63].strip("-")
    if not is_node(name):
        raise StartupError(f"tls.node: this host is called {socket.gethostname()!r}: name the node: {NODE_ALLOWED}")
    return name


def _stamp(path: Path) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid
