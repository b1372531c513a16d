# SPDX-License-Identifier: Apache-2.0
"""The face of a relay, which forwards packets between other hosts (transport_c/udp/relay.c)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ultima.daemon.base.errors import StartFailed, from_engine
from ultima.daemon.engine.engine import Engine, NativeEngine, extension

ERRORS = {-1: "ARGUMENT", -4: "UNKNOWN", -5: "FULL", -6: "EXISTS"}


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

    def __init__(self, bind: str, port: int, rate_bytes_per_s: int, beside: Engine | None = None) -> None:
        """Opens and starts it. `port` 0 picks one. `beside`: an engine of this host, whose `send_at_most` bounds the
        relay as well; it is closed after it. Raises StartFailed."""
        self._ffi, self._lib = ffi, lib = extension()
        why = ffi.new("char[]", 256)
        cap = beside.cap if isinstance(beside, NativeEngine) else ffi.NULL
        self._relay = lib.ut_relay_open(bind.encode(), port, rate_bytes_per_s, cap, why, len(why))
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
