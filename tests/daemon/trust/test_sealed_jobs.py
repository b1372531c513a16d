# SPDX-License-Identifier: Apache-2.0
"""Daemons that authenticate each other seal every packet: real engines, and a listener on the wire between them."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import ultima
from tests.daemon.engine.test_native import JOB, Native, connect, free_port, together
from tests.daemon.helpers import House, rendezvous, status
from tests.daemon.trust.papers import Authority, papers
from ultima.daemon.base.errors import FailedPrecondition, Refused
from ultima.daemon.engine.engine import EngineConfig, NativeEngine
from ultima.daemon.engine.seal import SECRET_BYTES, SUITES, Seal, Sealing, taken
from ultima.v1 import types_pb2

COUNT = 50_000
TELLTALE = np.float32(1234.5625)  # a gradient that nobody takes for anything else


async def natives(house: House, ciphers: list[str], secure: bool = True) -> list[Native]:
    """A real daemon per cipher, on nodes of one cluster."""
    authority, started = Authority(), []
    for i, cipher in enumerate(ciphers):
        tls = papers(house.folder, f"n{i}", authority).environment if secure else {}
        flags = {"ULTIMAD_ENGINE_CIPHER": cipher, **tls}
        started.append(await Native.start(house.folder / f"n{i}", free_port(), **flags))
        house.children.append(started[-1])
    return started


async def jobs_of(daemons: list[Native]) -> list[ultima.Job]:
    place = rendezvous(daemons[0])
    return await together(
        *(
            lambda rank=rank, daemon=daemon: connect(daemon, rank, len(daemons), place)  # type: ignore[misc]
            for rank, daemon in enumerate(daemons)
        )
    )


async def add(jobs: list[ultima.Job]) -> None:
    """One op of all ranks, which must be exact."""
    arrays = [np.full(COUNT, TELLTALE, np.float32) for _ in jobs]
    work = [asyncio.to_thread(job.allreduce, a, deadline=30) for job, a in zip(jobs, arrays, strict=True)]
    for receipt, array in zip(await asyncio.gather(*work), arrays, strict=True):
        assert receipt.complete
        np.testing.assert_array_equal(array, TELLTALE)


class Wire:
    """All that goes over loopback while it listens; needs root, as all that plays with the network here."""

    def __init__(self) -> None:
        everything = 3  # ETH_P_ALL
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(everything))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.5)

    def seen(self, ports: set[int]) -> list[bytes]:
        """What goes from or to these ports, TCP or UDP over IPv4."""
        found = []
        with self._socket, suppress(TimeoutError):
            while True:
                packet = self._socket.recv(65536)
                at = 4 * (packet[0] & 15)
                if packet[0] >> 4 == 4 and ports & set(struct.unpack_from("!HH", packet, at)):
                    found.append(packet)
        return found


@pytest.mark.parametrize("ciphers", [["auto", "auto"], list(SUITES)])
async def test_job__is_sealed_with_the_cipher_of_each_receiver(house: House, ciphers: list[str]) -> None:
    daemons = await natives(house, ciphers)
    jobs = await jobs_of(daemons)
    try:
        for _ in range(3):
            await add(jobs)
        for daemon in daemons:
            told = await status(daemon)
            assert told.security.mode == "certificates"
            assert told.engine.counters["bad_checksum"] == 0 < told.engine.counters["data_used"]
    finally:
        for job in jobs:
            job.close()


@pytest.mark.parametrize("secure", [True, False])
async def test_wire__shows_no_gradient_and_no_name(house: House, secure: bool) -> None:
    """Insecure daemons show both: the same search finds what is there."""
    daemons = await natives(house, ["auto", "auto"], secure)
    wire = Wire()
    jobs = await jobs_of(daemons)
    try:
        await add(jobs)
        ports = {daemon.grpc_port + more for daemon in daemons for more in range(5)}
        seen = await asyncio.to_thread(wire.seen, ports)
    finally:
        for job in jobs:
            job.close()
    assert sum(len(packet) for packet in seen) > 2 * COUNT * 4
    assert any(TELLTALE.tobytes() * 4 in packet for packet in seen) is not secure
    assert any(b"native" in packet for packet in seen) is not secure


def test_taken__only_what_can_be_used() -> None:
    sealing = Sealing("aes-128-gcm", "job", 5)
    drawn = sealing.draw()
    assert drawn != sealing.draw() and len(drawn.secret) == SECRET_BYTES
    assert sealing.taken(drawn.to_proto(), "host 1") == drawn
    assert repr(drawn.secret) not in repr(drawn)
    for offer, words in (
        (types_pb2.SealOffer(suite=b"rot13", secret=bytes(32)), "seal.suite = 'rot13' of host 1: allowed: aes-128"),
        (
            types_pb2.SealOffer(suite=b"aes-128-gcm", secret=bytes(31)),
            "seal.secret of host 1 has 31 bytes: allowed: 32",
        ),
        (types_pb2.SealOffer(suite=b"\xff\xfe", secret=bytes(32)), "seal.suite"),
        (types_pb2.SealOffer(), "seal.suite = ''"),
    ):
        with pytest.raises(FailedPrecondition, match=words):
            sealing.taken(offer, "host 1")


def test_taken__no_downgrade() -> None:
    sealing = Sealing("aes-128-gcm", "job", 5)
    offer = sealing.draw().to_proto()
    assert taken(None, None, "host 1", "job") is None
    assert taken(sealing, offer, "host 1", "job") is not None
    with pytest.raises(FailedPrecondition, match="this host seals its packets and host 1 does not"):
        taken(sealing, None, "host 1", "job")
    with pytest.raises(FailedPrecondition, match="host 1 seals its packets and this host does not"):
        taken(None, offer, "host 1", "job")


def test_engine__takes_a_secret_once_and_only_where_packets_are_sealed() -> None:
    engine = NativeEngine(EngineConfig("127.0.0.1"))
    plain = engine.job_add(JOB)
    sealed = engine.job_add(replace(JOB, sealed=True))
    seal = Seal("chacha20-poly1305", bytes(range(32)), "job", 3)
    assert engine.suite("auto") in SUITES
    with pytest.raises(Refused, match="cipher = 'rot13'"):
        engine.suite("rot13")
    for call in (
        lambda: engine.peer_listen(sealed, 1),
        lambda: engine.peer_listen(plain, 1, seal),
        lambda: engine.peer_listen(sealed, 1, replace(seal, suite="rot13")),
    ):
        with pytest.raises(Refused, match="seal: must be given"):
            call()
    cid = engine.peer_listen(sealed, 1, seal)
    engine.peer_connect(sealed, 1, "127.0.0.1", 1234, 1235, cid, seal)
    with pytest.raises(Refused, match="sealed with this secret before"):
        engine.peer_connect(sealed, 1, "127.0.0.1", 1234, 1235, cid, seal)
    assert engine.job_bytes(replace(JOB, sealed=True)) > engine.job_bytes(JOB)
    engine.close()
