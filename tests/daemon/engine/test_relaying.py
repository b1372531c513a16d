# SPDX-License-Identifier: Apache-2.0
"""A relay over real sockets: what its ends send goes to the right socket, what others send goes nowhere, and the cap.

Loopback has many addresses, so each host of these tests has one of its own.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest

from ultima.daemon.base.errors import InvalidArgument, StartFailed
from ultima.daemon.engine.engine import EngineConfig, NativeEngine
from ultima.daemon.engine.forwarder import Hello, NativeRelay
from ultima.daemon.engine.relaying import hello, mac

RELAY, ONE, TWO, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"
KEY = bytes(range(32))
CID = 0x01020304
PATIENCE_S = 10.0


class Side:
    """One end: its sockets for data and for feedback."""

    def __init__(self, relay: NativeRelay, address: str) -> None:
        self.relay, self.end, self.numbers = relay, relay.add_end(address), 0
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for each in self.sockets:
            each.bind((address, 0))
            each.settimeout(PATIENCE_S)

    def say(self, feedback: bool, key: bytes = KEY) -> Hello:
        """Says hello, and what the relay has of it."""
        self.numbers += 1
        self.send(hello(key, self.end, feedback, self.numbers), feedback)
        assert select.select([self.relay.fileno()], [], [], PATIENCE_S)[0]
        said = self.relay.poll_hello()
        assert said is not None and self.relay.poll_hello() is None
        return said

    def settle(self) -> None:
        for feedback in (False, True):
            said = self.say(feedback)
            assert (said.end, said.feedback, said.number) == (self.end, feedback, self.numbers)
            assert mac(KEY, said.signed) == said.mac != mac(bytes(32), said.signed)
            self.relay.place_end(said)

    def send(self, data: bytes, feedback: bool = False) -> None:
        self.sockets[feedback].sendto(data, (RELAY, self.relay.port))

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def packet(cid: int, size: int = 64, fill: int = 7) -> bytes:
    """As an engine's: only the id counts."""
    return bytes([0x41, 0, 0, 0]) + cid.to_bytes(4, "big") + bytes([fill]) * (size - 8)


@pytest.fixture
def relay() -> Iterator[NativeRelay]:
    relay = NativeRelay(RELAY, 0, 10**9)
    yield relay
    relay.close()


@pytest.fixture
def sides(relay: NativeRelay) -> Iterator[tuple[Side, Side]]:
    pair = Side(relay, ONE), Side(relay, TWO)
    for side in pair:
        side.settle()
    relay.add_way(pair[0].end, pair[1].end, CID)
    yield pair
    for side in pair:
        side.close()


def until(relay: NativeRelay, what: str, count: int) -> None:
    """It has counted so many. It counts what it has sent after that: whoever received it may be earlier."""
    limit = time.monotonic() + PATIENCE_S
    while relay.stats()[what] < count:
        assert time.monotonic() < limit, relay.stats()
        time.sleep(0.01)


def test_relay__forwards_unchanged_to_the_socket_of_the_same_part(relay: NativeRelay, sides: tuple[Side, Side]) -> None:
    one, two = sides
    for feedback in (False, True):
        sent = packet(CID, 1400, fill=3 + feedback)
        one.send(sent, feedback)
        got, source = two.sockets[feedback].recvfrom(9216)
        assert got == sent and source == (RELAY, relay.port)
    assert relay.end_at(one.end) == (ONE, *(each.getsockname()[1] for each in one.sockets))
    until(relay, "packets", 2)
    assert relay.stats() | {"held": 0} == {
        **dict.fromkeys(("refused", "held", "send_errors", "drops"), 0),
        **{"packets": 2, "bytes": 2800, "ends": 2, "ways": 1},
    }


def test_relay__what_strangers_send_goes_nowhere_and_nothing_is_answered(
    relay: NativeRelay, sides: tuple[Side, Side]
) -> None:
    one, two = sides
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind((STRANGER, 0))
        forged = hello(bytes(32), one.end, False, 10**9)
        for data in (packet(CID), packet(CID + 1), b"", b"\x41", forged, forged[:31], forged + b"x"):
            stranger.sendto(data, (RELAY, relay.port))
        two.send(packet(CID))  # the other direction has no way under this id
        one.send(packet(CID + 1))
        until(relay, "refused", 9)
        assert relay.poll_hello() is None, "a hello that does not come from the end's host is not even looked at"
        one.send(packet(CID, fill=9))
        assert two.sockets[0].recv(9216) == packet(CID, fill=9), "and nothing stands before what may pass"
        for each in (stranger, *one.sockets, *two.sockets):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(9216)
    until(relay, "packets", 1)
    assert relay.stats()["packets"] == 1


def test_relay__a_hello_from_the_host_itself_is_handed_on_with_what_authenticates_it(
    relay: NativeRelay, sides: tuple[Side, Side]
) -> None:
    said = sides[0].say(True, key=bytes(32))
    assert mac(KEY, said.signed) != said.mac, "who keeps the keys refuses it"


def test_relay__forgets_ends_with_their_ways(relay: NativeRelay, sides: tuple[Side, Side]) -> None:
    one, two = sides
    relay.remove_end(two.end)
    one.send(packet(CID))
    until(relay, "refused", 1)
    assert (relay.stats()["ends"], relay.stats()["ways"]) == (1, 0)
    with pytest.raises(InvalidArgument, match="end at fe80::1"):
        relay.add_end("fe80::1")


def test_relay__the_cap_holds_whatever_is_sent(relay: NativeRelay) -> None:
    """What is sent at once waits in the socket; in any time no more than the cap and one batch beyond it passes."""
    rate, size, count = 400_000, 1000, 400
    slow = NativeRelay(RELAY, 0, rate)
    one, two = Side(slow, ONE), Side(slow, TWO)
    try:
        for side in (one, two):
            side.settle()
        slow.add_way(one.end, two.end, CID)
        two.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        time.sleep(0.05)
        began = time.monotonic()
        for _ in range(count):
            one.send(packet(CID, size))
        got = 0
        while got < 200 * size:
            got += len(two.sockets[0].recv(9216))
            passed = slow.stats()["bytes"]
            # The bucket holds a packet of the largest size at least, and a batch of 32 may overdraw it.
            assert passed <= rate * (time.monotonic() - began) + 9216 + 32 * size, passed
        assert slow.stats()["held"] > 0
    finally:
        one.close()
        two.close()
        slow.close()


def test_relay__sends_no_more_than_its_host_may() -> None:
    """The cap is of all that the host sends, and here the relay alone sends. It is lifted while packets wait."""
    rate, size, wire = 1_000_000, 1000, 1028
    engine = NativeEngine(EngineConfig(RELAY))
    engine.send_at_most(rate)
    bound = NativeRelay(RELAY, 0, 10**9, engine)
    one, two = Side(bound, ONE), Side(bound, TWO)
    try:
        for side in (one, two):
            side.settle()
        bound.add_way(one.end, two.end, CID)
        began = time.monotonic()
        for sent in range(500):
            one.send(packet(CID, size))
            if sent >= 60:
                two.sockets[0].recv(9216)
            # What a host that has rested may send at once, two quanta, and a batch of 32 that overdraws the last.
            room = rate * (time.monotonic() - began) + 131072 + 2 * 24000 + 32 * wire
            assert bound.stats()["packets"] * wire <= room
        assert time.monotonic() - began > (440 * wire - 131072 - 48000) / rate
        assert bound.stats()["held"] > 0
        engine.send_at_most(65536)
        time.sleep(0.05)
        engine.send_at_most(0)
        began = time.monotonic()
        for _ in range(200):
            one.send(packet(CID, size))
            two.sockets[0].recv(9216)
        assert time.monotonic() - began < 2, "200 packets would take 3 s"
    finally:
        one.close()
        two.close()
        bound.close()
        engine.close()


def test_relay__a_port_that_is_taken_is_named(relay: NativeRelay) -> None:
    with pytest.raises(StartFailed, match=rf"bind 127\.0\.0\.1 UDP port {relay.port}"):
        NativeRelay(RELAY, relay.port, 1)
