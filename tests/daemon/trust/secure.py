# SPDX-License-Identifier: Apache-2.0
"""Daemons with certificates for tests, and callers with certificates of their own."""

from __future__ import annotations

import grpc
import grpc.aio

from tests.daemon.helpers import House, rendezvous
from tests.daemon.trust.papers import Authority, Papers, papers
from ultima.daemon.hosts import peers
from ultima.daemon.process.server import Daemon
from ultima.daemon.trust.trust import Trust

SECRET = bytes(range(32))


async def secure(house: House, authority: Authority, node: str, **flags: object) -> Daemon:
    """A daemon on a node of its own."""
    return await house.daemon(node, tls=papers(house.folder, node, authority).environment, **flags)


def refused(error: grpc.aio.AioRpcError, code: grpc.StatusCode, *words: str) -> bool:
    assert error.code() is code, error
    assert all(word in (error.details() or "") for word in words), error.details()
    return True


def channel(daemon: Daemon, trust: Trust, called: str) -> grpc.aio.Channel:
    """As another daemon would open it."""
    options = (*peers.CLIENT_OPTIONS, *trust.channel_options(called))
    return grpc.aio.secure_channel(rendezvous(daemon), trust.channel_credentials(), options=options)


def trust_in(papers: Papers) -> Trust:
    from ultima.daemon.trust.files import from_files

    paths = papers.certificate, papers.key, papers.authority
    return Trust("certificates", lambda now: from_files(*paths, now), lambda now: 0)


async def by_secret(house: House, node: str, secret: bytes, **flags: object) -> Daemon:
    file = house.folder / f"{node}.secret"
    file.write_text(secret.hex())
    file.chmod(0o600)
    tls = {"ULTIMAD_TLS_JOB_SECRET": str(file), "ULTIMAD_TLS_NODE": node}
    return await house.daemon(node, tls=tls, **flags)
