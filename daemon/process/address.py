# SPDX-License-Identifier: Apache-2.0
"""The address that a daemon is to listen on: whether it is there, and waiting for it where a service manager asks.

At boot a service may start before the network has given the host its address. That mends itself, so under a service
manager (NOTIFY_SOCKET is set) the daemon waits and asks for more time to start; started by hand it ends at once,
because somebody is there to read why.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Mapping

from ultima.daemon.base.errors import StartFailed
from ultima.daemon.process import sdnotify

log = logging.getLogger("ultimad")

LOOK_SECONDS = 1.0
MORE_TIME = "EXTEND_TIMEOUT_USEC=30000000"  # of what the service manager gives a service to start


def check_port(address: str, port: int) -> None:
    """Raises StartFailed if the TCP port cannot be had. gRPC would say so too, but in lines of its own."""
    try:
        _listen(address, port)
    except OSError as error:
        raise _failed(address, port, error) from None


async def wait_for_address(
    address: str, port: int, stop: asyncio.Event, environment: Mapping[str, str] = os.environ
) -> None:
    """Returns when the host has the address, when `stop` is set, or when nobody manages this service."""
    if not environment.get("NOTIFY_SOCKET"):
        return
    said = False
    while not stop.is_set():
        try:
            _listen(address, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                return
        else:
            return
        if not said:
            log.warning("address missing bind=%s: this host does not have it yet; waiting for it", address)
            said = True
        sdnotify.notify(f"STATUS=waiting for the address {address}\n{MORE_TIME}", environment)
        try:
            await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
        except TimeoutError:
            continue


def _listen(address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        probe.listen(1)


def _failed(address: str, port: int, error: OSError) -> StartFailed:
    remedy = {
        errno.EADDRNOTAVAIL: "; this host does not have that address (see `ip address`)",
        errno.EADDRINUSE: f"; another process listens on TCP port {port} (see `ss -ltnp`): end it, or set another port",
    }.get(error.errno or 0, "")
    return StartFailed(f"bind = {address!r}, port = {port}: {error.strerror}{remedy}")
