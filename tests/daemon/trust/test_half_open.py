# SPDX-License-Identifier: Apache-2.0
"""Strangers who begin to connect and never go on: they cost the daemon a descriptor for two seconds, and no join."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time

import pytest

from tests.daemon.helpers import House, wired
from tests.daemon.trust.papers import Authority, papers
from ultima.daemon.process.server import Daemon

# The first bytes of a TLS record that would hold a ClientHello of 512 bytes.
BEGUN = bytes.fromhex("1603010200010001fc0303")


async def hold_open(daemon: Daemon, count: int) -> contextlib.ExitStack:
    """Opens so many connections; every other one says a few bytes and stops in the middle."""
    loop, held = asyncio.get_running_loop(), contextlib.ExitStack()
    for number in range(count):
        one = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        one.setblocking(False)
        await loop.sock_connect(one, (daemon.config.bind, daemon.grpc_port))
        if number % 2:
            with contextlib.suppress(OSError):
                one.send(BEGUN)
    return held


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.check)])
async def test_join__while_strangers_hold_connections_half_open(house: House, count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * count + 1000)), hard))
    authority = Authority()
    daemons = [await house.daemon(f"n{i}", tls=papers(house.folder, f"n{i}", authority).environment) for i in range(2)]
    try:
        with await hold_open(daemons[0], count):
            began = time.monotonic()
            await house.job(daemons)
            print(f"{count} half-open connections: two daemons joined in {time.monotonic() - began:.3f} s")
            assert wired(daemons)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
