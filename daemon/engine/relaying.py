# SPDX-License-Identifier: Apache-2.0
"""The engine's face for ways that lead over a third host (transport_c/udp/route.c), and the relay that is one
(transport_c/udp/relay.c)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from ultima.daemon.base.errors import StartFailed, from_engine

HELLO_BYTES, SIGNED_BYTES = 32, 16
HELLO = 0x4F  # version 4 of the protocol, kind 15
ERRORS = {-1: "ARGUMENT", -4: "UNKNOWN", -5: "FULL", -6: "EXISTS"}


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


class Hello(NamedTuple):
    """One that came from the address of its end's host, and that nobody has authenticated yet."""

    end: int
    feedback: bool
    number: int
    signed: bytes
    mac: bytes
    raw: Any


class NativeRelay:
    """One relay: a UDP port, a thread, a table of ends and ways. Errors are raised as `errors.Refused`."""

    def __init__(self, bind: str, port: int, rate_bytes_per_s: int) -> None:
        """Opens and starts it. `port` 0 picks one. Raises StartFailed."""
        from ultima._native import ffi, lib

        self._ffi, self._lib = ffi, lib
        why = ffi.new("char[]", 256)
        self._relay = lib.ut_relay_open(bind.encode(), port, rate_bytes_per_s, why, len(why))
        if self._relay == ffi.NULL:
            raise StartFailed(f"relay: {ffi.string(why).decode(errors='replace')}")
        self._hello = ffi.new("ut_relay_hello *")
        self._text = ffi.new("char[]", 64)

    @property
    def port(self) -> int:
        """UDP."""
        return int(self._lib.ut_relay_port(self._relay))

    def fileno(self) -> int:
        """Readable while hellos wait."""
        return int(self._lib.ut_relay_fd(self._relay))

    def stats(self) -> dict[str, int]:
        """Packets and bytes forwarded, datagrams refused, and the rest of struct ut_relay_stats."""
        ret = self._ffi.new("ut_relay_stats *")
        self._lib.ut_relay_get_stats(self._relay, ret)
        return {name: int(getattr(ret, name)) for name, _ in self._ffi.typeof("ut_relay_stats").fields}

    def poll_hello(self) -> Hello | None:
        """The oldest hello, or None."""
        raw = self._hello
        if not self._lib.ut_relay_poll_hello(self._relay, raw):
            return None
        signed, told = bytes(self._ffi.buffer(raw.bytes)), bytes(self._ffi.buffer(raw.mac))
        return Hello(raw.end, bool(raw.port), raw.number, signed, told, raw)

    def place_end(self, said: Hello) -> None:
        """The newest hello that was polled is its end's own: its socket is where it came from."""
        self._lib.ut_relay_place_end(self._relay, said.raw)

    def add_end(self, address: str) -> int:
        """One lane of a host that is at `address`; returns its number."""
        return self._checked(self._lib.ut_relay_add_end(self._relay, address.encode()), f"end at {address}")

    def remove_end(self, end: int) -> None:
        """It, and its ways, are forgotten."""
        self._lib.ut_relay_remove_end(self._relay, end)

    def add_way(self, from_end: int, to_end: int, cid: int) -> int:
        """What comes from an end under a connection id goes to the other one; returns the way's number."""
        return self._checked(self._lib.ut_relay_add_way(self._relay, from_end, to_end, cid), "way")

    def remove_way(self, way: int) -> None:
        """What comes so is refused from here on."""
        self._lib.ut_relay_remove_way(self._relay, way)

    def way_bytes(self, way: int) -> int:
        """That went this way."""
        return int(self._lib.ut_relay_way_bytes(self._relay, way))

    def end_at(self, end: int) -> tuple[str, int, int]:
        """Where an end's two sockets are, as seen here: address, data port, feedback port; 0: not known."""
        data = int(self._lib.ut_relay_end_port(self._relay, end, 0, self._text))
        address = self._ffi.string(self._text).decode()
        feedback = int(self._lib.ut_relay_end_port(self._relay, end, 1, self._text))
        return address or self._ffi.string(self._text).decode(), data, feedback

    def close(self) -> None:
        """Stops its thread and closes its port."""
        if self._relay != self._ffi.NULL:
            self._lib.ut_relay_close(self._relay)
            self._relay = self._ffi.NULL

    def _checked(self, result: int, about: str) -> int:
        if result < 0:
            raise from_engine(ERRORS.get(int(result), ""), about, f"relay: {about}: error {result}")
        return int(result)
