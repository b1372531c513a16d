# SPDX-License-Identifier: Apache-2.0
"""Strangers who begin to connect and never go on: they cost the daemon a descriptor for four seconds, and no join."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.daemon.helpers import House, wired
from tests.daemon.trust.papers import Authority, papers
from ultima.daemon.process.server import Daemon

SPARE = 500  # descriptors for all else that this process holds open

# A process of its own, so that its descriptors count against a limit of their own. Every other connection says the
# first bytes of a TLS record that would hold a ClientHello of 512 bytes, and stops in the middle.
STRANGERS = """
import contextlib, resource, socket, sys
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for number in range(count):
    held.append(socket.create_connection((address, port), timeout=30))
    if number % 2:
        with contextlib.suppress(OSError):
            held[-1].send(bytes.fromhex("1603010200010001fc0303"))
print("held", flush=True)
sys.stdin.read()
"""

# The same, as fast as told and for as long as told: each connection is held until the daemon or two seconds end it.
FLOOD = """
import collections, resource, select, socket, sys, time
address, port, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held, begun, opened = collections.deque(), time.monotonic(), 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    now = time.monotonic()
    while opened < (now - begun) * rate:
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((address, port))
        held.append((now, connection))
        opened += 1
        if opened == 2 * rate:
            print("held", flush=True)
    while held and now - held[0][0] > 2:
        held.popleft()[1].close()
"""


@contextlib.contextmanager
def few_descriptors(allowed: int) -> Iterator[None]:
    """This process, and so the daemons in it, may open no more than so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def descriptors(wanted: int) -> Iterator[int]:
    """Lets this process open as many files as it may, at most `wanted`: how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = min(hard, max(soft, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        yield allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def held_open(daemon: Daemon, count: int, script: str = STRANGERS) -> AsyncIterator[None]:
    """So many half-open connections to a daemon."""
    arguments = ["-c", script, daemon.config.bind, str(daemon.grpc_port), str(count)]
    strangers = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE)
    try:
        assert strangers.stdout is not None and await strangers.stdout.readline() == b"held\n"
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            strangers.kill()
        await strangers.communicate()


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.check)])
async def test_join__while_strangers_hold_connections_half_open(house: House, count: int) -> None:
    authority = Authority()
    daemons = [await house.daemon(f"n{i}", tls=papers(house.folder, f"n{i}", authority).environment) for i in range(2)]
    with descriptors(count + SPARE) as allowed:
        count = min(count, allowed - SPARE)  # those of the daemon, which is this process, are bounded too
        async with held_open(daemons[0], count):
            began = time.monotonic()
            await house.job(daemons)
            print(f"{count} half-open connections: two daemons joined in {time.monotonic() - began:.3f} s")
            assert wired(daemons)


async def test_join__where_strangers_could_take_all_descriptors(house: House) -> None:
    """A daemon that somebody starts by hand has 1024 of them, and this flood holds more than that at any time."""
    authority = Authority()
    with few_descriptors(1024):
        daemons = [await house.daemon(f"n{i}", tls=papers(house.folder, f"n{i}", authority).environment)
                   for i in range(2)]  # fmt: skip
        async with held_open(daemons[0], 800, FLOOD):
            await house.job(daemons)
            assert wired(daemons)
