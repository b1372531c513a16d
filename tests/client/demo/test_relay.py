# SPDX-License-Identifier: Apache-2.0
"""The demo's bad network: what it loses and paces, by a clock of the test, and what daemons see through it."""

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ultima.base.errors import InvalidArgument
from ultima.demo import relay
from ultima.demo.relay import HEADER_BYTES, Host, Network, Relay, Weather
from ultima.demo.share import rate_of, share_of, wan_of

MBIT = 1e6
SIZE = 1250 - HEADER_BYTES  # 10,000 bits with all that is around it


def network(hosts: int, loss: float = 0.0, rate: float = 0.0, seed: int = 1) -> Network:
    found = Network(hosts, seed)
    found.change(Weather(loss, rate))
    return found


def arrivals(found: Network) -> list[tuple[float, object]]:
    """All that is under way, with the time of each."""
    ret = []
    while (at := found.next()) is not None:
        ret += [(at, parcel) for parcel in found.arrived(at)]
    return ret


def test_still__all_arrive_at_once_and_in_order() -> None:
    found = network(2)
    for number in range(100):
        found.offer(1.0, 0, 1, SIZE, number)
    assert arrivals(found) == [(1.0, number) for number in range(100)]


def test_loss__is_the_share_that_was_asked_for_and_repeats_with_its_seed() -> None:
    def heard(seed: int) -> list[object]:
        found = network(2, loss=0.1, seed=seed)
        for number in range(10_000):
            found.offer(0.0, 0, 1, SIZE, number)
        ret = [parcel for _, parcel in arrivals(found)]
        assert found.counts.came == 10_000 and found.counts.lost == 10_000 - len(ret)
        assert 850 < found.counts.lost < 1150, "five deviations of 30 around 1000"
        return ret

    assert heard(1) == heard(1) != heard(2)


def test_rate__a_link_passes_so_many_bits_a_second() -> None:
    """1 Mbit/s is a datagram each 10 ms; the second link takes as long again for the first of them."""
    found = network(2, rate=MBIT)
    for number in range(5):
        found.offer(7.0, 0, 1, SIZE, number)
    assert arrivals(found) == [(pytest.approx(7.0 + (number + 2) * 0.01), number) for number in range(5)]


def test_delay__is_that_of_the_path_and_takes_no_room_in_its_queues() -> None:
    found = Network(2)
    found.change(Weather(rate=MBIT, delay=0.025))
    for number in range(3):
        found.offer(7.0, 0, 1, SIZE, number)
    assert arrivals(found) == [(pytest.approx(7.025 + (number + 2) * 0.01), number) for number in range(3)]
    found.change(Weather(delay=0.025))
    found.offer(8.0, 0, 1, SIZE, "alone")
    assert arrivals(found) == [(pytest.approx(8.025), "alone")]


def test_wan__is_a_round_trip_a_share_and_a_rate() -> None:
    assert wan_of("50ms,1%,50Mbit", "--wan") == (pytest.approx(0.05), 0.01, 5e7)
    assert wan_of("0.2, 0%, 1Gbit", "--wan") == (0.2, 0.0, 1e9)
    for text in ("50,1%", "soon,1%,50Mbit", "2s,1%,50Mbit", "50ms,1%,fast", "50ms,40%,50Mbit"):
        with pytest.raises(InvalidArgument, match=f"--wan is '{text}'"):
            wan_of(text, "--wan")


def test_rate__senders_share_the_downlink_and_not_their_uplinks() -> None:
    found = network(4, rate=MBIT)
    for source in (0, 1, 2):
        for number in range(4):
            found.offer(0.0, source, 3, SIZE, (source, number))
    got = arrivals(found)
    assert [at for at, _ in got] == pytest.approx([0.01 * (number + 2) for number in range(12)])
    assert {parcel for _, parcel in got[:3]} == {(0, 0), (1, 0), (2, 0)}, "in turn, for their uplinks are as fast"
    for _ in range(3):
        found.offer(1.0, 0, 1, SIZE, "there")
        found.offer(1.0, 1, 0, SIZE, "back")
    both = [at for at, _ in arrivals(found)]
    assert both == pytest.approx([1.02, 1.02, 1.03, 1.03, 1.04, 1.04]), "both ways at once"


def test_rate__a_busy_uplink_holds_nobody_else_up() -> None:
    found = network(3, rate=MBIT)
    for _ in range(6):
        found.offer(0.0, 0, 2, SIZE, "many")
    found.offer(0.001, 1, 2, SIZE, "one")
    assert [parcel for _, parcel in arrivals(found)] == ["many", "one", *["many"] * 5]


def test_queue__is_finite_and_what_it_cannot_hold_is_counted() -> None:
    found = network(2, rate=10 * MBIT)
    for number in range(200):
        found.offer(0.0, 0, 1, SIZE, number)
    got = arrivals(found)
    # 64 KiB wait, and one more may begin while there is room.
    assert len(got) == relay.QUEUE_MIN_BYTES // 1250 + 1 and [parcel for _, parcel in got] == list(range(len(got)))
    assert found.counts.overflowed == 200 - len(got) and found.counts.lost == 0
    fast = network(2, rate=1000 * MBIT)
    for number in range(3000):
        fast.offer(0.0, 0, 1, SIZE, number)
    assert len(arrivals(fast)) == int(1000 * MBIT / 8 * relay.QUEUE_S) // 1250 + 1


def test_change__counts_anew_and_delivers_what_is_under_way() -> None:
    found = network(2, rate=MBIT)
    found.offer(0.0, 0, 1, SIZE, "old")
    found.change(Weather(loss=1.0))
    found.offer(0.0, 0, 1, SIZE, "new")
    assert [parcel for _, parcel in arrivals(found)] == ["old"]
    assert (found.counts.came, found.counts.lost) == (1, 1)


def test_late__is_how_long_the_caller_let_it_wait() -> None:
    found = network(2)
    found.offer(1.0, 0, 1, SIZE, "x")
    assert list(found.arrived(1.25)) == ["x"] and found.counts.late_s == 0.25


class Ends:
    """Two daemons' sockets on loopback addresses that only this test has, and the relay's Host of each."""

    def __init__(self) -> None:
        net = f"127.{secrets.randbelow(64) + 128}.{secrets.randbelow(256)}"
        self.udp, self.tcp, self.hosts = [], [], []
        for number in (1, 2):
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind((f"{net}.{number}", 0))
            udp.settimeout(10)
            tcp = socket.create_server((f"{net}.{number}", 0))
            self.udp.append(udp)
            self.tcp.append(tcp)
            ports = (udp.getsockname()[1],)
            self.hosts.append(Host(f"{net}.{number}", f"{net}.{number + 100}", tcp.getsockname()[1], ports))

    def place(self, host: int) -> tuple[str, int]:
        """Where others send datagrams for it, and see those of it come from."""
        return self.hosts[host].known_as, self.hosts[host].udp[0]

    def close(self) -> None:
        for one in (*self.udp, *self.tcp):
            one.close()


def test_relay__each_side_sees_the_other_where_it_is_known() -> None:
    ends = Ends()

    async def go() -> None:
        there = Relay(ends.hosts, Network(2))
        await there.start()
        try:
            first, second = ends.udp
            heard = asyncio.get_running_loop().run_in_executor
            first.sendto(b"one", ends.place(1))
            assert await heard(None, second.recvfrom, 100) == (b"one", ends.place(0))
            second.sendto(b"two", ends.place(0))
            assert await heard(None, first.recvfrom, 100) == (b"two", ends.place(1))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.sendto(b"no daemon's", ends.place(1))
            first.sendto(b"after it", ends.place(1))
            assert (await heard(None, second.recvfrom, 100))[0] == b"after it"
            assert there.unread() == 0

            reader, writer = await asyncio.open_connection(ends.hosts[1].known_as, ends.hosts[1].tcp)
            taken, _ = await heard(None, ends.tcp[1].accept)
            with taken:
                writer.write(b"x" * 100_000)
                got = await heard(None, lambda: taken.recv(100_000, socket.MSG_WAITALL))
                assert got == b"x" * 100_000
                taken.sendall(b"answer")
                taken.shutdown(socket.SHUT_WR)
                assert await reader.read() == b"answer"
            writer.close()
        finally:
            there.close()

    try:
        asyncio.run(asyncio.wait_for(go(), 30))
    finally:
        ends.close()


@pytest.mark.parametrize("ending", ["SIGTERM", "end of input"])
def test_process__takes_weather_tells_counts_and_ends(tmp_path: Path, ending: str) -> None:
    ends = Ends()
    report = tmp_path / "relay.json"
    hosts = json.dumps([vars(host) for host in ends.hosts])
    command = [sys.executable, "-m", "ultima.demo.relay", hosts, str(report)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdin is not None

        def wait_for(**wanted: float) -> None:
            limit = time.monotonic() + 30
            while not report.exists() or not wanted.items() <= json.loads(report.read_text()).items():
                assert time.monotonic() < limit and process.poll() is None
                time.sleep(0.01)

        wait_for(loss=0.0, came=0)
        process.stdin.write(b'{"loss": 0.5, "rate": 0}\n{"loss": 1.0, "rate": 5e8}\n')
        process.stdin.flush()
        wait_for(loss=1.0, rate=5e8, came=0)
        for _ in range(3):
            ends.udp[0].sendto(b"x", ends.place(1))
        wait_for(came=3, lost=3, overflowed=0, unread=0)
        process.send_signal(signal.SIGTERM) if ending == "SIGTERM" else process.stdin.close()
        assert process.wait(10) == 0
    finally:
        process.kill()
        errors = process.stderr.read() if process.stderr else b""
        process.wait()
        ends.close()
    assert errors == b""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(ends.place(1))  # its sockets are gone


def test_rate_of__bits_a_second() -> None:
    assert [rate_of(text, "--rate") for text in ("200Mbit", "1.5 Gbit/s", "10mbps")] == [2e8, 1.5e9, 1e7]
    for text in ("", "200", "200MB", "-1Mbit", "0Mbit", "11Gbit", "1e3Mbit", os.fsdecode(b"\xff")):
        with pytest.raises(InvalidArgument, match=r"--rate is .*; allowed: a rate from 1Mbit to 10Gbit"):
            rate_of(text, "--rate")


def test_share_of__has_a_limit() -> None:
    assert share_of("30%", "--loss", 0.3) == 0.3 and share_of("0.01") == 0.01
    for text in ("31%", "0", "nan", "1"):
        with pytest.raises(InvalidArgument, match=r"--loss is .*; allowed: a share above 0, to 30%"):
            share_of(text, "--loss", 0.3)
