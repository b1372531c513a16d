# SPDX-License-Identifier: Apache-2.0
"""Where other hosts reach this one, and the daemon on it."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from dataclasses import dataclass

from ultima.api.connection import START_PATIENCE_NS
from ultima.base.errors import DaemonUnavailable
from ultima.settings.config import join_address

RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Reach:
    """How other hosts reach a daemon."""

    address: str
    """As "address:port"; empty for one that serves its own host alone."""
    life: int
    """Of the daemon: a number that no other has."""


def daemon_reach(socket_path: str) -> Reach:
    """How other daemons reach the one behind |socket_path|.

    A daemon that does not answer may be starting: it gets as long as `ultima.connect` gives it. Raises DaemonError.
    """
    from ultima.admin.calls import get_status

    limit = time.monotonic_ns() + START_PATIENCE_NS
    while True:
        try:
            status = get_status(socket_path)
            break
        except DaemonUnavailable:
            if time.monotonic_ns() >= limit:
                raise
            time.sleep(RETRY_S)
    if not status.grpc_port:
        return Reach("", status.incarnation)
    address = status.address
    if not address or ipaddress.ip_address(address).is_unspecified:
        address = address_towards(os.environ.get("MASTER_ADDR") or "127.0.0.1")
    return Reach(join_address(address, status.grpc_port), status.incarnation)


def own_address(reach: str) -> str:
    """Where the other ranks reach a socket of this process: at the address in |reach|, its daemon's "address:port" or
    "", if this process has that one; else at its own address on the way to MASTER_ADDR. "" where neither is known.

    Never what this host's name resolves to: Debian gives that 127.0.1.1, and other hosts do not know it.
    """
    address = reach.rpartition(":")[0].strip("[]")
    if address and _is_ours(address):
        return address
    master = os.environ.get("MASTER_ADDR")
    try:
        return address_towards(master) if master else ""
    except OSError:
        return ""


def _is_ours(address: str) -> bool:
    family, kind, protocol, _, target = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        try:
            probe.bind(target)
        except OSError:
            return False
    return True


def address_towards(host: str) -> str:
    """This host's own address on the way to another one: a datagram socket is connected, nothing is sent."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
