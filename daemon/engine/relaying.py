# SPDX-License-Identifier: Apache-2.0
"""The engine's face for ways that lead over another host (transport_c/udp/route.c)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any, Protocol

HELLO_BYTES, SIGNED_BYTES = 32, 16
HELLO = 0x4F  # version 4 of the protocol, kind 15


class Relaying(Protocol):
    """The part of `Engine` that is about this."""

    def peer_route(self, job: int, host: int, address: str, data_port: int, feedback_port: int) -> None:
        """Packets to `host`, whose path stands, go there from here on. The path itself stays as it is."""

    def peers_relayed(self, job: int, hosts: Iterable[int], relays: Iterable[int]) -> None:
        """With which hosts packets are exchanged by way of a third one, and by which ones; for the receipts."""

    def send_hello(self, feedback: bool, address: str, port: int, hello: bytes) -> None:
        """Sends what `hello` returned from the data or the feedback socket to a relay."""


class NativeRelaying:
    """The same of the UDP driver."""

    _ffi: Any
    _lib: Any
    _driver: Any

    def _checked(self, result: int, about: str) -> int:
        raise NotImplementedError

    def peer_route(self, job: int, host: int, address: str, data_port: int, feedback_port: int) -> None:
        ports = data_port, feedback_port
        self._checked(self._lib.ut_driver_peer_route(self._driver, job, host, address.encode(), *ports), "peer_route")

    def peers_relayed(self, job: int, hosts: Iterable[int], relays: Iterable[int]) -> None:
        masks = (sum(1 << host for host in set(each)) for each in (hosts, relays))
        self._checked(self._lib.ut_driver_peers_relayed(self._driver, job, *masks), "peers_relayed")

    def send_hello(self, feedback: bool, address: str, port: int, hello: bytes) -> None:
        if len(hello) != HELLO_BYTES:
            raise ValueError(f"hello: {len(hello)} bytes: must be {HELLO_BYTES}")
        result = self._lib.ut_driver_send_hello(self._driver, int(feedback), address.encode(), port, hello)
        self._checked(result, "send_hello")


def hello(key: bytes, end: int, feedback: bool, number: int) -> bytes:
    """What an end says to its relay from one of its sockets, with the key that the relay gave it. `number` grows."""
    signed = bytes([HELLO, int(feedback), 0, 0]) + end.to_bytes(4, "big") + number.to_bytes(8, "big")
    return signed + mac(key, signed)


def mac(key: bytes, signed: bytes) -> bytes:
    """16 bytes of HMAC-SHA256 over the first half of a hello."""
    return hmac.digest(key, signed, "sha256")[:16]
